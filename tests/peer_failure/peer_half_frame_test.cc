// Tests a peer that stops in the middle of a frame: its connection ends, its bytes stay within the
// memory that it may write, and other peers are served as before.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>

#include "ferry/core/units.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Connection;
using transfer::Endpoint;

constexpr std::uint64_t kAnnounced = 3 * kMiB;
constexpr std::uint64_t kSent = kAnnounced / 2 + 5;
constexpr std::uint64_t kSeed = 1;

struct Ending {
  std::string command;
  milliseconds bound;
};
void PrintTo(const Ending& ending, std::ostream* out) { *out << ending.command; }

class HalfFrame : public testing::TestWithParam<Ending> {
 protected:
  HalfFrame()
      : endpoint_(Must(Endpoint::Create(ConfigOf(FastSettings({"insecure=on"}))))),
        target_(endpoint_, 2 * kAnnounced, kSeed),
        raw_(Must(PeerProcess::Start("raw"))) {}

  std::string AskRaw(const std::string& command) {
    raw_->Command(command);
    return raw_->Answer();
  }
  // The first `count` bytes came from the raw peer, and no other.
  void ExpectReceived(std::uint64_t count) const {
    const auto bytes = target_.bytes();
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count),
                            [](std::byte b) { return b == std::byte{0x5A}; }));
    GuardedMemory expected(bytes.size());
    Fill(expected.bytes(), kSeed);
    EXPECT_TRUE(std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(count), bytes.end(),
                           expected.bytes().begin() + static_cast<std::ptrdiff_t>(count)));
    EXPECT_TRUE(target_.memory.GuardsIntact());
  }

  Endpoint endpoint_;
  PatternRegion target_;
  std::unique_ptr<PeerProcess> raw_;
};
INSTANTIATE_TEST_SUITE_P(FollowedBy, HalfFrame,
                         testing::Values(Ending{"close", milliseconds(0)},
                                         Ending{"reset", milliseconds(0)},
                                         Ending{"silence", kPeerTimeout + kHeartbeat}),
                         [](const auto& ending) { return ending.param.command; });

TEST_P(HalfFrame, EndsOnlyThatConnection) {
  EnginePeer good;
  Connection kept = good.AcceptedBy(endpoint_);
  AskRaw(fmt::format("half_write {} {} {} {}", endpoint_.port(), ToHex(target_.region.key()),
                     kAnnounced, kSent));
  Connection doomed = Must(endpoint_.Accept(TestDeadline()));
  ASSERT_TRUE(WaitForChange(target_.bytes(), kSent / 8 - 1, kSeed, TestDeadline()));
  const Stopwatch since;
  AskRaw(GetParam().command);

  const auto lost = doomed.TakeNotification(TestDeadline());
  ExpectWithin(since.elapsed(), GetParam().bound, "the loss of the peer");
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code(), Code::kPeerLost) << lost.error().ToString();
  doomed.Close();
  ExpectReceived(kSent);
  EXPECT_TRUE(target_.region.Deregister(Deadline::After(kSlack)));

  const PatternRegion other(endpoint_, kAnnounced, kSeed);
  good.Region("from", kAnnounced, 7);
  good.PostWrite("from", other.region);
  EXPECT_EQ(good.Outcome(), "done");
  EXPECT_EQ(TakeCensus(other.bytes(), 0, 7).after, kAnnounced);
  EXPECT_FALSE(kept.lost());
  ExpectReceived(kSent);
  EXPECT_EQ(good.Quit(), 0);
}

TEST_P(HalfFrame, DoesNotHoldUpTheEndOfTheEndpoint) {
  AskRaw(fmt::format("half_write {} {} {} {}", endpoint_.port(), ToHex(target_.region.key()),
                     kAnnounced, kSent));
  ASSERT_TRUE(WaitForChange(target_.bytes(), kSent / 8 - 1, kSeed, TestDeadline()));
  const Stopwatch since;
  AskRaw(GetParam().command);
  { const Endpoint gone = std::move(endpoint_); }
  ExpectWithin(since.elapsed(), milliseconds(0), "the end of the endpoint");
  ExpectReceived(kSent);
}

}  // namespace
}  // namespace ferry::tests
