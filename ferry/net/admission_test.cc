// Tests of the admission policy under floods.
#include "ferry/net/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "ferry/net/accept_gate.h"

namespace ferry::net {
namespace {

using ::testing::Optional;

constexpr bool kElsewhere = false;
constexpr bool kHere = true;
constexpr std::size_t kPlaces = 256;

class AdmissionTest : public ::testing::Test {
 protected:
  std::optional<Admission::Id> Enter(const std::string& host, bool same_machine = kElsewhere) {
    return table_.Enter(next_++, host, same_machine, now_);
  }
  // Ids start at 1, one millisecond apart.
  void EnterMany(int count, const std::string& host, bool same_machine = kElsewhere) {
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(Enter(host, same_machine), std::nullopt);
      now_ += milliseconds(1);
    }
  }
  // One peer from each of `count` addresses.
  void EnterSpread(int count) {
    for (int i = 0; i < count; ++i) EnterMany(1, "10.1." + std::to_string(i));
  }
  void SpeakAll() {
    for (std::uint64_t id = 1; id < next_; ++id) table_.MarkSpoken(id, now_);
  }
  bool HasRoom() const { return table_.WhenRoom(now_) == now_; }

  Admission table_{kPlaces};
  Admission::Time now_{std::chrono::hours(1)};
  std::uint64_t next_ = 1;
};

// Anybody can send the beginning of a handshake: one address that does so repeatedly must not pause
// accepting for all.
TEST_F(AdmissionTest, FewOfOneAddressAreProtectedByHavingSpoken) {
  EnterMany(1, "honest");
  table_.MarkSpoken(1, now_);
  for (int i = 0; i < 2000; ++i) {
    const auto left = Enter("flood");
    EXPECT_NE(left, std::optional<Admission::Id>(1)) << i;
    table_.MarkSpoken(next_ - 1, now_);
    now_ += milliseconds(1);
    EXPECT_TRUE(HasRoom()) << i;
  }
}

TEST_F(AdmissionTest, ThoseWhoHaveProvedASecretAreProtectedHoweverManyTheyAre) {
  EnterMany(100, "a");
  for (std::uint64_t id = 1; id <= 100; ++id) table_.MarkSpoken(id, now_, /*proven=*/true);
  now_ += milliseconds(150);
  EnterSpread(156);
  const auto left = Enter("b");
  ASSERT_TRUE(left);
  EXPECT_GT(*left, 100u);
}

TEST_F(AdmissionTest, WithRoomForAllNobodyLeaves) {
  EnterMany(128, "a");
  EnterMany(127, "b");
  EXPECT_TRUE(HasRoom());
  EnterMany(1, "b");
  EXPECT_EQ(table_.size(), kPlaces);
}

TEST_F(AdmissionTest, ASourceThatHasItsShareOfSilentOnesLosesItsOwnOldest) {
  EnterMany(1, "b");
  EnterMany(128, "a");
  EXPECT_EQ(table_.share(), 128u);
  EXPECT_THAT(Enter("a"), Optional(2u));
  EXPECT_THAT(Enter("a"), Optional(3u));
  EXPECT_EQ(Enter("b"), std::nullopt);
}

TEST_F(AdmissionTest, AddressesOfOneIpv6Prefix64AreOneSource) {
  for (int i = 0; i < 128; ++i) EnterMany(1, "2001:db8:0:1::" + std::to_string(i + 1));
  EXPECT_EQ(Enter("[2001:db8:0:2::1]"), std::nullopt);
  EXPECT_THAT(Enter("[2001:db8:0:1:ffff::1%eth0]"), Optional(1u));
}

TEST_F(AdmissionTest, SourcesAreAddressesAndIpv6Prefixes) {
  EXPECT_EQ(Admission::SourceOf("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(Admission::SourceOf("fe80::1%eth0"), Admission::SourceOf("[fe80::2]"));
  EXPECT_NE(Admission::SourceOf("2001:db8:0:1::1"), Admission::SourceOf("2001:db8:0:2::1"));
  EXPECT_EQ(Admission::SourceOf("::ffff:10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(Admission::SourceOf("fake"), "fake");
}

TEST_F(AdmissionTest, ThisMachineIsHeldToTheTableOnly) {
  EnterMany(256, "127.0.0.1", kHere);
  EXPECT_THAT(Enter("127.0.0.1", kHere), Optional(1u));
  EXPECT_THAT(Enter("10.0.0.1"), Optional(2u));
  EXPECT_EQ(table_.size(), kPlaces);
}

TEST_F(AdmissionTest, AnAddressOfThisMachineProtectsNobodyWhoHasSpokenWithoutAProof) {
  EnterMany(10, "127.0.0.1", kHere);
  for (std::uint64_t id = 1; id <= 8; ++id) {
    EXPECT_FALSE(table_.NeedsProof(id));
    table_.MarkSpoken(id, now_);
  }
  EXPECT_FALSE(table_.NeedsProof(1)) << "it is protected already";
  EXPECT_TRUE(table_.NeedsProof(9));
  table_.MarkSpoken(9, now_);
  EXPECT_TRUE(table_.NeedsProof(10));
  table_.MarkSpoken(10, now_, /*proven=*/true);
  EXPECT_FALSE(table_.NeedsProof(10));
  EXPECT_FALSE(table_.NeedsProof(11)) << "there is none";
  now_ += milliseconds(1);
  EnterSpread(246);
  now_ += Admission::kGrace;
  EXPECT_THAT(Enter("10.9.9.9"), Optional(9u));
}

TEST_F(AdmissionTest, WhenFullTheOldestSilentOneLeavesWhoeverHasMost) {
  EnterMany(1, "quiet");
  EnterMany(8, "peer");
  EnterSpread(247);
  EXPECT_THAT(Enter("peer"), Optional(1u));
  for (std::uint64_t id = 2; id <= 9; ++id) table_.MarkSpoken(id, now_);
  EXPECT_THAT(Enter("10.9.9.9"), Optional(10u));
}

TEST_F(AdmissionTest, ASilentOneHasTheGraceToSpeakBeforeItLeavesForOthers) {
  for (int i = 0; i < 256; ++i) EXPECT_EQ(Enter("127.0.0.1", kHere), std::nullopt);
  EXPECT_FALSE(HasRoom());
  EXPECT_EQ(table_.WhenRoom(now_), now_ + Admission::kGrace);
  now_ += Admission::kGrace;
  EXPECT_TRUE(HasRoom());
  EXPECT_THAT(Enter("127.0.0.1", kHere), Optional(1u));
}

TEST_F(AdmissionTest, OneThatHasSpokenDoesNotLeaveForOneThatHasNot) {
  EnterSpread(256);
  for (std::uint64_t id = 1; id <= 255; ++id) table_.MarkSpoken(id, now_);
  now_ += Admission::kGrace;
  EXPECT_THAT(Enter("a"), Optional(256u));
}

TEST_F(AdmissionTest, WhenAllHaveSpokenThereIsNoRoomUntilOneEndsOrStalls) {
  EnterSpread(256);
  SpeakAll();
  EXPECT_EQ(table_.WhenRoom(now_), now_ + Admission::kStall);
  table_.Leave(7);
  EXPECT_TRUE(HasRoom());
  EXPECT_EQ(Enter("a"), std::nullopt);
  table_.MarkSpoken(257, now_ + milliseconds(1));
  now_ += Admission::kStall;
  EXPECT_TRUE(HasRoom());
  EXPECT_THAT(Enter("b"), Optional(1u));
}

TEST_F(AdmissionTest, LanesThatAPeerIsExpectedToOpenAreKeptThoughSilent) {
  EnterSpread(248);
  table_.Expect("peer", 8, now_ + std::chrono::seconds(5));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Enter("peer"), std::nullopt);  // 249 to 256
  for (std::uint64_t id = 1; id <= 248; ++id) {
    now_ += milliseconds(1);
    table_.Leave(id);
    EnterMany(1, "10.2." + std::to_string(id));
  }
  // The peer's lanes are the oldest.
  now_ += Admission::kGrace;
  EXPECT_THAT(Enter("a"), Optional(257u));
}

TEST_F(AdmissionTest, NoMoreLanesAreKeptThanArePromisedAndNoLonger) {
  table_.Expect("peer", 2, now_ + std::chrono::seconds(5));
  EnterMany(3, "peer");  // the last one is an ordinary silent peer
  EnterMany(253, "127.0.0.1", kHere);
  EXPECT_THAT(Enter("127.0.0.1", kHere), Optional(3u));
  table_.Expect("late", 1, now_ + milliseconds(50));
  now_ += milliseconds(51);
  table_.Leave(4);
  EXPECT_EQ(Enter("late"), std::nullopt);
  now_ += Admission::kStall;
  for (std::uint64_t id = 5; id <= 256; ++id) table_.Leave(id);
  EXPECT_EQ(table_.size(), 4u);
}

// From a provider that cannot pause, or with handshakes in flight.
TEST_F(AdmissionTest, ThoseWhoComeWithoutRoomAreTakenUpToTwiceThePlaces) {
  for (int i = 0; i < 512; ++i) EXPECT_EQ(Enter("127.0.0.1", kHere), std::nullopt);
  EXPECT_THAT(Enter("127.0.0.1", kHere), Optional(1u));
  EXPECT_EQ(table_.size(), 2 * kPlaces);
}

TEST_F(AdmissionTest, WhoHasLeftMakesRoom) {
  EnterMany(128, "a");
  table_.Leave(5);
  table_.Leave(5);
  table_.MarkSpoken(5, now_);
  EXPECT_EQ(Enter("a"), std::nullopt);
  EXPECT_THAT(Enter("a"), Optional(1u));
}

TEST_F(AdmissionTest, AllLanesOfOnePeerFindRoomInTheSmallestTable) {
  Admission small(64);
  for (std::uint64_t id = 1; id <= 64; ++id) {
    EXPECT_EQ(small.Enter(id, "a", kElsewhere, now_), std::nullopt);
  }
  EXPECT_THAT(small.Enter(65, "a", kElsewhere, now_), Optional(1u));
}

// ---- the gate -----------------------------------------------------------------------------------

TEST(AcceptGateTest, PausesWhileThereIsNoRoomAndGoesOnByItself) {
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop);
  Admission table(64);
  bool paused = false;
  int changes = 0;
  AcceptGate gate(loop->get(), &table, [&](bool now_paused) {
    paused = now_paused;
    ++changes;
  });
  (*loop)->PostOrRun([&] {
    for (std::uint64_t id = 1; id <= 64; ++id) {
      (void)table.Enter(id, "127.0.0.1", kHere, Clock::now());
      gate.UpdateOnLoop();
    }
  });
  EXPECT_TRUE(paused);
  const Deadline limit = Deadline::After(std::chrono::seconds(60));
  // The grace period of the first peer ends.
  EXPECT_TRUE((*loop)->DriveUntil([&] { return !paused; }, limit, microseconds(0)));
  EXPECT_EQ(changes, 2);
}

}  // namespace
}  // namespace ferry::net
