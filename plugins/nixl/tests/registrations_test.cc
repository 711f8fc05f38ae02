// Tests registrations that change while a peer has older metadata.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "plugins/nixl/tests/agents_test.h"

namespace ferry::nixl::testing {
namespace {

using abi::Direction;
using abi::Outcome;

constexpr std::size_t kRangeBytes = 64 << 10;
constexpr std::size_t kHalfRange = kRangeBytes / 2;

// The peer registers and deregisters; this side has loaded its metadata.
class RegistrationsTest : public AgentsTest {
 protected:
  void SetUp() override { Begin(kRangeBytes); }
  void Register(std::size_t offset, std::size_t bytes) {
    ASSERT_EQ(Ask(fmt::format("register {} {}", offset, bytes)), "0");
  }
  void Deregister(std::size_t offset, std::size_t bytes, int times = 1) {
    ASSERT_EQ(Ask(fmt::format("deregister {} {} {}", offset, bytes, times)), "ok");
  }
  Outcome LoadAgain() { return agent_->Load(Ask("metadata")); }
  // Writes to a part of the peer's memory.
  Outcome Write(std::size_t offset, std::size_t bytes) {
    const Range own = Own(offset, bytes);
    const Range peers = Peers(offset, bytes);
    Outcome outcome{};
    auto transfer = agent_->Prepare(Direction::kWrite, {&own, 1}, {&peers, 1}, kPeerName, &outcome);
    if (outcome == Outcome::kSuccess) outcome = transfer.Post();
    return outcome == Outcome::kInProgress ? transfer.Wait(Soon()) : outcome;
  }
};

TEST_F(RegistrationsTest, ARangeThatIsRegisteredTwiceIsLoadedAndStaysUntilBothAreDeregistered) {
  Register(0, kRangeBytes);
  EXPECT_EQ(LoadAgain(), Outcome::kSuccess);
  EXPECT_EQ(Write(0, kRangeBytes), Outcome::kSuccess);
  EXPECT_EQ(PeerDigest(), DigestOf(memory_));
  Deregister(0, kRangeBytes);
  EXPECT_EQ(Write(0, kRangeBytes), Outcome::kSuccess);
  Deregister(0, kRangeBytes);
  EXPECT_LT(static_cast<int>(Write(0, kRangeBytes)), 0);
}

TEST_F(RegistrationsTest, ARangeThatIsRegisteredAgainIsLoadedAndReachedByOlderMetadata) {
  Deregister(0, kRangeBytes);
  EXPECT_LT(static_cast<int>(Write(0, kRangeBytes)), 0);
  Register(0, kRangeBytes);
  EXPECT_EQ(Write(0, kRangeBytes), Outcome::kSuccess);
  EXPECT_EQ(LoadAgain(), Outcome::kSuccess);
  EXPECT_EQ(Write(0, kRangeBytes), Outcome::kSuccess);
  EXPECT_EQ(PeerDigest(), DigestOf(memory_));
}

TEST_F(RegistrationsTest, PartsOfARangeComeAndGo) {
  Register(0, kHalfRange);
  Register(kHalfRange / 2, kHalfRange);
  EXPECT_EQ(LoadAgain(), Outcome::kSuccess);
  EXPECT_EQ(Write(kHalfRange / 2, kHalfRange), Outcome::kSuccess);
  Deregister(0, kHalfRange);
  EXPECT_EQ(LoadAgain(), Outcome::kSuccess);
  EXPECT_EQ(Write(0, kRangeBytes), Outcome::kSuccess);
  EXPECT_EQ(PeerDigest(), DigestOf(memory_));
}

TEST_F(RegistrationsTest, ARangeThatIsTwiceInOneListIsDeregisteredOnce) {
  for (const int registrations : {1, 2}) {
    if (registrations == 2) Register(0, kRangeBytes);
    Deregister(0, kRangeBytes, 2);
    Register(0, kRangeBytes);
    EXPECT_EQ(LoadAgain(), Outcome::kSuccess);
    EXPECT_EQ(Write(0, kRangeBytes), Outcome::kSuccess);
  }
}

TEST_F(RegistrationsTest, RegistrationsInAnyOrderAreLoadedAndReached) {
  std::mt19937 random(7);
  struct Part {
    std::size_t offset;
    std::size_t bytes;
    int count;
  };
  std::vector<Part> parts{{0, kRangeBytes, 1},
                          {0, kHalfRange, 0},
                          {kHalfRange, kHalfRange, 0},
                          {kHalfRange / 2, kHalfRange, 0}};
  for (int step = 0; step < 200; ++step) {
    Part& part = parts[random() % parts.size()];
    if (part.count == 0 || random() % 2 == 0) {
      Register(part.offset, part.bytes);
      ++part.count;
    } else if (std::count_if(parts.begin(), parts.end(), [](auto& p) { return p.count > 0; }) > 1) {
      Deregister(part.offset, part.bytes);
      --part.count;
    }
    if (random() % 2 == 0) continue;
    ASSERT_EQ(LoadAgain(), Outcome::kSuccess) << step;
    const auto registered =
        std::find_if(parts.begin(), parts.end(), [](auto& p) { return p.count > 0; });
    ASSERT_EQ(Write(registered->offset, registered->bytes), Outcome::kSuccess) << step;
  }
}

}  // namespace
}  // namespace ferry::nixl::testing
