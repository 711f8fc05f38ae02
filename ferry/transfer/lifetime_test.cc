// Tests waiting for operations, cancelling them and closing what they depend on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/transfer/testing/any_options.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Ways to wait for operations, and events that end all of them: closed connections and endpoints.
namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kLongBytes = 2 << 20;

class LifetimeTest : public ::testing::Test {
 protected:
  // One operation of each kind that cannot end by itself: the far side answers none of them, or
  // they are too long to be over already.
  std::vector<Operation> EveryKind() {
    std::vector<Operation> operations;
    operations.push_back(Must(near_.Recv(1, kWholeTag, buffer_.span())));
    operations.push_back(Must(near_.Send(2, here_.span())));
    operations.push_back(Must(near_.Write(*local_, 0, remote_, 0, kLongBytes)));
    operations.push_back(Must(near_.Read(*into_, 0, remote_, 0, kLongBytes)));
    operations.push_back(Must(near_.Notify(BytesOf("x"))));
    operations.push_back(Must(near_.Send(3, here_.span().first(5))));
    return operations;
  }
  // All have ended with this code or, if they were faster, successfully. The first two cannot have
  // succeeded.
  void ExpectEnded(std::vector<Operation>* operations, Code code) {
    for (std::size_t i = 0; i < operations->size(); ++i) {
      Operation& operation = (*operations)[i];
      const Status status = operation.Wait(Soon());
      ASSERT_TRUE(operation.Poll()) << "operation " << i;
      if (status) {
        EXPECT_GE(i, 2u);
        continue;
      }
      EXPECT_EQ(status.error().code(), code) << i << ": " << status.error().ToString();
      EXPECT_NE(status.error().message(), "");
    }
  }

  GuardedMemory here_{kLongBytes, 1};
  GuardedMemory there_{kLongBytes, 2};
  GuardedMemory fetched_{kLongBytes, 3};
  GuardedMemory buffer_{kLongBytes, 4};
  Link link_ = MakeLink(SmallSlices(3, 2));
  Connection near_ = *link_.near.connection;
  std::optional<Region> local_ = Must(link_.near.endpoint->Register(here_.span(), Rights::kNone));
  std::optional<Region> into_ = Must(link_.near.endpoint->Register(fetched_.span(), Rights::kNone));
  std::optional<Region> target_ =
      Must(link_.far.endpoint->Register(there_.span(), Rights::kReadWrite));
  RemoteRegion remote_ = Must(near_.Import(target_->key()));
};

// ---- waiting ------------------------------------------------------------------------------------

TEST_F(LifetimeTest, AWaitThatTimesOutLeavesTheOperationInFlight) {
  auto receive = near_.Recv(1, kWholeTag, buffer_.span());
  for (const Deadline deadline : {Now(), Deadline::After(milliseconds(20))}) {
    const Status status = receive->Wait(deadline);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kTimedOut);
    EXPECT_THAT(status.error().message(),
                HasSubstr("is still in flight after the deadline of this wait"));
  }
  EXPECT_FALSE(receive->Poll());
  ASSERT_TRUE(EndsOk(link_.far.connection->Send(1, BytesOf("x"))));
  EXPECT_TRUE(EndsOk(*receive));
}

TEST_F(LifetimeTest, PollingInALoopIsAsGoodAsWaiting) {
  for (int round = 0; round < 20; ++round) {
    auto write = near_.Write(*local_, 0, remote_, 0, 100'000);
    auto read = near_.Read(*into_, 0, remote_, 0, 100'000);
    const Deadline limit = Soon();
    while (!(write->Poll() && read->Poll())) ASSERT_FALSE(limit.expired());
    EXPECT_TRUE(write->Wait(Now()));
    EXPECT_TRUE(read->Wait(Now()));
  }
}

bool BecomesReadable(int fd, int timeout_ms) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, timeout_ms) == 1;
}

TEST_F(LifetimeTest, TheCompletionDescriptorBecomesReadableAtTheEndAndStaysSo) {
  for (int round = 0; round < 20; ++round) {
    auto receive = near_.Recv(1, kWholeTag, buffer_.span());
    const int fd = Must(receive->CompletionFd());
    EXPECT_EQ(Must(receive->CompletionFd()), fd);
    EXPECT_FALSE(BecomesReadable(fd, 0));
    const auto send = link_.far.connection->Send(1, there_.span().first(1));
    ASSERT_TRUE(BecomesReadable(fd, 30'000));
    EXPECT_TRUE(BecomesReadable(fd, 0));
    EXPECT_TRUE(receive->Poll());
    EXPECT_TRUE(receive->Wait(Now()));
  }
}

TEST_F(LifetimeTest, ACompletionDescriptorAskedForAfterTheEndIsReadable) {
  auto write = near_.Write(*local_, 0, remote_, 0, 1);
  ASSERT_TRUE(EndsOk(write));
  EXPECT_TRUE(BecomesReadable(Must(write->CompletionFd()), 0));
}

TEST_F(LifetimeTest, ManyThreadsMayWaitForOneOperationAndOthersForOthersOfItsConnection) {
  auto last = near_.Recv(99, kWholeTag, buffer_.span());
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([operation = *last] { ASSERT_TRUE(EndsOk(operation)); });
  }
  for (std::uint64_t tag = 0; tag < 4; ++tag) {
    threads.emplace_back([tag, connection = near_]() mutable {
      for (int round = 0; round < 20; ++round) {
        std::vector<std::byte> buffer(1);
        ASSERT_TRUE(EndsOk(connection.Recv(tag, kWholeTag, buffer)));
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t tag = 0; tag < 4; ++tag) {
      ASSERT_TRUE(EndsOk(link_.far.connection->Send(tag, BytesOf("x"))));
    }
  }
  ASSERT_TRUE(EndsOk(link_.far.connection->Send(99, BytesOf("x"))));
}

// ---- cancelling between two working sides -------------------------------------------------------

TEST_F(LifetimeTest, OperationsCancelledRightAfterTheirStartEndOnceAndTheConnectionLivesOn) {
  for (int round = 0; round < 50; ++round) {
    auto operations = EveryKind();
    for (Operation& operation : operations) operation.Cancel();
    for (Operation& operation : operations) operation.Cancel();
    ExpectEnded(&operations, Code::kCancelled);
  }
  EXPECT_TRUE(Works(&link_));
  EXPECT_TRUE(here_.GuardsIntact() && there_.GuardsIntact() && fetched_.GuardsIntact());
}

TEST_F(LifetimeTest, TransfersCancelledOnTheirWayDoNotTouchMemoryAfterTheirEnd) {
  for (int round = 0; round < 10; ++round) {
    auto write = near_.Write(*local_, 0, remote_, 0, kLongBytes);
    auto read = near_.Read(*into_, 0, remote_, 0, kLongBytes);
    // Operations take turns, so when this one has ended those are in flight.
    ASSERT_TRUE(EndsOk(near_.Write(*local_, 0, remote_, 0, 1)));
    write->Cancel();
    read->Cancel();
    for (const auto* operation : {&write, &read}) {
      const Status status = Operation(**operation).Wait(Soon());
      EXPECT_TRUE(status || status.error().code() == Code::kCancelled);
    }
    there_.Fill(std::byte{0xEE});
    fetched_.Fill(std::byte{0xEE});
    ASSERT_TRUE(Works(&link_));
    for (auto* memory : {&there_, &fetched_}) {
      const auto bytes = memory->Copy();
      ASSERT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0xEE}), std::ssize(bytes));
    }
  }
}

TEST_F(LifetimeTest, ShortDeadlinesOfAnyLengthEndEveryOperationInTime) {
  Connection far = *link_.far.connection;
  std::vector<std::byte> large(kLongBytes);
  for (int round = 0; round < 60; ++round) {
    const AnyOptions options{.deadline = Deadline::After(microseconds(round * 50))};
    auto receive = near_.Recv(1, kWholeTag, buffer_.span(), options);
    auto send = far.Send(1, large, options);
    for (auto* operation : {&receive, &send}) {
      const Status status = (*operation)->Wait(Soon());
      ASSERT_TRUE((*operation)->Poll());
      EXPECT_TRUE(status || status.error().code() == Code::kTimedOut ||
                  status.error().code() == Code::kRefused)
          << status.error().ToString();
    }
  }
  EXPECT_TRUE(Works(&link_));
}

TEST_F(LifetimeTest, ARegionDeregisteredWhileAPeerWritesAndReadsIsNotTouchedAfterwards) {
  for (int round = 0; round < 10; ++round) {
    auto write = near_.Write(*local_, 0, remote_, 0, kLongBytes);
    auto read = near_.Read(*into_, 0, remote_, 0, kLongBytes);
    ASSERT_TRUE(EndsOk(near_.Notify(BytesOf("x"))));
    ASSERT_TRUE(target_->Deregister(Soon()));
    there_.Fill(std::byte{0xEE});
    for (auto* operation : {&write, &read}) {
      const Status status = (*operation)->Wait(Soon());
      EXPECT_TRUE(status || status.error().code() == Code::kRefused) << status.error().ToString();
    }
    ASSERT_TRUE(Works(&link_));
    const auto bytes = there_.Copy();
    ASSERT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0xEE}), std::ssize(bytes));
    target_ = Must(link_.far.endpoint->Register(there_.span(), Rights::kReadWrite));
    remote_ = Must(near_.Import(target_->key()));
  }
}

// ---- closing ------------------------------------------------------------------------------------

TEST_F(LifetimeTest, CloseEndsEveryOperationAndThePeerLosesTheConnection) {
  auto operations = EveryKind();
  auto theirs = link_.far.connection->Recv(50, kWholeTag, there_.span());
  near_.Close();
  for (Operation& operation : operations) EXPECT_TRUE(operation.Wait(Now()) || operation.Poll());
  ExpectEnded(&operations, Code::kCancelled);
  EXPECT_TRUE(near_.lost());
  EXPECT_TRUE(EndsWith(Code::kPeerLost, theirs));
  near_.Close();
  const auto after = near_.Notify(BytesOf("x"));
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code(), Code::kCancelled);
  EXPECT_THAT(after.error().message(), HasSubstr("closed by this side"));
}

TEST_F(LifetimeTest, AfterCloseTheMemoryMayBeFreedAtOnce) {
  auto buffer = std::make_unique<GuardedMemory>(kLongBytes);
  const auto receive = near_.Recv(1, kWholeTag, buffer->span());
  const auto send = link_.far.connection->Send(1, there_.span());
  near_.Close();
  buffer.reset();
  ASSERT_TRUE(send);
  const Status sent = Operation(*send).Wait(Soon());  // it may have arrived before the close
  EXPECT_TRUE(sent || sent.error().code() == Code::kPeerLost) << sent.error().ToString();
}

TEST_F(LifetimeTest, BothSidesMayCloseAtTheSameTime) {
  auto operations = EveryKind();
  {
    const std::jthread other([far = *link_.far.connection]() mutable { far.Close(); });
    near_.Close();
  }
  for (Operation& operation : operations) EXPECT_TRUE(operation.Poll());
}

TEST_F(LifetimeTest, AnEndpointThatGoesEndsEveryOperationOfBothSides) {
  auto operations = EveryKind();
  auto theirs = link_.far.connection->Recv(50, kWholeTag, there_.span());
  link_.near.endpoint.reset();
  for (Operation& operation : operations) EXPECT_TRUE(operation.Poll());
  ExpectEnded(&operations, Code::kCancelled);
  EXPECT_TRUE(EndsWith(Code::kPeerLost, theirs));
}

TEST_F(LifetimeTest, CloseEndsWhoeverWaitsForPeersOrConnects) {
  auto operations = EveryKind();
  Endpoint& endpoint = *link_.near.endpoint;
  // Blocks the dialing side in its handshake.
  const RawListener silent;
  const std::string address = "127.0.0.1:" + std::to_string(silent.port());
  std::optional<Code> accepted;
  std::optional<Code> connected;
  std::thread accepts([&] { accepted = endpoint.Accept(Deadline::Never()).error().code(); });
  std::thread connects([&] { connected = endpoint.Connect(address, Soon()).error().code(); });
  endpoint.Close();
  for (Operation& operation : operations) EXPECT_TRUE(operation.Poll());
  accepts.join();
  connects.join();
  EXPECT_EQ(accepted, Code::kCancelled);
  EXPECT_EQ(connected, Code::kCancelled);
  endpoint.Close();
}

// A close a little later in each round, so that some meet a dial that is about to succeed.
TEST_F(LifetimeTest, AConnectionMadeWhileItsEndpointGoesIsRefusedOrLost) {
  const std::string address = HostAndPort(link_.far.endpoint->port());
  Clock::duration dial{};  // how long one takes
  for (int round = 0; round < 40; ++round) {
    std::optional<Endpoint> dials = Must(Endpoint::Create(SmallSlices(3, 2)));
    std::optional<Result<Connection>> made;
    const auto begun = Clock::now();
    std::thread connects([&] { made.emplace(dials->Connect(address, Soon())); });
    if (round == 0) {
      connects.join();
      ASSERT_TRUE(*made);
      dial = Clock::now() - begun;
      continue;
    }
    while (Clock::now() < begun + dial / 2 + dial * round / 80) std::this_thread::yield();
    dials->Close();
    connects.join();
    if (!*made) {
      EXPECT_EQ(made->error().code(), Code::kCancelled) << made->error().ToString();
      continue;
    }
    EXPECT_TRUE((*made)->lost());
    const auto taken = (*made)->TakeNotification(Soon());
    ASSERT_FALSE(taken);
    EXPECT_NE(taken.error().code(), Code::kTimedOut);
    dials.reset();  // the connection is the last that holds the endpoint
  }
}

TEST_F(LifetimeTest, AnEndpointThatGoesIsLostToItsPeers) {
  auto operations = EveryKind();
  link_.far.endpoint.reset();
  ExpectEnded(&operations, Code::kPeerLost);
  const auto after = near_.Notify(BytesOf("x"));
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code(), Code::kPeerLost);
}

TEST_F(LifetimeTest, AfterAnEndpointHasGoneTheMemoryMayBeFreedAtOnce) {
  auto buffer = std::make_unique<GuardedMemory>(kLongBytes);
  auto source = std::make_unique<GuardedMemory>(kLongBytes);
  const Region writable = Must(link_.near.endpoint->Register(buffer->span(), Rights::kReadWrite));
  const RemoteRegion at_near = Must(link_.far.connection->Import(writable.key()));
  const auto theirs = link_.far.connection->Write(*target_, 0, at_near, 0, kLongBytes);
  const auto send = near_.Send(2, source->span());
  link_.near.endpoint.reset();
  buffer.reset();
  source.reset();
  const Status status = Operation(*theirs).Wait(Soon());
  EXPECT_TRUE(status || status.error().code() == Code::kPeerLost);
}

TEST_F(LifetimeTest, HandlesThatOutliveTheirEndpointAreHarmless) {
  auto operations = EveryKind();
  const auto fd = Must(operations.front().CompletionFd());
  link_.near.endpoint.reset();
  EXPECT_TRUE(BecomesReadable(fd, 0));
  EXPECT_TRUE(near_.lost());
  EXPECT_FALSE(near_.TakeNotification(Soon()));
  EXPECT_FALSE(near_.Send(1, BytesOf("x")));
  (void)near_.Info();
  near_.Close();
  EXPECT_TRUE(local_->Deregister(Soon()));
  local_.reset();
  into_.reset();
  link_.near.connection.reset();
  near_ = *link_.far.connection;  // the last connection of the destroyed endpoint
  for (Operation& operation : operations) {
    EXPECT_TRUE(operation.Poll());
    (void)operation.Wait(Soon());
    operation.Cancel();
  }
}

TEST_F(LifetimeTest, OperationsThatThreadsBeginWhileTheEndpointGoesAllEnd) {
  for (int round = 0; round < 10; ++round) {
    Link link = MakeLink(SmallSlices(2, 2));
    std::atomic<int> begun{0};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&begun, connection = *link.near.connection]() mutable {
        for (;;) {
          auto notify = connection.Notify(BytesOf("x"));
          if (!notify) break;
          begun.fetch_add(1);
          (void)notify->Wait(Soon());
          ASSERT_TRUE(notify->Poll());
        }
      });
    }
    const Deadline limit = Soon();
    while (begun.load() < 30 && !limit.expired()) std::this_thread::yield();
    link.near.connection.reset();
    link.near.endpoint.reset();
  }
}

TEST_F(LifetimeTest, ThreadsThatWaitWhenTheEndpointGoesAreWoken) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([connection = near_]() mutable {
      std::vector<std::byte> buffer(1);
      const auto receive = connection.Recv(1, kWholeTag, buffer);
      if (receive) {
        ASSERT_TRUE(EndsWith(Code::kCancelled, *receive));
      } else {
        ASSERT_EQ(receive.error().code(), Code::kCancelled);
      }
    });
    threads.emplace_back([connection = near_]() mutable {
      const auto none = connection.TakeNotification(Soon());
      ASSERT_FALSE(none);
      ASSERT_EQ(none.error().code(), Code::kCancelled);
    });
  }
  const Deadline limit = Soon();
  // All six are in flight, or about to be.
  while (near_.Info().lanes.empty() && !limit.expired()) std::this_thread::yield();
  link_.near.endpoint.reset();
}

TEST_F(LifetimeTest, AConnectionThatIsLostBeforeItIsAcceptedIsForgotten) {
  Endpoint other = Must(Endpoint::Create(SmallSlices(2, 1)));
  Connection gone = Must(other.Connect(link_.far.endpoint->address(), Soon()));
  gone.Close();
  Connection out = Must(other.Connect(link_.far.endpoint->address(), Soon()));
  ASSERT_TRUE(EndsOk(out.Notify(BytesOf("hello"))));
  Connection in = Must(link_.far.endpoint->Accept(Soon()));
  auto note = in.TakeNotification(Soon());
  if (!note) {
    // This connection was faster than the notice of the other one's end.
    in = Must(link_.far.endpoint->Accept(Soon()));
    note = in.TakeNotification(Soon());
  }
  ASSERT_TRUE(note) << note.error().ToString();
  EXPECT_EQ(TextOf(*note), "hello");
}

TEST_F(LifetimeTest, OneSidedOperationsAreServedBeforeTheConnectionIsAccepted) {
  Endpoint other = Must(Endpoint::Create(SmallSlices(2, 1)));
  Connection out = Must(other.Connect(link_.far.endpoint->address(), Soon()));
  const Region from = Must(other.Register(here_.span(), Rights::kNone));
  const RemoteRegion into = Must(out.Import(target_->key()));
  ASSERT_TRUE(EndsOk(out.Write(from, 0, into, 0, kLongBytes)));
  EXPECT_TRUE(SameBytes(there_.Copy(), here_.Copy()));
  EXPECT_TRUE(link_.far.endpoint->Accept(Soon()));
}

TEST_F(LifetimeTest, AnEndpointMayGoInTheMiddleOfHandshakes) {
  for (int round = 0; round < 10; ++round) {
    auto endpoint = Must(Endpoint::Create(SmallSlices(3, 2)));
    RawLane silent(endpoint.port());
    RawLane half(endpoint.port());
    ASSERT_TRUE(half.Say({.type = wire::Type::kHello, .body = Pod(Hello(Uuid::Random(), 3))}));
    (void)half.Expect(wire::Type::kWelcome);
    RawPeer unaccepted(endpoint.port(), 3);
  }
}

TEST_F(LifetimeTest, MovedEndpointsAndRegionsAreThoseTheyWere) {
  Endpoint endpoint = Must(Endpoint::Create(SmallSlices(1, 1)));
  const Uuid id = endpoint.id();
  Endpoint moved = std::move(endpoint);
  EXPECT_EQ(moved.id(), id);
  Region region = Must(moved.Register(here_.span(), Rights::kRead));
  const auto key = region.key();
  Region other = std::move(region);
  EXPECT_EQ(other.key(), key);
  other = Must(moved.Register(here_.span(), Rights::kRead));
  EXPECT_NE(other.key(), key);
  moved = Must(Endpoint::Create(SmallSlices(1, 1)));
  EXPECT_NE(moved.id(), id);
}

}  // namespace
}  // namespace ferry::transfer
