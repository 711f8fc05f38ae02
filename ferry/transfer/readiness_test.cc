// Tests descriptors that other event loops poll for notifications and peers.
#include "ferry/transfer/readiness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "ferry/core/testing/forked_child.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

constexpr int kReadyWithinMs = 60'000;

bool IsReadable(const Readiness& readiness, int timeout_ms) {
  pollfd wanted{Must(readiness.fd()), POLLIN, 0};
  return ::poll(&wanted, 1, timeout_ms) == 1;
}

TEST(Readiness, IsThatOfAConnectionWhileThereAreNotifications) {
  Link link = MakeLink();
  const Readiness ready = Must(link.far.connection->NotificationReadiness());
  EXPECT_FALSE(IsReadable(ready, 0));
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(EndsOk(link.near.connection->Notify(BytesOf("first"))));
    ASSERT_TRUE(EndsOk(link.near.connection->Notify(BytesOf("second"))));
    ASSERT_TRUE(IsReadable(ready, kReadyWithinMs));
    // A descriptor that is made later reports the same.
    EXPECT_TRUE(IsReadable(Must(link.far.connection->NotificationReadiness()), 0));
    EXPECT_EQ(TextOf(Must(link.far.connection->TakeNotification(Soon()))), "first");
    EXPECT_TRUE(IsReadable(ready, 0));
    EXPECT_EQ(TextOf(Must(link.far.connection->TakeNotification(Now()))), "second");
    EXPECT_FALSE(IsReadable(ready, 0));
  }
}

TEST(Readiness, NeedsNobodyWhoDrivesTheLoop) {
  Link link = MakeLink();
  const Readiness ready = Must(link.far.connection->NotificationReadiness());
  const auto notify = link.near.connection->Notify(BytesOf("x"));
  ASSERT_TRUE(notify);
  EXPECT_TRUE(IsReadable(ready, kReadyWithinMs));
}

TEST(Readiness, OfAConnectionThatHasEndedStays) {
  Link link = MakeLink();
  const Readiness ready = Must(link.far.connection->NotificationReadiness());
  ASSERT_TRUE(EndsOk(link.near.connection->Notify(BytesOf("last"))));
  link.near.connection->Close();
  ASSERT_TRUE(IsReadable(ready, kReadyWithinMs));
  EXPECT_EQ(TextOf(Must(link.far.connection->TakeNotification(Soon()))), "last");
  ASSERT_TRUE(IsReadable(ready, kReadyWithinMs));
  const auto none = link.far.connection->TakeNotification(Soon());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kPeerLost);
  EXPECT_TRUE(IsReadable(ready, 0));
  EXPECT_TRUE(IsReadable(Must(link.far.connection->NotificationReadiness()), 0));
}

TEST(Readiness, IsThatOfAnEndpointWhilePeersWaitToBeAccepted) {
  Endpoint far = Must(Endpoint::Create(SmallSlices()));
  Endpoint near = Must(Endpoint::Create(SmallSlices()));
  const Readiness ready = Must(far.AcceptReadiness());
  EXPECT_FALSE(IsReadable(ready, 0));
  for (int round = 0; round < 3; ++round) {
    Connection called = Must(near.Connect(HostAndPort(far.port()), Soon()));
    ASSERT_TRUE(IsReadable(ready, kReadyWithinMs));
    Connection accepted = Must(far.Accept(Soon()));
    EXPECT_FALSE(IsReadable(ready, 0));
  }
  far.Close();
  EXPECT_TRUE(IsReadable(ready, 0));
  const auto none = far.Accept(Soon());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kCancelled);
}

TEST(Readiness, OfAParentIsRefusedInAForkedChildAndClosesNothingThere) {
  FERRY_SKIP_FORK_TEST();
  Link link = MakeLink();
  std::optional<Readiness> ready(Must(link.far.connection->NotificationReadiness()));
  const int number = Must(ready->fd());
  EXPECT_EQ(StatusOfChild([&] {
              const auto refused = ready->fd();
              if (refused || refused.error().code() != Code::kInvalidArgument) return 1;
              // The number is free in the child, which may reuse it for a descriptor of its own.
              if (::dup2(STDERR_FILENO, number) != number) return 2;
              ready.reset();
              return ::fcntl(number, F_GETFD) < 0 ? 3 : 0;
            }),
            0);
  ASSERT_TRUE(EndsOk(link.near.connection->Notify(BytesOf("x"))));
  EXPECT_TRUE(IsReadable(*ready, kReadyWithinMs));
}

TEST(Readiness, OutlivesItsEndpoint) {
  auto endpoint = std::make_unique<Endpoint>(Must(Endpoint::Create(SmallSlices())));
  const Readiness ready = Must(endpoint->AcceptReadiness());
  endpoint.reset();
  EXPECT_TRUE(IsReadable(ready, 0));
}

}  // namespace
}  // namespace ferry::transfer
