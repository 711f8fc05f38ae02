// Tests operations that are cancelled, or reach their deadline, in the middle: they end soon,
// afterwards neither process's memory changes, and the connection stays usable.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "tests/support/engine_peer.h"
#include "tests/support/zero_copy_test_base.h"

namespace ferry::tests {
namespace {

using transfer::Operation;
using transfer::ReadOptions;
using transfer::RemoteRegion;
using transfer::TransferPart;
using transfer::WriteOptions;

constexpr std::uint64_t kCutBulk = 64 * kMiB;
constexpr std::uint64_t kCutEarlyWord = kCutBulk / 8 / sizeof(std::uint64_t);
constexpr milliseconds kShort{5};  // at first; doubled until something has moved by then

WriteOptions Options(Deadline deadline, std::string_view notification = {}) {
  return {.deadline = deadline, .notification = std::as_bytes(std::span(notification))};
}

class Cut : public ZeroCopyTest {
 protected:
  Cut() : link_(FastZeroCopySettings()) {}

  RemoteRegion PeerRegion(const std::string& name, std::uint64_t bytes) {
    return Must(link_.connection.Import(link_.peer.Region(name, bytes, kPeerInSeed)));
  }
  std::vector<TransferPart> Whole(const PatternRegion& local, const RemoteRegion& remote) const {
    std::vector<TransferPart> parts(1);
    parts[0].local = &local.region;
    parts[0].remote = &remote;
    parts[0].blocks.Add({.dst = 0, .src = 0, .len = local.bytes().size()});
    return parts;
  }
  Operation Write(const PatternRegion& local, const RemoteRegion& remote,
                  const WriteOptions& options) {
    return Must(
        link_.connection.Write(Must(link_.connection.PrepareWrite(Whole(local, remote))), options));
  }
  Operation Read(const PatternRegion& local, const RemoteRegion& remote,
                 const ReadOptions& options) {
    return Must(
        link_.connection.Read(Must(link_.connection.PrepareRead(Whole(local, remote))), options));
  }
  static void ExpectOk(Operation operation) {
    const Status status = operation.Wait(TestDeadline());
    EXPECT_TRUE(status) << status.error().ToString();
  }
  // Whether it ended early, with `code`.
  static bool EndsEarly(Operation operation, Code code, milliseconds bound) {
    const Stopwatch since;
    const Status status = operation.Wait(TestDeadline());
    ExpectWithin(since.elapsed(), bound, "the end of the operation");
    EXPECT_TRUE(operation.Poll());
    if (status) return false;
    EXPECT_EQ(status.error().code(), code) << status.error().ToString();
    return true;
  }
  // A write and a read of something else.
  void RoundTrip() {
    const PatternRegion small(link_.endpoint, kMiB, kSourceSeed);
    const RemoteRegion elsewhere = PeerRegion(fmt::format("elsewhere-{}", ++round_trips_), kMiB);
    ExpectOk(Write(small, elsewhere, Options(TestDeadline())));
    Fill(small.bytes(), kLaterSeed);
    ExpectOk(Read(small, elsewhere, {.deadline = TestDeadline()}));
    EXPECT_EQ(TakeCensus(small.bytes(), 0, kSourceSeed).after, kMiB);
  }

  // A write to "in" has just ended early: the target is what it is, whatever the source becomes.
  // Returns whether that was in the middle.
  bool ExpectTargetIsLeftAlone(const PatternRegion& source) {
    link_.peer.Say("digest in");
    Fill(source.bytes(), kLaterSeed);
    const std::string right_after = link_.peer.Answer();
    RoundTrip();
    EXPECT_EQ(link_.peer.Ask("digest in"), right_after) << "memory was written after the end";
    const Census census = link_.peer.TakeCensus("in", kPeerInSeed, kSourceSeed);
    EXPECT_EQ(census.foreign, 0u);
    EXPECT_FALSE(link_.connection.lost());
    return census.before > 0 && census.after > 0;
  }
  // The same of a read.
  bool ExpectDestinationIsLeftAlone(const PatternRegion& destination) {
    const std::uint32_t right_after = destination.Digest();
    RoundTrip();
    EXPECT_EQ(destination.Digest(), right_after) << "memory was written after the end";
    EXPECT_TRUE(destination.memory.GuardsIntact());
    const Census census = TakeCensus(destination.bytes(), kDestinationSeed, kPeerInSeed);
    EXPECT_EQ(census.foreign, 0u);
    EXPECT_FALSE(link_.connection.lost());
    return census.before > 0 && census.after > 0;
  }

  void FillBothSides(const PatternRegion& source) {
    Fill(source.bytes(), kSourceSeed);
    link_.peer.Fill("in", kPeerInSeed);
  }
  // Whether the write to "in" ends in the middle, leaving the target alone.
  bool CutsWrite(const PatternRegion& source, const Operation& write, Code code,
                 milliseconds bound) {
    const bool early = EndsEarly(write, code, bound);
    if (early && ExpectTargetIsLeftAlone(source)) return true;
    ++too_late_;
    return false;
  }
  // The connection carries a whole write, with its notification and no earlier one.
  void ExpectWritesStill(const PatternRegion& source, const RemoteRegion& in) {
    Fill(source.bytes(), kLaterSeed);
    ExpectOk(Write(source, in, Options(TestDeadline(), "said")));
    std::string text = link_.peer.TakeNotification(kTimeout);
    for (; text == "never said" && too_late_ > 0; --too_late_) {
      text = link_.peer.TakeNotification(kTimeout);
    }
    EXPECT_EQ(text, "said");
    EXPECT_EQ(link_.peer.TakeCensus("in", kPeerInSeed, kLaterSeed).after, kCutBulk);
    EXPECT_EQ(link_.peer.Quit(), 0);
  }
  void ExpectReadsStill(const PatternRegion& destination, const RemoteRegion& out) {
    ExpectOk(Read(destination, out, {.deadline = TestDeadline()}));
    EXPECT_EQ(TakeCensus(destination.bytes(), 0, kPeerInSeed).after, kCutBulk);
    EXPECT_EQ(link_.peer.Quit(), 0);
  }

  LinkedPeer link_;
  int round_trips_ = 0;
  int too_late_ = 0;  // writes that may have been whole, with their notifications, when they ended
};
INSTANTIATE_TEST_SUITE_P(ZeroCopySend, Cut, ZeroCopyModes(), ZeroCopyName);

TEST_P(Cut, WriteByCancelLeavesTheTargetAloneAndTheConnectionGood) {
  const PatternRegion source(link_.endpoint, kCutBulk, kSourceSeed);
  const RemoteRegion in = PeerRegion("in", kCutBulk);
  UntilInTheMiddle([&] {
    FillBothSides(source);
    Operation write = Write(source, in, Options(TestDeadline(), "never said"));
    link_.peer.AwaitChange("in", kCutEarlyWord, kPeerInSeed);
    write.Cancel();
    return CutsWrite(source, write, Code::kCancelled, kDrainGrace);
  });
  ExpectWritesStill(source, in);
}

TEST_P(Cut, WriteByItsDeadlineLeavesTheTargetAloneAndTheConnectionGood) {
  const PatternRegion source(link_.endpoint, kCutBulk, kSourceSeed);
  const RemoteRegion in = PeerRegion("in", kCutBulk);
  milliseconds time = kShort;
  UntilInTheMiddle([&] {
    FillBothSides(source);
    const Operation write = Write(source, in, Options(Deadline::After(time), "never said"));
    const milliseconds bound = std::exchange(time, 2 * time) + kDrainGrace;
    return CutsWrite(source, write, Code::kTimedOut, bound);
  });
  ExpectWritesStill(source, in);
}

TEST_P(Cut, ReadByCancelLeavesItsDestinationAloneAndTheConnectionGood) {
  const PatternRegion destination(link_.endpoint, kCutBulk, kDestinationSeed);
  const RemoteRegion out = PeerRegion("out", kCutBulk);
  UntilInTheMiddle([&] {
    Fill(destination.bytes(), kDestinationSeed);
    Operation read = Read(destination, out, {.deadline = TestDeadline()});
    if (!WaitForChange(destination.bytes(), kCutEarlyWord, kDestinationSeed, TestDeadline()))
      return false;
    read.Cancel();
    return EndsEarly(read, Code::kCancelled, kDrainGrace) &&
           ExpectDestinationIsLeftAlone(destination);
  });
  ExpectReadsStill(destination, out);
}

TEST_P(Cut, ReadByItsDeadlineLeavesItsDestinationAloneAndTheConnectionGood) {
  const PatternRegion destination(link_.endpoint, kCutBulk, kDestinationSeed);
  const RemoteRegion out = PeerRegion("out", kCutBulk);
  milliseconds time = kShort;
  UntilInTheMiddle([&] {
    Fill(destination.bytes(), kDestinationSeed);
    const Operation read = Read(destination, out, {.deadline = Deadline::After(time)});
    const milliseconds bound = std::exchange(time, 2 * time) + kDrainGrace;
    return EndsEarly(read, Code::kTimedOut, bound) && ExpectDestinationIsLeftAlone(destination);
  });
  ExpectReadsStill(destination, out);
}

TEST_P(Cut, ReceiveByCancelLeavesItsBufferAloneAndTellsTheSender) {
  GuardedMemory buffer(kCutBulk);
  link_.peer.Region("message", kCutBulk, kPeerInSeed);
  UntilInTheMiddle([&] {
    Fill(buffer.bytes(), kDestinationSeed);
    Operation receive = Must(link_.connection.Recv(5, ~0ull, buffer.bytes()));
    link_.peer.Ask("send message 5");
    if (!WaitForChange(buffer.bytes(), kCutEarlyWord, kDestinationSeed, TestDeadline()))
      return false;
    receive.Cancel();
    const bool early = EndsEarly(receive, Code::kCancelled, kDrainGrace);
    const Census right_after = TakeCensus(buffer.bytes(), kDestinationSeed, kPeerInSeed);
    const std::string sent = link_.peer.Outcome();
    if (!early || sent == "done") return false;
    EXPECT_TRUE(sent.starts_with("Refused") || sent.starts_with("Cancelled")) << sent;
    RoundTrip();
    const Census later = TakeCensus(buffer.bytes(), kDestinationSeed, kPeerInSeed);
    EXPECT_EQ(later.after, right_after.after);
    EXPECT_EQ(later.foreign, 0u);
    return later.before > 0;
  });
  EXPECT_TRUE(buffer.GuardsIntact());
  EXPECT_FALSE(link_.connection.lost());
  EXPECT_EQ(link_.peer.Quit(), 0);
}

TEST_P(Cut, WriteAtAnyMomentEitherEndsWellOrLeavesTheTargetAlone) {
  constexpr std::uint64_t kSome = 16 * kMiB;
  constexpr int kRounds = 24;
  const PatternRegion source(link_.endpoint, kSome, kSourceSeed);
  const RemoteRegion in = PeerRegion("in", kSome);
  for (int round = 0; round < kRounds; ++round) {
    link_.peer.Fill("in", kPeerInSeed);
    Fill(source.bytes(), kSourceSeed);
    Operation write = Write(source, in, Options(TestDeadline()));
    // Later in each round; the last ones come too late.
    const Deadline moment = Deadline::After(microseconds(500 * round));
    while (!write.Poll() && !moment.expired()) {
    }
    write.Cancel();
    const Status status = write.Wait(TestDeadline());
    link_.peer.Say("digest in");
    Fill(source.bytes(), kLaterSeed);
    const std::string right_after = link_.peer.Answer();
    const Census census = link_.peer.TakeCensus("in", kPeerInSeed, kSourceSeed);
    EXPECT_EQ(census.foreign, 0u) << "round " << round;
    EXPECT_TRUE(!status || census.after == kSome) << "round " << round;
    EXPECT_TRUE(status || status.error().code() == Code::kCancelled) << status.error().ToString();
    EXPECT_EQ(link_.peer.Ask("digest in"), right_after) << "round " << round;
  }
  EXPECT_FALSE(link_.connection.lost());
  EXPECT_EQ(link_.peer.Quit(), 0);
}

}  // namespace
}  // namespace ferry::tests
