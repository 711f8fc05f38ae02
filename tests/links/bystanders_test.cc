// Tests one endpoint that writes to four peers, each behind its own link, when one of them falls
// silent. The links are far slower than the machine, so a peer's rate is that of its link unless
// something delays it; sanitizers make the machine too slow for that.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/units.h"
#include "tests/links/network_pair.h"
#include "tests/links/plain_rate.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

constexpr std::size_t kPeers = 4;
constexpr int kLinkMbits = 500;
constexpr double kKept = 0.95;  // of its rate, by every other peer
constexpr std::uint64_t kPumped = 2 * kMiB;
constexpr milliseconds kTimeout{kSanitized ? 6000 : 3000};
constexpr milliseconds kLossBound = kTimeout + 2 * kHeartbeat;
constexpr std::size_t kFirstPort = 7480;

class BystandersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = NetworkPair::Missing()) GTEST_SKIP() << *missing;
    PairOptions options;
    options.links.assign(kPeers, {kLinkMbits});
    network_.emplace(options);
    for (std::size_t i = 0; RatesAreJudged() && i < kPeers; ++i) {
      plain_[i] =
          PlainRate(network_->near(), network_->far(), network_->FarAddress(i), milliseconds(300));
    }
    near_.emplace(network_->near(), CommonSettings());
    for (std::size_t i = 0; i < kPeers; ++i) BringUp(i);
    AwaitFlow();
  }

  static Settings CommonSettings(const Settings& more = {}) {
    Settings all{"insecure=on", "lanes=2", "lane_timeout=600ms",
                 fmt::format("heartbeat_interval={}", kHeartbeat.count()),
                 fmt::format("peer_timeout={}", kTimeout.count())};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void BringUp(std::size_t i) {
    auto settings = CommonSettings(
        {fmt::format("port_range={}", kFirstPort + i), fmt::format("interfaces=l{}", i)});
    EnginePeer& far = far_.emplace_back(network_->far(), settings);
    near_->Use(static_cast<int>(i));
    near_->ConnectTo(fmt::format("{}:{}", network_->FarAddress(i), kFirstPort + i));
    far.Accept();
    const std::string source = fmt::format("source{}", i);
    near_->Region(source, kPumped, 1);
    near_->Pump(source, far.Region("pumped", kPumped, 1000));
  }
  std::array<std::uint64_t, kPeers> Pumped() {
    std::array<std::uint64_t, kPeers> bytes{};
    for (std::size_t i = 0; i < kPeers; ++i) {
      near_->Use(static_cast<int>(i));
      bytes[i] = near_->Pumped();
    }
    return bytes;
  }
  void AwaitFlow() {
    const Deadline deadline = TestDeadline();
    for (const std::uint64_t bytes = 8 * kPumped;;) {
      const auto pumped = Pumped();
      if (std::all_of(pumped.begin(), pumped.end(), [&](auto one) { return one > bytes; })) return;
      ASSERT_FALSE(deadline.expired()) << "not every peer is written to";
      std::this_thread::yield();
    }
  }
  // The rate of each peer from now on, in bytes per second.
  std::array<double, kPeers> Rates(milliseconds over) {
    const auto before = Pumped();
    const Stopwatch watch;
    // Time is what is measured here; nothing is waited for.
    std::this_thread::sleep_for(over);
    const auto after = Pumped();
    std::array<double, kPeers> rates{};
    for (std::size_t i = 0; i < kPeers; ++i) {
      rates[i] = static_cast<double>(after[i] - before[i]) * 1e3 /
                 static_cast<double>(watch.elapsed().count());
    }
    return rates;
  }
  // Peer 0 falls silent by `silence`; the others go on as before while that is found out, and
  // after.
  template <class Silence>
  void ExpectOthersGoOn(const Silence& silence) {
    const auto before = Rates(milliseconds(2000));
    silence();
    const Stopwatch since;
    const auto during = Rates(kLossBound);
    near_->Use(0);
    const std::string end = near_->StopPump();
    ExpectWithin(since.elapsed(), kLossBound, "the loss");
    EXPECT_EQ(end.rfind("PeerLost", 0), 0U) << end;
    for (std::size_t i = 1; i < kPeers; ++i) {
      std::printf("  peer %zu: %.4f GB/s before, %.4f while another is silent, %.3f of it\n", i,
                  before[i] / 1e9, during[i] / 1e9, during[i] / before[i]);
      EXPECT_GT(during[i], 0) << i;
      if (RatesAreJudged()) {
        EXPECT_GE(during[i], kKept * before[i]) << i;
        EXPECT_GE(before[i], 0.9 * plain_[i]) << i;
      }
      near_->Use(static_cast<int>(i));
      EXPECT_EQ(near_->StopPump(), "done");
      EXPECT_EQ(far_[i].Digest("pumped"), near_->Digest(fmt::format("source{}", i)));
    }
  }

  std::array<double, kPeers> plain_{};  // bytes per second of plain TCP, where rates are judged
  std::optional<NetworkPair> network_;
  std::deque<EnginePeer> far_;
  std::optional<EnginePeer> near_;
};

TEST_F(BystandersTest, AFrozenPeerIsNoticedAndSlowsNobodyElse) {
  ExpectOthersGoOn([this] { Must(far_[0].process().Stop(TestDeadline())); });
}

TEST_F(BystandersTest, ABlackHoleIsNoticedAndSlowsNobodyElse) {
  ExpectOthersGoOn([this] { network_->SetBlackHole(0, true); });
}

}  // namespace
}  // namespace ferry::tests
