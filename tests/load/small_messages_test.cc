// Tests that small messages do not wait behind bulk transfers.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "ferry/core/units.h"
#include "tests/links/network_pair.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

constexpr int kRoundTrips = 50;
constexpr std::uint64_t kSlowTransfer = 64 * kMiB;

// Lanes so slow that the transfer takes seconds, and each of them long to drain.
Settings SlowLanes() { return FastSettings({"lanes=3", "lane_rate_bytes=8MiB"}); }

class SmallMessages : public ::testing::Test {
 protected:
  SmallMessages()
      : link_(SlowLanes()),
        bulk_(link_.endpoint, kSlowTransfer, kSourceSeed),
        eight_(link_.endpoint, 8, kSourceSeed),
        far_bulk_(PeerRegion("bulk", kSlowTransfer)),
        far_eight_(PeerRegion("eight", 8)) {}

  transfer::RemoteRegion PeerRegion(const std::string& name, std::uint64_t bytes) {
    return Must(link_.connection.Import(link_.peer.Region(name, bytes, kPeerInSeed)));
  }
  // One after the other: each notification is taken before the next is posted.
  void NotifyBothWays() {
    const Stopwatch watch;
    for (int i = 0; i < kRoundTrips; ++i) {
      const std::string text = fmt::format("note-{}", i);
      EXPECT_TRUE(link_.connection.Notify(std::as_bytes(std::span(text))));
      EXPECT_EQ(link_.peer.TakeNotification(kTimeout), text);
      link_.peer.Ask("notify " + text);
      const auto taken = Must(link_.connection.TakeNotification(TestDeadline()));
      EXPECT_EQ(taken.size(), text.size());
      EXPECT_EQ(link_.peer.Outcome(), "done");
    }
    fmt::print("{} notifications each way: {} ms\n", kRoundTrips, watch.elapsed().count());
  }
  void TransferEightBytesBothWays() {
    for (int i = 0; i < kRoundTrips; ++i) {
      MustDo(Must(link_.connection.Write(eight_.region, 0, far_eight_, 0, 8)).Wait(TestDeadline()));
      MustDo(Must(link_.connection.Read(eight_.region, 0, far_eight_, 0, 8)).Wait(TestDeadline()));
    }
  }
  void ExpectEndsLater(transfer::Operation* bulk) {
    EXPECT_FALSE(bulk->Poll()) << "the transfer has ended before what was to overtake it";
    MustDo(bulk->Wait(TestDeadline()));
    EXPECT_EQ(link_.peer.Digest("bulk"), bulk_.Digest());
  }

  LinkedPeer link_;
  PatternRegion bulk_;
  PatternRegion eight_;
  transfer::RemoteRegion far_bulk_;
  transfer::RemoteRegion far_eight_;
};

TEST_F(SmallMessages, OvertakeALargeWrite) {
  auto write = Must(link_.connection.Write(bulk_.region, 0, far_bulk_, 0, kSlowTransfer));
  link_.peer.AwaitChange("bulk", 0, kPeerInSeed);
  NotifyBothWays();
  TransferEightBytesBothWays();
  ExpectEndsLater(&write);
}

TEST_F(SmallMessages, OvertakeALargeRead) {
  auto read = Must(link_.connection.Read(bulk_.region, 0, far_bulk_, 0, kSlowTransfer));
  EXPECT_TRUE(WaitForChange(bulk_.bytes(), 0, kSourceSeed, TestDeadline()));
  NotifyBothWays();
  TransferEightBytesBothWays();
  ExpectEndsLater(&read);
}

// ---- how long they take -------------------------------------------------------------------------

constexpr int kTimed = 500;
constexpr std::int64_t kTimedApart = 2000;  // microseconds
constexpr std::uint64_t kLoad = 16 * kMiB;

struct Beside {
  const char* load;      // "nothing", "writes" or "reads"
  int mbits;             // of the link; 0: loopback
  bool answers = false;  // the notifications are those of the side that only answers
};

void PrintTo(const Beside& beside, std::ostream* out) {
  *out << beside.load << (beside.mbits == 0 ? " over loopback" : " over a link")
       << (beside.answers ? ", from the side that answers" : "");
}

class SmallMessageTimes : public ::testing::TestWithParam<Beside> {
 protected:
  void SetUp() override {
    if (GetParam().mbits == 0) {
      const Settings settings{"listen_host=127.0.0.1"};
      far_.emplace(settings);
      near_.emplace(settings);
      near_->ConnectTo(far_->host_and_port());
    } else {
      if (const auto missing = NetworkPair::Missing()) GTEST_SKIP() << *missing;
      const Settings settings{"port_range=7471", "insecure=on"};
      network_.emplace(PairOptions{{{GetParam().mbits}}});
      far_.emplace(network_->far(), settings);
      near_.emplace(network_->near(), settings);
      near_->ConnectTo(network_->FarAddress(0) + ":7471");
    }
    far_->Accept();
  }

  std::optional<NetworkPair> network_;
  std::optional<EnginePeer> far_;
  std::optional<EnginePeer> near_;
};

INSTANTIATE_TEST_SUITE_P(Loads, SmallMessageTimes,
                         ::testing::Values(Beside{"nothing", 0}, Beside{"writes", 0},
                                           Beside{"reads", 0}, Beside{"reads", 0, true},
                                           Beside{"writes", 1000}, Beside{"reads", 1000},
                                           Beside{"reads", 1000, true}));

// From the post to the moment when the other process has it. Its line is what
// bench/small_messages collects.
TEST_P(SmallMessageTimes, FromThePostUntilTheyAreTaken) {
  const std::string load = GetParam().load;
  if (load != "nothing") {
    const auto key = far_->Region("far", kLoad, kPeerInSeed);
    near_->Region("near", kLoad, kSourceSeed);
    near_->Pump("near", key, load == "reads");
    for (const Deadline deadline = TestDeadline(); near_->Pumped() == 0;) {
      ASSERT_FALSE(deadline.expired());
    }
  }
  const Stopwatch watch;
  const std::uint64_t before = load == "nothing" ? 0 : near_->Pumped();
  EnginePeer& sender = GetParam().answers ? *far_ : *near_;
  EnginePeer& taker = GetParam().answers ? *near_ : *far_;
  taker.Say(fmt::format("take_times {}", kTimed));
  sender.Ask(fmt::format("notify_times {} {}", kTimed, kTimedApart));
  std::istringstream words(taker.Answer());
  std::vector<std::int64_t> times{std::istream_iterator<std::int64_t>(words), {}};
  const std::uint64_t bytes = load == "nothing" ? 0 : near_->Pumped() - before;
  const double rate =
      static_cast<double>(bytes) / (1e6 * static_cast<double>(watch.elapsed().count()));
  if (load != "nothing") {
    EXPECT_EQ(near_->StopPump(), "done");
  }
  ASSERT_EQ(times.size(), std::size_t{kTimed});
  std::sort(times.begin(), times.end());
  const std::int64_t median = times[kTimed / 2];
  const std::int64_t late = times[kTimed * 99 / 100];
  fmt::print(
      "small_messages {{\"beside\": \"{}\", \"answers\": {}, \"link_mbits\": {}, \"n\": {}, "
      "\"median_us\": {}, "
      "\"p99_us\": {}, \"max_us\": {}, \"load_gbps\": {:.2f}}}\n",
      load, GetParam().answers, GetParam().mbits, kTimed, median, late, times.back(), rate);
  (void)std::fflush(stdout);
  if (!RatesAreJudged()) return;
  EXPECT_LE(median, GetParam().mbits == 0 ? 1'000 : 20'000);
  EXPECT_LE(late, GetParam().mbits == 0 ? 10'000 : 40'000);
}

}  // namespace
}  // namespace ferry::tests
