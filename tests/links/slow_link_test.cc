// Tests a cancel, or a deadline, on a slow but healthy link, when the lanes hold more bytes than
// the link carries within drain_grace.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "ferry/core/units.h"
#include "tests/links/network_pair.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using ::testing::StartsWith;

constexpr int kSlowMbits = 100;
constexpr std::uint64_t kSlowBulk = 128 * kMiB;
constexpr std::uint64_t kSlowLater = 2 * kMiB;

class SlowLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = NetworkPair::Missing()) GTEST_SKIP() << *missing;
    const Settings settings{"port_range=7471", "insecure=on", "lanes=16", "drain_grace=1s",
                            "peer_timeout=10s"};
    network_.emplace(PairOptions{{{kSlowMbits}}});
    far_.emplace(network_->far(), settings);
    near_.emplace(network_->near(), settings);
    near_->ConnectTo(network_->FarAddress(0) + ":7471");
    far_->Accept();
    key_ = ToHex(far_->Region("in", kSlowBulk, kPeerInSeed));
    near_->Region("out", kSlowBulk, kSourceSeed);
  }

  void ExpectNextWriteVerifies() {
    const auto key = far_->Region("later_in", kSlowLater, kPeerInSeed);
    near_->Region("later", kSlowLater, kLaterSeed);
    near_->Ask("write later " + ToHex(key));
    EXPECT_EQ(near_->Outcome(), "done");
    EXPECT_EQ(far_->Digest("later_in"), near_->Digest("later"));
  }

  std::optional<NetworkPair> network_;
  std::optional<EnginePeer> far_;
  std::optional<EnginePeer> near_;
  std::string key_;  // of the far side's "in"
};

TEST_F(SlowLinkTest, ACancelLeavesTheConnectionGood) {
  near_->Ask("write out " + key_);
  far_->AwaitChange("in", 0, kPeerInSeed);
  const Stopwatch watch;
  near_->Ask("cancel");
  EXPECT_THAT(near_->Outcome(), StartsWith("Cancelled"));
  ExpectWithin(watch.elapsed(), milliseconds(10'000), "a cancelled write");
  ExpectNextWriteVerifies();
}

TEST_F(SlowLinkTest, ADeadlineLeavesTheConnectionGood) {
  near_->Ask(fmt::format("write out {} 2000", key_));
  const Stopwatch watch;
  EXPECT_THAT(near_->Outcome(), StartsWith("TimedOut"));
  ExpectWithin(watch.elapsed(), milliseconds(12'000), "a late write");
  ExpectNextWriteVerifies();
}

// Its kernel takes, and acknowledges, what still comes.
TEST_F(SlowLinkTest, AFrozenPeerEndsACancelledWriteAfterTheGrace) {
  near_->Ask("write out " + key_);
  far_->AwaitChange("in", 0, kPeerInSeed);
  MustDo(far_->process().Stop(TestDeadline()));
  near_->Ask("cancel");
  const Stopwatch watch;
  EXPECT_THAT(near_->Outcome(), StartsWith("Cancelled"));
  ExpectWithin(watch.elapsed(), milliseconds(1'000), "a write to a frozen peer");
  EXPECT_THAT(near_->TakeNotification(kTimeout), StartsWith("PeerLost"));
  far_->process().Continue();
}

}  // namespace
}  // namespace ferry::tests
