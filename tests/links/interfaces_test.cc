// Tests two processes in network namespaces with several links between them. The links are far
// slower than a quiet machine; rates are judged by those of plain TCP over the same links just
// before.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "tests/links/network_pair.h"
#include "tests/links/plain_rate.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

constexpr double kShare = 0.9;  // of the links' rates together
constexpr milliseconds kPlainTime{300};
constexpr std::uint64_t kLarge = (kSanitized ? 64 : 1024) * kMiB;
constexpr std::uint64_t kFlowPumped = 16 * kMiB;
constexpr int kPort = 7471;

double BytesPerSecond(int mbits) { return mbits * 1e6 / 8; }

Settings TestSettings(const Settings& more = {}) {
  Settings all{"port_range=7471", "insecure=on", "heartbeat_interval=200ms", "lane_timeout=600ms",
               kSanitized ? "peer_timeout=8s" : "peer_timeout=4s"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class InterfacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = NetworkPair::Missing()) GTEST_SKIP() << *missing;
  }

  // Brings the processes up, connected by the first link.
  void Begin(const PairOptions& options, const Settings& settings = TestSettings()) {
    network_.emplace(options);
    if (RatesAreJudged()) MeasureLinks(options);
    far_.emplace(network_->far(), settings);
    near_.emplace(network_->near(), settings);
    const std::string host = network_->FarAddress(0);
    near_->ConnectTo(options.ipv6 ? fmt::format("[{}]:{}", host, kPort)
                                  : fmt::format("{}:{}", host, kPort));
    far_->Accept();
  }
  void MeasureLinks(const PairOptions& options) {
    double plain = 0;
    double nominal = 0;
    for (std::size_t i = 0; i < options.links.size(); ++i) {
      plain += PlainRate(network_->near(), network_->far(), network_->FarAddress(i), kPlainTime);
      nominal += BytesPerSecond(options.links[i].mbits);
    }
    plain_share_ = plain / nominal;
    std::printf("  plain TCP moves %.3f of what the links are set to\n", plain_share_);
    ASSERT_GT(plain_share_, 0.5) << "the links are far slower than they are set to be";
  }
  static PairOptions Links(const std::vector<int>& mbits, int mtu = 9000, bool ipv6 = false) {
    PairOptions options{{}, mtu, ipv6};
    for (const int rate : mbits) options.links.push_back({rate});
    return options;
  }
  // Until the lanes are spread over so many interfaces.
  void AwaitSpread(std::size_t interfaces) {
    const Deadline deadline = TestDeadline();
    for (;;) {
      const auto lanes = near_->Interfaces();
      if (std::set<std::string>(lanes.begin(), lanes.end()).size() == interfaces) return;
      ASSERT_FALSE(deadline.expired()) << "lanes are not spread over " << interfaces;
      std::this_thread::yield();
    }
  }
  // One write of kLarge; its rate in bytes per second.
  double WriteLarge(std::uint64_t seed) {
    if (!large_) {
      key_ = far_->Region("in", kLarge, 1000);
      near_->Region("out", kLarge, seed);
      large_ = true;
    } else {
      near_->Fill("out", seed);
    }
    const Stopwatch watch;
    near_->Ask("write out " + ToHex(key_));
    EXPECT_EQ(near_->Outcome(), "done");
    const double seconds = static_cast<double>(watch.elapsed().count()) / 1e3;
    EXPECT_EQ(far_->Digest("in"), near_->Digest("out"));
    return static_cast<double>(kLarge) / std::max(seconds, 1e-3);
  }
  void BeginPump() {
    key_ = far_->Region("pumped", kFlowPumped, 1000);
    near_->Region("source", kFlowPumped, 1);
    near_->Pump("source", key_);
  }
  // The rate of the pump over this long from now, in bytes per second.
  double PumpRate(milliseconds over) {
    const std::uint64_t before = near_->Pumped();
    const Stopwatch watch;
    // Time is what is measured here; nothing is waited for.
    std::this_thread::sleep_for(over);
    const std::uint64_t bytes = near_->Pumped() - before;
    return static_cast<double>(bytes) * 1e3 / static_cast<double>(watch.elapsed().count());
  }
  // Until the pump moves at this rate, or at all where rates are not judged. Prints how long that
  // took.
  void AwaitRate(double wanted, milliseconds bound, const char* what) {
    wanted *= plain_share_;
    const double least = RatesAreJudged() ? wanted : 1;
    const Stopwatch watch;
    double rate = 0;
    do {
      rate = PumpRate(milliseconds(500));
    } while (rate < least && watch.elapsed() < bound);
    std::printf("  %s: %.3f GB/s of %.3f wanted, within %lld ms\n", what, rate / 1e9, wanted / 1e9,
                static_cast<long long>(watch.elapsed().count()));
    EXPECT_GE(rate, least) << what;
  }
  void ExpectRate(double rate, double links, const char* what) {
    links *= plain_share_;
    std::printf("  %s: %.3f GB/s, %.2f of the links\n", what, rate / 1e9, rate / links);
    if (RatesAreJudged()) {
      EXPECT_GE(rate, kShare * links) << what;
    }
  }
  void EndPump() {
    EXPECT_EQ(near_->StopPump(), "done");
    EXPECT_EQ(far_->Digest("pumped"), near_->Digest("source"));
  }

  double plain_share_ = 1;  // of the links' rates as they are set, by plain TCP
  std::optional<NetworkPair> network_;
  std::optional<EnginePeer> far_;
  std::optional<EnginePeer> near_;
  std::vector<std::byte> key_;
  bool large_ = false;
};

TEST_F(InterfacesTest, OneTransferUsesFourLinks) {
  Begin(Links({2000, 2000, 2000, 2000}));
  AwaitSpread(4);
  ExpectRate(WriteLarge(1), BytesPerSecond(8000), "4 links of 2 Gbit/s");
}

TEST_F(InterfacesTest, OneTransferUsesUnequalLinksEachByItsRate) {
  Begin(Links({2000, 2000, 2000, 500}));
  AwaitSpread(4);
  ExpectRate(WriteLarge(1), BytesPerSecond(6500), "links of 2, 2, 2 and 0.5 Gbit/s");
}

TEST_F(InterfacesTest, RatesThatChangeDuringATransferAreFollowed) {
  Begin(Links({2000, 2000, 2000, 2000}));
  AwaitSpread(4);
  BeginPump();
  AwaitRate(kShare * BytesPerSecond(8000), kTimeout, "all at 2 Gbit/s");
  network_->SetRate(1, 500);
  AwaitRate(kShare * BytesPerSecond(6500), kTimeout, "one at 0.5 Gbit/s");
  network_->SetRate(1, 2000);
  AwaitRate(kShare * BytesPerSecond(8000), kTimeout, "all at 2 Gbit/s again");
  EndPump();
}

TEST_F(InterfacesTest, ALinkThatIsCutIsDoneWithoutAndUsedAgainWhenItIsBack) {
  Begin(Links({2000, 2000, 2000, 2000}));
  AwaitSpread(4);
  BeginPump();
  AwaitRate(kShare * BytesPerSecond(8000), kTimeout, "four links");
  for (const std::size_t link : {2U, 0U}) {
    network_->SetLink(link, false);
    AwaitRate(kShare * BytesPerSecond(6000), kTimeout, "three links");
    network_->SetLink(link, true);
    AwaitSpread(4);
    AwaitRate(kShare * BytesPerSecond(8000), kTimeout, "four links again");
  }
  EndPump();
}

TEST_F(InterfacesTest, ATransferDuringWhichALinkIsCutIsWholeAndHardlySlower) {
  Begin(Links({2000, 2000, 2000, 2000}));
  AwaitSpread(4);
  key_ = far_->Region("in", kLarge, 1000);
  near_->Region("out", kLarge, 1);
  large_ = true;
  const Stopwatch watch;
  near_->Ask("write out " + ToHex(key_));
  network_->SetLink(1, false);
  EXPECT_EQ(near_->Outcome(), "done");
  const double seconds = static_cast<double>(watch.elapsed().count()) / 1e3;
  EXPECT_EQ(far_->Digest("in"), near_->Digest("out"));
  ExpectRate(static_cast<double>(kLarge) / seconds, BytesPerSecond(6000), "one of four links cut");
}

TEST_F(InterfacesTest, ALinkThatSwallowsEverythingIsDoneWithout) {
  Begin(Links({2000, 2000, 2000, 2000}));
  AwaitSpread(4);
  BeginPump();
  AwaitRate(kShare * BytesPerSecond(8000), kTimeout, "four links");
  network_->SetBlackHole(3, true);
  AwaitRate(kShare * BytesPerSecond(6000), kTimeout, "three links");
  network_->SetBlackHole(3, false);
  AwaitRate(kShare * BytesPerSecond(8000), kTimeout, "four links again");
  EndPump();
}

TEST_F(InterfacesTest, APeerThatNoLinkReachesIsLostWithinItsTimeout) {
  Begin(Links({2000, 2000}));
  AwaitSpread(2);
  BeginPump();
  const Stopwatch watch;
  for (const std::size_t link : {0U, 1U}) network_->SetLink(link, false);
  const std::string near_end = near_->StopPump();
  EXPECT_EQ(near_end.rfind("PeerLost", 0), 0U) << near_end;
  ExpectWithin(watch.elapsed(), milliseconds(kSanitized ? 8400 : 4400), "the near side");
  const std::string far_end = far_->TakeNotification(kTimeout);
  EXPECT_EQ(far_end.rfind("PeerLost", 0), 0U) << far_end;
  ExpectWithin(watch.elapsed(), milliseconds(kSanitized ? 8400 : 4400), "both sides");
}

TEST_F(InterfacesTest, ADialThatTheKernelConnectsToItselfIsRefused) {
  constexpr int kFree = 20001;
  network_.emplace(Links({0}));
  near_.emplace(network_->near(), TestSettings());
  network_->SetDialPorts(kFree, kFree);
  for (const std::string host : {"127.0.0.1", "[::1]", "10.77.0.1"}) {
    const std::string where = fmt::format("{}:{}", host, kFree);
    near_->Say("connect " + where);
    const std::string said = Must(near_->process().Hear(TestDeadline()));
    EXPECT_NE(said.find("cannot connect to " + where), std::string::npos) << said;
    EXPECT_NE(said.find("check that the peer listens there"), std::string::npos) << said;
  }
}

TEST_F(InterfacesTest, EverythingWorksOverIpv6Alone) {
  Begin(Links({2000, 2000}, 9000, /*ipv6=*/true));
  AwaitSpread(2);
  ExpectRate(WriteLarge(1), BytesPerSecond(4000), "IPv6, 2 links of 2 Gbit/s");
  network_->SetLink(0, false);
  ExpectRate(WriteLarge(2), BytesPerSecond(2000), "IPv6, one link");
}

TEST_F(InterfacesTest, EverythingWorksWithSmallFrames) {
  Begin(Links({2000, 2000}, 1500));
  AwaitSpread(2);
  ExpectRate(WriteLarge(1), BytesPerSecond(4000), "MTU 1500, 2 links of 2 Gbit/s");
}

// ---- several interfaces in one subnet -----------------------------------------------------------

class SubnetTest : public InterfacesTest, public ::testing::WithParamInterface<bool> {
 protected:
  // Two links of one subnet, IPv6 or not. Begin() would connect and measure by the first one alone.
  void BeginBy(std::size_t link, const Settings& settings) {
    PairOptions options = Links({0, 0}, 9000, /*ipv6=*/GetParam());
    options.one_subnet = true;
    network_.emplace(options);
    far_.emplace(network_->far(), settings);
    near_.emplace(network_->near(), settings);
    const std::string host = network_->FarAddress(link);
    near_->ConnectTo(GetParam() ? fmt::format("[{}]:{}", host, kPort)
                                : fmt::format("{}:{}", host, kPort));
    far_->Accept();
  }
  // A transfer by each side.
  void WriteBothWays() {
    for (const auto& [from, to] : {std::pair{&*near_, &*far_}, std::pair{&*far_, &*near_}}) {
      auto& key = keys_[from];
      if (key.empty()) {
        key = to->Region("in", kFlowPumped, 1000);
        from->Region("out", kFlowPumped, 1);
      }
      from->Ask("write out " + ToHex(key));
      ASSERT_EQ(from->Outcome(), "done");
      EXPECT_EQ(to->Digest("in"), from->Digest("out"));
    }
  }

  std::map<EnginePeer*, std::vector<std::byte>> keys_;  // of the other side's region
};

TEST_P(SubnetTest, AListThatNamesTheSecondLinkUsesThatLinkBothWays) {
  BeginBy(1, TestSettings({"interfaces=l1"}));
  WriteBothWays();
  for (const std::string& interface : near_->Interfaces()) EXPECT_EQ(interface, "l1");
  for (const std::string& network : {network_->near(), network_->far()}) {
    EXPECT_GE(network_->SentBytes(network, 1), kFlowPumped) << network;
    EXPECT_LT(network_->SentBytes(network, 0), kMiB) << network;
  }
}

TEST_P(SubnetTest, WithoutAListBothLinksCarry) {
  BeginBy(0, TestSettings());
  AwaitSpread(2);
  const Deadline deadline = TestDeadline();
  const auto both_carry = [this] {
    for (const std::string& network : {network_->near(), network_->far()}) {
      for (const std::size_t link : {0U, 1U}) {
        if (network_->SentBytes(network, link) < kMiB) return false;
      }
    }
    return true;
  };
  do {
    WriteBothWays();
  } while (!both_carry() && !HasFailure() && !deadline.expired());
  EXPECT_TRUE(both_carry());
}

INSTANTIATE_TEST_SUITE_P(Families, SubnetTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Ipv6" : "Ipv4"; });

}  // namespace
}  // namespace ferry::tests
