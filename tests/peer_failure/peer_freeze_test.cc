// Tests a peer process that is stopped (SIGSTOP): its kernel still accepts bytes, so silence is
// the only symptom.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "tests/load/posted_operations.h"
#include "tests/support/engine_peer.h"
#include "tests/support/zero_copy_test_base.h"

namespace ferry::tests {
namespace {

using transfer::Connection;
using transfer::Endpoint;
using transfer::Operation;
using transfer::RemoteRegion;
using transfer::TransferPart;

constexpr std::uint64_t kFreezeBulk = 64 * kMiB;
constexpr std::uint64_t kFreezeEarlyWord = kFreezeBulk / 8 / sizeof(std::uint64_t);

constexpr std::string_view kText = "is anybody there?";

std::vector<TransferPart> Whole(const transfer::Region& local, const RemoteRegion& remote) {
  std::vector<TransferPart> parts(1);
  parts[0].local = &local;
  parts[0].remote = &remote;
  parts[0].blocks.Add({.dst = 0, .src = 0, .len = local.memory().size()});
  return parts;
}

Operation WriteBy(Connection& connection, const PatternRegion& source, const RemoteRegion& target,
                  milliseconds wait) {
  const auto prepared = Must(connection.PrepareWrite(Whole(source.region, target)));
  return Must(connection.Write(prepared, {.deadline = Deadline::After(wait)}));
}

Operation ReadBy(Connection& connection, const PatternRegion& destination,
                 const RemoteRegion& source, milliseconds wait) {
  const auto prepared = Must(connection.PrepareRead(Whole(destination.region, source)));
  return Must(connection.Read(prepared, {.deadline = Deadline::After(wait)}));
}

// Lets time pass; the connection stays good.
void LetPass(Connection& connection, milliseconds time) {
  const auto nothing = connection.TakeNotification(Deadline::After(time));
  ASSERT_FALSE(nothing);
  ASSERT_EQ(nothing.error().code(), Code::kTimedOut) << nothing.error().ToString();
}

void Stop(EnginePeer& peer) { Must(peer.process().Stop(TestDeadline())); }

class PeerFreeze : public ZeroCopyTest {
 protected:
  // The peer runs on: it notices the loss too, its memory is left alone from then on, and nothing
  // that the source held after the operation's end has come into it.
  void ExpectPeerLetsGo(LinkedPeer* link) {
    EnginePeer& peer = link->peer;
    // Spliced pages may still be in the peer's socket. The peer checks for a reset before each
    // read, but if it was stopped between the check and the read, that one read goes on.
    const std::uint64_t may_mix =
        GetParam() == "off" ? 0 : link->connection.Info().lanes.size() * Config().slice_bytes;
    const Stopwatch since;
    peer.process().Continue();
    std::string lost = peer.TakeNotification(kTimeout);
    // It may have come before the loss was known.
    if (lost == kText) lost = peer.TakeNotification(kTimeout);
    ExpectWithin(since.elapsed(), kPeerTimeout + 2 * kHeartbeat, "the loss as the peer sees it");
    EXPECT_TRUE(lost.starts_with("PeerLost")) << lost;
    const std::uint32_t right_after = peer.Digest("in");
    peer.Deregister("in");
    EXPECT_EQ(peer.Digest("in"), right_after) << "memory was written after the loss was reported";
    EXPECT_LE(peer.TakeCensus("in", kPeerInSeed, kSourceSeed).foreign, may_mix);
    EXPECT_EQ(peer.Quit(), 0);
  }
};
INSTANTIATE_TEST_SUITE_P(ZeroCopySend, PeerFreeze, ZeroCopyModes(), ZeroCopyName);

TEST_P(PeerFreeze, EndsEveryKindOfOperationAfterThePeerTimeout) {
  LinkedPeer link(FastZeroCopySettings());
  const PatternRegion source(link.endpoint, kFreezeBulk, kSourceSeed);
  const PatternRegion destination(link.endpoint, kFreezeBulk, kDestinationSeed);
  const auto in = Must(link.connection.Import(link.peer.Region("in", kFreezeBulk, kPeerInSeed)));
  const auto out = Must(link.connection.Import(link.peer.Region("out", kFreezeBulk, kPeerOutSeed)));
  std::vector<std::byte> received(kMiB);

  PostedOperations posted;
  posted.Add("receive", link.connection.Recv(7, ~0ull, received));
  posted.Add("read", link.connection.Read(destination.region, 0, out, 0, kFreezeBulk));
  posted.Add("write", link.connection.Write(source.region, 0, in, 0, kFreezeBulk));
  link.peer.AwaitChange("in", kFreezeEarlyWord, kPeerInSeed);
  Stop(link.peer);
  const Stopwatch since;
  posted.Add("notification", link.connection.Notify(std::as_bytes(std::span(kText))));
  posted.Add("small send", link.connection.Send(8, std::as_bytes(std::span(kText))));
  posted.Add("large send", link.connection.Send(9, destination.bytes().last(kMiB)));

  posted.ExpectAllEnd(Code::kPeerLost, since, kPeerTimeout + 2 * kHeartbeat);
  EXPECT_GE(since.elapsed(), kPeerTimeout - 2 * kHeartbeat) << "given up too early";
  Fill(source.bytes(), kLaterSeed);
  const std::uint32_t right_after = destination.Digest();
  ExpectPeerLetsGo(&link);
  { const Endpoint gone = std::move(link.endpoint); }
  EXPECT_EQ(destination.Digest(), right_after);
  EXPECT_TRUE(destination.memory.GuardsIntact());
  EXPECT_EQ(TakeCensus(destination.bytes(), kDestinationSeed, kPeerOutSeed).foreign, 0u);
  posted.ExpectEndedOnce();
}

TEST_P(PeerFreeze, TimesAWriteOutByItsOwnDeadlineAndTheGrace) {
  constexpr milliseconds kDeadline{2000};
  LinkedPeer link(FastZeroCopySettings({"peer_timeout=30s"}));
  const PatternRegion source(link.endpoint, kFreezeBulk, kSourceSeed);
  const auto in = Must(link.connection.Import(link.peer.Region("in", kFreezeBulk, kPeerInSeed)));
  std::vector<std::byte> received(kMiB);
  PostedOperations posted;
  PostedOperations bystanders;
  bystanders.Add("receive", link.connection.Recv(7, ~0ull, received));
  const Stopwatch since;
  posted.Add("write", WriteBy(link.connection, source, in, kDeadline));
  link.peer.AwaitChange("in", kFreezeEarlyWord, kPeerInSeed);
  Stop(link.peer);

  posted.ExpectAllEnd(Code::kTimedOut, since, kDeadline + kDrainGrace);
  Fill(source.bytes(), kLaterSeed);
  // Only a closed connection takes back what the frozen peer has not acknowledged.
  bystanders.ExpectAllEnd(Code::kPeerLost, since, kDeadline + kDrainGrace);
  EXPECT_TRUE(link.connection.lost());
  ExpectPeerLetsGo(&link);
  posted.ExpectEndedOnce();
  bystanders.ExpectEndedOnce();
}

// All of it lay in the peer's socket, from where it came into place after the write had ended.
TEST_P(PeerFreeze, KeepsASmallWriteThatTimedOutFromEverArriving) {
  constexpr std::uint64_t kSmall = 32 * kKiB;
  constexpr milliseconds kDeadline{1000};
  LinkedPeer link(FastZeroCopySettings({"peer_timeout=30s"}));
  const PatternRegion source(link.endpoint, kSmall, kSourceSeed);
  const auto in = Must(link.connection.Import(link.peer.Region("in", kSmall, kPeerInSeed)));
  Stop(link.peer);
  PostedOperations posted;
  const Stopwatch since;
  posted.Add("small write", WriteBy(link.connection, source, in, kDeadline));
  posted.ExpectAllEnd(Code::kTimedOut, since, kDeadline + kDrainGrace);
  link.peer.process().Continue();
  const std::string lost = link.peer.TakeNotification(kTimeout);
  EXPECT_TRUE(lost.starts_with("PeerLost")) << lost;
  EXPECT_EQ(link.peer.TakeCensus("in", kPeerInSeed, kSourceSeed).before, kSmall);
  EXPECT_EQ(link.peer.Quit(), 0);
}

TEST_P(PeerFreeze, TimesAReadOutByItsOwnDeadlineAndKeepsTheConnection) {
  constexpr milliseconds kDeadline{1000};
  LinkedPeer link(FastZeroCopySettings({"peer_timeout=30s"}));
  PatternRegion destination(link.endpoint, kFreezeBulk, kDestinationSeed);
  const auto out = Must(link.connection.Import(link.peer.Region("out", kFreezeBulk, kPeerOutSeed)));
  PostedOperations posted;
  const Stopwatch since;
  posted.Add("read", ReadBy(link.connection, destination, out, kDeadline));
  ASSERT_TRUE(
      WaitForChange(destination.bytes(), kFreezeEarlyWord, kDestinationSeed, TestDeadline()));
  Stop(link.peer);

  posted.ExpectAllEnd(Code::kTimedOut, since, kDeadline + kDrainGrace);
  const std::uint32_t right_after = destination.Digest();
  EXPECT_LT(TakeCensus(destination.bytes(), kDestinationSeed, kPeerOutSeed).after, kFreezeBulk);
  link.peer.process().Continue();
  // After a whole round trip all that was asked for before it has come.
  const PatternRegion other(link.endpoint, kMiB, kDestinationSeed);
  EXPECT_TRUE(Must(link.connection.Read(other.region, 0, out, 0, kMiB)).Wait(TestDeadline()));
  EXPECT_EQ(TakeCensus(other.bytes(), 0, kPeerOutSeed).after, kMiB);
  EXPECT_EQ(destination.Digest(), right_after) << "memory was written after the read's end";
  EXPECT_TRUE(ReadBy(link.connection, destination, out, kTimeout).Wait());
  EXPECT_EQ(TakeCensus(destination.bytes(), 0, kPeerOutSeed).after, kFreezeBulk);
  EXPECT_EQ(link.peer.Quit(), 0);
  posted.ExpectEndedOnce();
}

TEST_P(PeerFreeze, ThatIsShorterThanThePeerTimeoutOnlyDelaysTheTransfer) {
  LinkedPeer link(FastZeroCopySettings({"peer_timeout=4s"}));
  const PatternRegion source(link.endpoint, kFreezeBulk, kSourceSeed);
  const PatternRegion destination(link.endpoint, kFreezeBulk, kDestinationSeed);
  const auto in = Must(link.connection.Import(link.peer.Region("in", kFreezeBulk, kPeerInSeed)));
  const auto out = Must(link.connection.Import(link.peer.Region("out", kFreezeBulk, kPeerOutSeed)));
  Operation write = WriteBy(link.connection, source, in, kTimeout);
  Operation read = ReadBy(link.connection, destination, out, kTimeout);
  link.peer.AwaitChange("in", kFreezeEarlyWord, kPeerInSeed);
  Stop(link.peer);
  LetPass(link.connection, milliseconds(2000));
  EXPECT_FALSE(write.Poll() && read.Poll());
  link.peer.process().Continue();

  const Status written = write.Wait(TestDeadline());
  EXPECT_TRUE(written) << written.error().ToString();
  const Status was_read = read.Wait(TestDeadline());
  EXPECT_TRUE(was_read) << was_read.error().ToString();
  EXPECT_EQ(link.peer.TakeCensus("in", kPeerInSeed, kSourceSeed).after, kFreezeBulk);
  EXPECT_EQ(TakeCensus(destination.bytes(), kDestinationSeed, kPeerOutSeed).after, kFreezeBulk);
  EXPECT_EQ(link.peer.Quit(), 0);
}

// The peer that was stopped found its timers due before it looked at its sockets, and took the
// silence for ours.
TEST(Freeze, OfOnesOwnIsNotMistakenForThePeersSilence) {
  EnginePeer peer;
  Endpoint with_long_timeouts =
      Must(Endpoint::Create(ConfigOf(FastSettings({"peer_timeout=60s"}))));
  Connection connection = Must(with_long_timeouts.Connect(peer.address(), TestDeadline()));
  peer.Accept();
  Stop(peer);
  LetPass(connection, kPeerTimeout + 3 * kHeartbeat);
  peer.process().Continue();
  const PatternRegion source(with_long_timeouts, kMiB, kSourceSeed);
  const auto in = Must(connection.Import(peer.Region("in", kMiB, kPeerInSeed)));
  const Status written = WriteBy(connection, source, in, kTimeout).Wait(TestDeadline());
  EXPECT_TRUE(written) << written.error().ToString();
  EXPECT_EQ(peer.Quit(), 0);
}

// Nothing lies in its sockets when they run again, and neither is to blame.
TEST(Freeze, OfBothSidesAtOnceIsNotMistakenForSilence) {
  EnginePeer caller;
  EnginePeer callee;
  caller.ConnectTo(callee.host_and_port());
  callee.Accept();
  Stop(caller);
  Stop(callee);
  std::this_thread::sleep_for(2 * kPeerTimeout);
  caller.process().Continue();
  callee.process().Continue();
  EXPECT_TRUE(callee.TakeNotification(4 * kHeartbeat).starts_with("TimedOut"));
  EXPECT_TRUE(caller.TakeNotification(milliseconds(1)).starts_with("TimedOut"));
  EXPECT_EQ(caller.Quit(), 0);
  EXPECT_EQ(callee.Quit(), 0);
}

// Each time it found its timer late, and did not count that time as silence.
TEST(Freeze, OfOnesOwnAgainAndAgainDoesNotKeepAPeerThatIsSilent) {
  constexpr milliseconds kRuns{50};
  constexpr milliseconds kStands{700};
  // Many beats in a timeout, so that little would come together by what counts between the gaps.
  EnginePeer peer(FastSettings({"heartbeat_interval=50"}));
  EnginePeer silent;
  peer.ConnectTo(silent.host_and_port());
  silent.Accept();
  Stop(silent);
  const Stopwatch since;
  peer.Say("notification 60000");
  std::string heard;
  while (heard.empty() && since.elapsed() < 3 * kPeerTimeout + 4 * kStands + kSlack) {
    Stop(peer);
    std::this_thread::sleep_for(kStands);
    peer.process().Continue();
    if (auto line = peer.process().Hear(Deadline::After(kRuns))) heard = *std::move(line);
  }
  EXPECT_THAT(heard, testing::HasSubstr("PeerLost"));
  // Three gaps: one ends before the peer's last bytes are noticed, one does not count as silence,
  // and the timeout passes in one.
  ExpectWithin(since.elapsed(), kPeerTimeout + 2 * kHeartbeat + 3 * (kStands + kRuns), "the loss");
}

TEST(Freeze, DoesNotDelayCloseOrTheEndOfTheEndpoint) {
  LinkedPeer link(FastSettings({"peer_timeout=30s"}));
  Connection second = Must(link.endpoint.Connect(link.peer.address(), TestDeadline()));
  const PatternRegion source(link.endpoint, kFreezeBulk, kSourceSeed);
  const auto in = Must(link.connection.Import(link.peer.Region("in", kFreezeBulk, kPeerInSeed)));
  Stop(link.peer);
  PostedOperations posted;
  posted.Add("write", link.connection.Write(source.region, 0, in, 0, kFreezeBulk));
  posted.Add("write to be abandoned", second.Write(source.region, 0, in, 0, kFreezeBulk));

  const Stopwatch close;
  link.connection.Close();
  ExpectWithin(close.elapsed(), milliseconds(0), "Close()");
  const Stopwatch end;
  { const Endpoint gone = std::move(link.endpoint); }
  ExpectWithin(end.elapsed(), milliseconds(0), "the end of the endpoint");
  posted.ExpectAllEnd(Code::kCancelled, close, milliseconds(0));
  posted.ExpectEndedOnce();
}

TEST(Freeze, IsNoticedByConnectAtItsDeadline) {
  constexpr milliseconds kDeadline{500};
  EnginePeer peer;
  Endpoint endpoint = Must(Endpoint::Create(ConfigOf(FastSettings())));
  Stop(peer);
  const Stopwatch since;
  const auto connection = endpoint.Connect(peer.address(), Deadline::After(kDeadline));
  ExpectWithin(since.elapsed(), kDeadline, "the end of Connect()");
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code(), Code::kTimedOut) << connection.error().ToString();
}

TEST(Freeze, OfOnePeerLeavesTheOthersAtWork) {
  const Settings settings = FastSettings({"peer_timeout=60s"});
  Endpoint endpoint = Must(Endpoint::Create(ConfigOf(settings)));
  const PatternRegion source(endpoint, kFreezeBulk, kSourceSeed);
  struct Linked {
    EnginePeer peer;
    Connection connection;
    std::vector<Operation> operations;
  };
  std::vector<Linked> linked;
  for (int i = 0; i < 3; ++i) {
    EnginePeer peer(settings);
    Connection connection = Must(endpoint.Connect(peer.address(), TestDeadline()));
    peer.Accept();
    linked.push_back({std::move(peer), std::move(connection), {}});
  }
  for (Linked& one : linked) {
    const auto in = Must(one.connection.Import(one.peer.Region("in", kFreezeBulk, kPeerInSeed)));
    one.operations.push_back(WriteBy(one.connection, source, in, kTimeout));
  }
  Linked& frozen = linked.front();
  frozen.peer.AwaitChange("in", 0, kPeerInSeed);
  Stop(frozen.peer);

  const auto expect_whole = [](Linked& one) {
    const Status written = one.operations.front().Wait(TestDeadline());
    EXPECT_TRUE(written) << written.error().ToString();
    EXPECT_EQ(one.peer.TakeCensus("in", kPeerInSeed, kSourceSeed).after, kFreezeBulk);
    EXPECT_EQ(one.peer.Quit(), 0);
  };
  expect_whole(linked[1]);
  expect_whole(linked[2]);
  frozen.peer.process().Continue();
  expect_whole(frozen);
}

}  // namespace
}  // namespace ferry::tests
