// Tests a connection that one side closes while both have operations in flight.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "tests/load/posted_operations.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Endpoint;
using transfer::Operation;

constexpr std::uint64_t kCloseBulk = 64 * kMiB;
constexpr std::uint64_t kCloseEarlyWord = kCloseBulk / 8 / sizeof(std::uint64_t);

// Closes in the middle of many messages; returns how many receives that ended.
std::size_t CloseAmongMessages() {
  constexpr std::size_t kMessage = 1024;
  constexpr std::size_t kReceives = 20000;
  constexpr std::uint64_t kUntouched = 2;
  LinkedPeer link;
  link.peer.Region("message", kMessage, 1);
  GuardedMemory buffers(kReceives * kMessage);
  std::vector<Operation> receives;
  for (std::size_t i = 0; i < kReceives; ++i) {
    const auto buffer = buffers.bytes().subspan(i * kMessage, kMessage);
    Fill(buffer, kUntouched);
    receives.push_back(Must(link.connection.Recv(5, ~0ull, buffer)));
  }
  link.peer.Say(fmt::format("send message 5 {} {}", kReceives, kMessage));
  EXPECT_TRUE(receives.front().Wait(TestDeadline()));
  link.connection.Close();

  std::size_t ended_by_close = 0;
  std::size_t touched = 0;
  for (std::size_t i = 0; i < kReceives; ++i) {
    if (receives[i].Wait(TestDeadline())) continue;
    ++ended_by_close;
    const auto buffer = buffers.bytes().subspan(i * kMessage, kMessage);
    if (TakeCensus(buffer, kUntouched, 1).before != kMessage) ++touched;
  }
  EXPECT_LE(touched, 1u) << "more than the one message that was on its way in";
  EXPECT_TRUE(buffers.GuardsIntact());
  return ended_by_close;
}

// Bytes that arrived between the end of the operations and the end of the lanes were put into the
// buffers of receives that had ended.
TEST(Close, LeavesTheBuffersOfReceivesAloneThatItEnded) {
  constexpr int kRounds = 4;
  std::size_t ended_by_close = 0;
  for (int round = 0; round < kRounds; ++round) ended_by_close += CloseAmongMessages();
  EXPECT_GT(ended_by_close, 0u) << "everything had come before";
}

TEST(Close, EndsWhatIsInFlightHereByCancelledAndThereByPeerLost) {
  LinkedPeer link(PacedSettings());
  const PatternRegion source(link.endpoint, kCloseBulk, 1);
  const PatternRegion destination(link.endpoint, kCloseBulk, 2);
  const PatternRegion served(link.endpoint, kCloseBulk, 5);
  const auto in = Must(link.connection.Import(link.peer.Region("in", kCloseBulk, 3)));
  const auto out = Must(link.connection.Import(link.peer.Region("out", kCloseBulk, 4)));
  link.peer.PostWrite("out", served.region);
  PostedOperations posted;
  posted.Add("write", link.connection.Write(source.region, 0, in, 0, kCloseBulk));
  posted.Add("read", link.connection.Read(destination.region, 0, out, 0, kCloseBulk));
  link.peer.AwaitChange("in", kCloseEarlyWord, 3);
  const Stopwatch since;
  link.connection.Close();
  ExpectWithin(since.elapsed(), milliseconds(0), "Close()");
  const std::uint32_t read_here = destination.Digest();
  const std::uint32_t written_here = served.Digest();
  posted.ExpectAllEnd(Code::kCancelled, since, milliseconds(0));

  const std::string there = link.peer.Outcome();
  EXPECT_TRUE(there.starts_with("PeerLost")) << there;
  const std::string lost = link.peer.TakeNotification(kTimeout);
  EXPECT_TRUE(lost.starts_with("PeerLost")) << lost;
  const std::uint32_t written_there = link.peer.Digest("in");
  { const Endpoint gone = std::move(link.endpoint); }
  EXPECT_EQ(destination.Digest(), read_here);
  EXPECT_EQ(served.Digest(), written_here);
  EXPECT_EQ(link.peer.Digest("in"), written_there);
  EXPECT_EQ(TakeCensus(destination.bytes(), 2, 4).foreign, 0u);
  EXPECT_EQ(TakeCensus(served.bytes(), 5, 4).foreign, 0u);
  EXPECT_EQ(link.peer.TakeCensus("in", 3, 1).foreign, 0u);
  posted.ExpectEndedOnce();
  EXPECT_EQ(link.peer.Quit(), 0);
}

// A close with a reset took the last acknowledgement back, and with it the peer's success.
TEST(Close, RightAfterAMessageCameStillLetsItsSenderSucceed) {
  constexpr int kRounds = 30;
  Endpoint endpoint = Must(Endpoint::Create(ConfigOf(FastSettings())));
  EnginePeer peer;
  peer.Region("message", 256 * kKiB, 1);
  std::vector<std::byte> buffer(256 * kKiB);
  for (int round = 0; round < kRounds; ++round) {
    transfer::Connection connection = peer.AcceptedBy(endpoint);
    Operation receive = Must(connection.Recv(5, ~0ull, buffer));
    peer.Ask(round % 2 == 0 ? "send message 5" : "send message 5 1 100");
    const Status received = receive.Wait(TestDeadline());
    ASSERT_TRUE(received) << received.error().ToString();
    connection.Close();
    EXPECT_EQ(peer.Outcome(), "done") << "round " << round;
  }
  EXPECT_EQ(peer.Quit(), 0);
}

}  // namespace
}  // namespace ferry::tests
