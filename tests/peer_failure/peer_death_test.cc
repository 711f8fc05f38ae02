// Tests the death of the other process: every operation ends once, with kPeerLost and soon; its
// memory is then no longer used; and only that connection is affected.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "tests/load/posted_operations.h"
#include "tests/support/engine_peer.h"
#include "tests/support/zero_copy_test_base.h"

namespace ferry::tests {
namespace {

using transfer::Endpoint;
using transfer::RemoteRegion;

constexpr std::uint64_t kDeathBulk = 64 * kMiB;
constexpr std::uint64_t kDeathEarlyWord = kDeathBulk / 8 / sizeof(std::uint64_t);
constexpr milliseconds kSoon{1000};

class PeerDeath : public ZeroCopyTest {};
INSTANTIATE_TEST_SUITE_P(ZeroCopySend, PeerDeath, ZeroCopyModes(), ZeroCopyName);

void DestroyEndpoint(Endpoint* endpoint) { const Endpoint gone = std::move(*endpoint); }

// Nothing changes the memory between now and the end of everything that could.
void ExpectQuiescent(LinkedPeer* link, const PatternRegion& destination) {
  const std::uint32_t right_after = destination.Digest();
  DestroyEndpoint(&link->endpoint);
  EXPECT_EQ(destination.Digest(), right_after) << "memory was written after the operation's end";
  EXPECT_TRUE(destination.memory.GuardsIntact());
  EXPECT_EQ(TakeCensus(destination.bytes(), kDestinationSeed, kPeerOutSeed).foreign, 0u);
}

TEST_P(PeerDeath, EndsEveryKindOfOperationInTheMiddleOfAWrite) {
  LinkedPeer link(FastZeroCopySettings());
  const PatternRegion source(link.endpoint, kDeathBulk, kSourceSeed);
  const PatternRegion destination(link.endpoint, kDeathBulk, kDestinationSeed);
  const auto in = Must(link.connection.Import(link.peer.Region("in", kDeathBulk, kPeerInSeed)));
  const auto out = Must(link.connection.Import(link.peer.Region("out", kDeathBulk, kPeerOutSeed)));
  std::vector<std::byte> received(kMiB);

  PostedOperations posted;
  posted.Add("receive", link.connection.Recv(7, ~0ull, received));
  posted.Add("large send", link.connection.Send(9, source.bytes().first(kMiB)));
  posted.Add("read", link.connection.Read(destination.region, 0, out, 0, kDeathBulk));
  posted.Add("write", link.connection.Write(source.region, 0, in, 0, kDeathBulk));
  link.peer.AwaitChange("in", kDeathEarlyWord, kPeerInSeed);
  link.peer.process().Kill();
  const Stopwatch since;

  posted.ExpectAllEnd(Code::kPeerLost, since, kSoon);
  EXPECT_TRUE(link.connection.lost());
  const auto refused = link.connection.Write(source.region, 0, in, 0, kDeathBulk);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPeerLost);
  ExpectQuiescent(&link, destination);
  posted.ExpectEndedOnce();
}

TEST_P(PeerDeath, EndsAReadWhoseDestinationIsThenLeftAlone) {
  LinkedPeer link(FastZeroCopySettings());
  const PatternRegion destination(link.endpoint, kDeathBulk, kDestinationSeed);
  const auto out = Must(link.connection.Import(link.peer.Region("out", kDeathBulk, kPeerOutSeed)));

  PostedOperations posted;
  posted.Add("read", link.connection.Read(destination.region, 0, out, 0, kDeathBulk));
  ASSERT_TRUE(
      WaitForChange(destination.bytes(), kDeathEarlyWord, kDestinationSeed, TestDeadline()));
  link.peer.process().Kill();
  const Stopwatch since;

  posted.ExpectAllEnd(Code::kPeerLost, since, kSoon);
  ExpectQuiescent(&link, destination);
  posted.ExpectEndedOnce();
}

TEST_P(PeerDeath, EndsANotificationThatTheStoppedPeerNeverTook) {
  LinkedPeer link(FastZeroCopySettings());
  ASSERT_TRUE(link.peer.process().Stop(TestDeadline()));
  const std::string text = "nobody reads this";
  PostedOperations posted;
  posted.Add("notification", link.connection.Notify(std::as_bytes(std::span(text))));
  posted.Add("small send", link.connection.Send(1, std::as_bytes(std::span(text))));
  link.peer.process().Kill();
  const Stopwatch since;
  posted.ExpectAllEnd(Code::kPeerLost, since, kSoon);
  const auto none = link.connection.TakeNotification(TestDeadline());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kPeerLost);
  DestroyEndpoint(&link.endpoint);
  posted.ExpectEndedOnce();
}

// The other side of it: a peer that writes to us, or reads from us, and is gone in the middle of a
// frame.
class ClientDeath : public ZeroCopyTest {
 protected:
  ClientDeath() : endpoint_(Must(Endpoint::Create(ConfigOf(FastZeroCopySettings())))) {}

  void ExpectLostSoon(transfer::Connection* connection, const Stopwatch& since) {
    const auto lost = connection->TakeNotification(TestDeadline());
    ExpectWithin(since.elapsed(), kSoon, "the loss of the client");
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code(), Code::kPeerLost) << lost.error().ToString();
  }
  // Another peer is served as if nothing had happened.
  void ExpectServes(const PatternRegion& region) {
    EnginePeer next(FastZeroCopySettings());
    transfer::Connection connection = next.AcceptedBy(endpoint_);
    next.Region("fresh", region.bytes().size(), 99);
    next.PostWrite("fresh", region.region);
    EXPECT_EQ(next.Outcome(), "done");
    EXPECT_EQ(TakeCensus(region.bytes(), 0, 99).after, region.bytes().size());
    EXPECT_EQ(next.Quit(), 0);
  }

  Endpoint endpoint_;
};
INSTANTIATE_TEST_SUITE_P(ZeroCopySend, ClientDeath, ZeroCopyModes(), ZeroCopyName);

TEST_P(ClientDeath, InTheMiddleOfItsWriteLeavesTheTargetWholeAndServing) {
  const PatternRegion target(endpoint_, kDeathBulk, kDestinationSeed);
  UntilInTheMiddle([&] {
    Fill(target.bytes(), kDestinationSeed);
    EnginePeer client(FastZeroCopySettings());
    transfer::Connection connection = client.AcceptedBy(endpoint_);
    client.Region("from", kDeathBulk, kPeerOutSeed);
    client.PostWrite("from", target.region);
    if (!WaitForChange(target.bytes(), kDeathEarlyWord, kDestinationSeed, TestDeadline()))
      return false;
    client.Vanish();
    const Stopwatch since;

    ExpectLostSoon(&connection, since);
    connection.Close();  // returns when nothing touches memory any more
    const std::uint32_t right_after = target.Digest();
    EXPECT_TRUE(target.memory.GuardsIntact());
    const Census census = TakeCensus(target.bytes(), kDestinationSeed, kPeerOutSeed);
    EXPECT_EQ(census.foreign, 0u);
    EXPECT_EQ(target.Digest(), right_after);
    return census.before > 0;
  });
  ExpectServes(target);
}

TEST_P(ClientDeath, InTheMiddleOfItsReadLetsTheRegionGo) {
  PatternRegion target(endpoint_, kDeathBulk, kDestinationSeed);
  EnginePeer client(FastZeroCopySettings());
  transfer::Connection connection = client.AcceptedBy(endpoint_);
  client.Region("to", kDeathBulk, kPeerInSeed);
  client.PostRead("to", target.region);
  client.AwaitChange("to", kDeathEarlyWord, kPeerInSeed);
  client.Vanish();
  const Stopwatch since;

  ExpectLostSoon(&connection, since);
  EXPECT_TRUE(target.region.Deregister(Deadline::After(kSlack)));
  EXPECT_EQ(TakeCensus(target.bytes(), kDestinationSeed, 0).before, kDeathBulk);
  const PatternRegion next(endpoint_, kMiB, kDestinationSeed);
  ExpectServes(next);
}

}  // namespace
}  // namespace ferry::tests
