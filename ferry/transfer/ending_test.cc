// Tests how operations end early, at each point of their life, against a scripted peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "ferry/transfer/testing/any_options.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Operations that end early, at each point of their life. The peer is scripted, so that the engine
// can be held at each point. The endpoint has one loop, so that a pong on one connection proves
// that everything sent before on the other was read.
namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::Type;

constexpr std::size_t kTargetBytes = 1 << 20;
constexpr std::size_t kSlice = 4096;

Config OneLoop(microseconds drain_grace = std::chrono::seconds(30)) {
  Config config = SmallSlices(2, 1);
  config.drain_grace = drain_grace;
  return config;
}

wire::TagBody Tagged(std::size_t bytes) { return {.tag = 1, .bytes = bytes}; }

class EndingTest : public ::testing::Test {
 protected:
  explicit EndingTest(const Config& config = OneLoop())
      : endpoint_(Must(Endpoint::Create(config))) {}

  RemoteRegion AtPeer(std::uint64_t bytes = kTargetBytes) {
    return {peer_.id(), {1, 1, 1}, Rights::kReadWrite, bytes};
  }
  static AnyOptions By(microseconds time) { return {.deadline = Deadline::After(time)}; }
  PreparedTransfer Prepared(Direction direction) {
    const RemoteRegion remote = AtPeer();
    BlockList list;
    list.Add({.dst = 0, .src = 0, .len = kTargetBytes});
    std::vector<TransferPart> parts;
    parts.push_back({&local_, &remote, std::move(list)});
    return Must(direction == Direction::kWrite ? theirs_.PrepareWrite(std::move(parts))
                                               : theirs_.PrepareRead(std::move(parts)));
  }
  // Returns once the endpoint has read everything that was sent to it before.
  void LetItRead() {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(clock_.lane().IsQuiet());
  }
  // The memory is the caller's again: nothing may change it from now on.
  void Reclaim() { memory_.Fill(std::byte{0xEE}); }
  void ExpectUntouched() {
    LetItRead();
    const auto bytes = memory_.Copy();
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0xEE}), std::ssize(bytes));
    EXPECT_TRUE(memory_.GuardsIntact());
  }
  // Acknowledges frames until the operation has ended; returns those frames.
  std::vector<RawFrame> AckUntilEnd(Operation operation) {
    std::vector<RawFrame> frames;
    const Deadline limit = Soon();
    while (!operation.Poll() && !limit.expired()) {
      for (std::size_t lane = 0; lane < 2; ++lane) {
        auto said = AckLane(lane);
        frames.insert(frames.end(), said.begin(), said.end());
      }
    }
    return frames;
  }
  std::vector<RawFrame> AckLane(std::size_t lane) {
    std::vector<RawFrame> said;
    while (auto frame = peer_.lane(lane).ReceiveReady()) said.push_back(*std::move(frame));
    EXPECT_TRUE(peer_.lane(lane).AckAll());
    return said;
  }
  void CloseInOrder(std::size_t lane) {
    EXPECT_TRUE(peer_.lane(lane).UntilPong().has_value());
    peer_.lane(lane).EndSending();
  }
  void ExpectAlive() {
    EXPECT_TRUE(peer_.lane().UntilPong().has_value());
    EXPECT_FALSE(theirs_.lost());
  }
  void ExpectRefusedOnLane1(const std::string& words) {
    const RawFrame nack = peer_.lane(1).Expect(Type::kNack);
    EXPECT_THAT(nack.Text<wire::RefuseBody>(), HasSubstr(words));
    ExpectAlive();
  }
  Saying WriteInto(const wire::KeyBody& key, std::size_t bytes) {
    auto body = Pod(wire::WriteBody{key, 0, 1});
    wire::Append(&body, wire::BlockOnWire{0, bytes});
    return {.type = Type::kWrite,
            .operation = 9,
            .body = body,
            .payload = std::vector<std::byte>(bytes, std::byte{1})};
  }
  // Sends all but the last 100 bytes, which are returned, and lets the endpoint read them.
  std::vector<std::byte> SayAllBut100(std::size_t lane, const Saying& saying) {
    const auto bytes = peer_.lane(lane).Encode(saying);
    EXPECT_TRUE(peer_.lane(lane).SendBytes(std::span(bytes).first(bytes.size() - 100)));
    LetItRead();
    return {bytes.end() - 100, bytes.end()};
  }

  GuardedMemory memory_{kTargetBytes};
  Endpoint endpoint_;
  RawPeer clock_{endpoint_.port()};
  Connection clocks_ = Must(endpoint_.Accept(Soon()));
  RawPeer peer_{endpoint_.port(), 2};
  Connection theirs_ = Must(endpoint_.Accept(Soon()));
  Region local_ = Must(endpoint_.Register(memory_.span(), Rights::kReadWrite));
};

// ---- writes -------------------------------------------------------------------------------------

TEST_F(EndingTest, ACancelledWriteEndsWhenThePeerHasAcknowledgedWhatWasInFlight) {
  auto write = theirs_.Write(Prepared(Direction::kWrite));
  (void)peer_.lane().Expect(Type::kWrite);
  write->Cancel();
  LetItRead();
  EXPECT_FALSE(write->Poll());
  const auto frames = AckUntilEnd(*write);
  EXPECT_TRUE(EndsWith(Code::kCancelled, *write));
  EXPECT_THAT(EndMessage(*write), HasSubstr("was cancelled"));
  EXPECT_EQ(write->bytes(), 0u);
  EXPECT_LT(frames.size(), kTargetBytes / kSlice / 2);
  ExpectAlive();
}

TEST_F(EndingTest, AWriteThatMissesItsDeadlineEndsWhenThePeerHasAcknowledgedWhatWasInFlight) {
  auto write = theirs_.Write(Prepared(Direction::kWrite), By(std::chrono::seconds(1)));
  EXPECT_FALSE(write->Wait(Deadline::After(milliseconds(1500))));
  EXPECT_FALSE(write->Poll());
  (void)AckUntilEnd(*write);
  EXPECT_TRUE(EndsWith(Code::kTimedOut, *write));
  EXPECT_THAT(EndMessage(*write),
              AllOf(HasSubstr("did not end before its deadline"),
                    ::testing::ContainsRegex("; lane [01] is waiting for the peer to acknowledge "
                                             "[0-9]+ bytes, in [0-9]+ frames")));
  ExpectAlive();
}

TEST_F(EndingTest, AWriteThatExpiresEndsAsAtADeadline) {
  auto write = theirs_.Write(Prepared(Direction::kWrite));
  (void)peer_.lane().Expect(Type::kWrite);
  write->Expire();
  LetItRead();
  EXPECT_FALSE(write->Poll());
  (void)AckUntilEnd(*write);
  EXPECT_TRUE(EndsWith(Code::kTimedOut, *write));
  EXPECT_THAT(EndMessage(*write), HasSubstr("waiting for the peer to acknowledge"));
  ExpectAlive();
}

TEST_F(EndingTest, AWriteEndsOnlyWhenItsFramesHaveLeftHoweverSoonThePeerRefusesThem) {
  Config config = OneLoop();
  config.slice_bytes = config.window_bytes = 64 << 20;  // more than the sockets hold
  Endpoint endpoint = Must(Endpoint::Create(config));
  std::vector<std::byte> large(config.slice_bytes);
  RawPeer peer(endpoint.port(), 1, 64 << 20);
  Connection connection = Must(endpoint.Accept(Soon()));
  RawPeer clock(endpoint.port());
  const Region local = Must(endpoint.Register(large, Rights::kNone));
  const RemoteRegion remote{peer.id(), {1, 1, 1}, Rights::kWrite, large.size()};
  auto write = connection.Write(local, 0, remote, 0, large.size());
  ASSERT_TRUE(clock.lane().IsQuiet());  // it has begun by now
  const wire::RefuseBody no{.code = static_cast<std::uint8_t>(Code::kRefused)};
  ASSERT_TRUE(peer.lane().Say({.type = Type::kNack, .body = Joined(Pod(no), BytesOf("not here"))}));
  ASSERT_TRUE(peer.lane().Say({.type = Type::kAck, .ack = 1}));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(clock.lane().IsQuiet());
  EXPECT_FALSE(write->Poll()) << EndMessage(*write);
  (void)peer.lane().Expect(Type::kWrite);
  ASSERT_TRUE(EndsWith(Code::kRefused, *write));
  EXPECT_THAT(EndMessage(*write), HasSubstr("refused a write: not here"));
}

TEST_F(EndingTest, ACancelledNotificationEndsWhenItIsAcknowledged) {
  auto notify = theirs_.Notify(BytesOf("x"));
  (void)peer_.lane().Expect(Type::kNotify);
  notify->Cancel();
  LetItRead();
  EXPECT_FALSE(notify->Poll());
  ASSERT_TRUE(peer_.lane().AckAll());
  EXPECT_TRUE(EndsWith(Code::kCancelled, *notify));
  ExpectAlive();
}

// ---- reads --------------------------------------------------------------------------------------

TEST_F(EndingTest, ACancelledReadEndsAtOnceAndWhatStillComesIsDropped) {
  auto read = theirs_.Read(Prepared(Direction::kRead));
  const RawFrame request = peer_.lane().Expect(Type::kReadRequest);
  read->Cancel();
  ASSERT_TRUE(EndsWith(Code::kCancelled, *read));
  Reclaim();
  std::vector<RawFrame> requests = *peer_.lane().UntilPong();
  requests.insert(requests.begin(), request);
  for (const RawFrame& one : requests) {
    const wire::SliceBody slice{one.Body<wire::WriteBody>().slice, 0};
    ASSERT_TRUE(peer_.lane().Say({.type = Type::kReadData,
                                  .operation = one.header.operation,
                                  .body = Pod(slice),
                                  .payload = std::vector<std::byte>(kSlice)}));
  }
  ExpectAlive();
  ExpectUntouched();
}

TEST_F(EndingTest, AReadCancelledInTheMiddleOfASliceIsNotWrittenToAfterItsEnd) {
  auto read = theirs_.Read(Prepared(Direction::kRead));
  const RawFrame request = peer_.lane(1).Expect(Type::kReadRequest);
  const wire::SliceBody slice{request.Body<wire::WriteBody>().slice, 0};
  const auto rest = SayAllBut100(1, {.type = Type::kReadData,
                                     .operation = request.header.operation,
                                     .body = Pod(slice),
                                     .payload = std::vector<std::byte>(kSlice)});
  read->Cancel();
  ASSERT_TRUE(EndsWith(Code::kCancelled, *read));
  Reclaim();
  ASSERT_TRUE(peer_.lane(1).SendBytes(rest));
  ExpectUntouched();
  ExpectAlive();
}

TEST_F(EndingTest, AReadThatMissesItsDeadlineEndsAtOnceAndItsRegionCanGo) {
  auto read = theirs_.Read(Prepared(Direction::kRead), By(std::chrono::seconds(1)));
  (void)peer_.lane().Expect(Type::kReadRequest);
  ASSERT_TRUE(EndsWith(Code::kTimedOut, *read));
  ASSERT_TRUE(local_.Deregister(Soon()));
  ExpectAlive();
}

TEST_F(EndingTest, AReadWhoseFirstSliceIsRefusedEndsWhenItsOtherSlicesHaveBeenAnswered) {
  auto read = theirs_.Read(Prepared(Direction::kRead));
  std::vector<RawFrame> requests{peer_.lane(0).Expect(Type::kReadRequest),
                                 peer_.lane(1).Expect(Type::kReadRequest)};
  const auto refuse = [&](std::size_t lane, const RawFrame& request) {
    const wire::RefuseBody no{.slice = request.Body<wire::WriteBody>().slice,
                              .code = static_cast<std::uint8_t>(Code::kRefused)};
    ASSERT_TRUE(peer_.lane(lane).Say({.type = Type::kReadRefused,
                                      .operation = request.header.operation,
                                      .body = Joined(Pod(no), BytesOf("no more"))}));
  };
  for (std::size_t lane = 0; lane < 2; ++lane) {
    refuse(lane, requests[lane]);
    LetItRead();
    while (auto more = peer_.lane(lane).ReceiveReady()) refuse(lane, *more);
  }
  ASSERT_TRUE(EndsWith(Code::kRefused, *read));
  EXPECT_THAT(EndMessage(*read), HasSubstr("refused a read: no more"));
  ExpectAlive();
}

// ---- messages -----------------------------------------------------------------------------------

TEST_F(EndingTest, ACancelledReceiveEndsAtOnceAndTheMessageGoesToTheNext) {
  auto receive = theirs_.Recv(1, kWholeTag, memory_.span());
  receive->Cancel();
  ASSERT_TRUE(EndsWith(Code::kCancelled, *receive));
  Reclaim();
  ASSERT_TRUE(
      peer_.lane().Say({.type = Type::kSend, .body = Pod(Tagged(5)), .payload = BytesOf("hello")}));
  std::vector<std::byte> buffer(5);
  ASSERT_TRUE(EndsOk(theirs_.Recv(1, kWholeTag, buffer)));
  EXPECT_EQ(TextOf(buffer), "hello");
  ExpectUntouched();
}

TEST_F(EndingTest, AReceiveThatMissesItsDeadlineEndsAtOnce) {
  const auto receive = theirs_.Recv(1, kWholeTag, memory_.span(), By(milliseconds(30)));
  ASSERT_TRUE(EndsWith(Code::kTimedOut, receive));
  EXPECT_THAT(EndMessage(*receive), HasSubstr("receive"));
  ExpectAlive();
}

TEST_F(EndingTest, AReceiveCancelledInTheMiddleOfASmallMessageIsNotWrittenToAfterItsEnd) {
  auto receive = theirs_.Recv(1, kWholeTag, memory_.span());
  LetItRead();  // so it is posted before the message
  const auto rest = SayAllBut100(0, {.type = Type::kSend,
                                     .operation = 9,
                                     .body = Pod(Tagged(5000)),
                                     .payload = std::vector<std::byte>(5000)});
  receive->Cancel();
  ASSERT_TRUE(EndsWith(Code::kCancelled, *receive));
  Reclaim();
  ASSERT_TRUE(peer_.lane().SendBytes(rest));
  const RawFrame nack = peer_.lane().Expect(Type::kNack);
  EXPECT_EQ(nack.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(Code::kCancelled));
  ExpectUntouched();
  ExpectAlive();
}

TEST_F(EndingTest, AReceiveCancelledInTheMiddleOfALargeMessageIsNotWrittenToAfterItsEnd) {
  auto receive = theirs_.Recv(1, kWholeTag, memory_.span());
  ASSERT_TRUE(
      peer_.lane().Say({.type = Type::kRts, .operation = 9, .body = Pod(Tagged(kTargetBytes))}));
  const auto key = peer_.lane().Expect(Type::kCts).Body<wire::CtsBody>().key;
  const auto rest = SayAllBut100(1, WriteInto(key, kSlice));
  receive->Cancel();
  ASSERT_TRUE(EndsWith(Code::kCancelled, *receive));
  Reclaim();
  ASSERT_TRUE(peer_.lane(1).SendBytes(rest));
  ExpectRefusedOnLane1("deregistered");
  ASSERT_TRUE(peer_.lane(1).Say(WriteInto(key, kSlice)));
  ExpectRefusedOnLane1("stale");
  ExpectUntouched();
}

TEST_F(EndingTest, ALargeReceiveThatMissesItsDeadlineIsNotWrittenToAfterItsEnd) {
  auto receive = theirs_.Recv(1, kWholeTag, memory_.span(), By(std::chrono::seconds(1)));
  ASSERT_TRUE(
      peer_.lane().Say({.type = Type::kRts, .operation = 9, .body = Pod(Tagged(kTargetBytes))}));
  const auto key = peer_.lane().Expect(Type::kCts).Body<wire::CtsBody>().key;
  const auto rest = SayAllBut100(1, WriteInto(key, kSlice));
  ASSERT_TRUE(EndsWith(Code::kTimedOut, *receive));
  Reclaim();
  ASSERT_TRUE(peer_.lane(1).SendBytes(rest));
  ExpectRefusedOnLane1("deregistered");
  ExpectUntouched();
}

TEST_F(EndingTest, ACancelledRtsEndsAtOnceAndThePeerIsTold) {
  auto send = theirs_.Send(1, memory_.span());
  const RawFrame rts = peer_.lane().Expect(Type::kRts);
  send->Cancel();
  ASSERT_TRUE(EndsWith(Code::kCancelled, *send));
  const RawFrame withdrawn = peer_.lane().Expect(Type::kFin);
  EXPECT_EQ(withdrawn.header.operation, rts.header.operation);
  EXPECT_EQ(withdrawn.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(Code::kCancelled));
  // Too late: it is ignored.
  ASSERT_TRUE(peer_.lane().Say({.type = Type::kCts,
                                .operation = rts.header.operation,
                                .body = Pod(wire::CtsBody{{1, 1, 1}})}));
  EXPECT_TRUE(peer_.lane().IsQuiet());
}

TEST_F(EndingTest, ALargeSendCancelledWhileItIsWrittenEndsWhenItsSlicesAreAcknowledged) {
  auto send = theirs_.Send(1, memory_.span());
  const RawFrame rts = peer_.lane().Expect(Type::kRts);
  ASSERT_TRUE(peer_.lane().Say({.type = Type::kCts,
                                .operation = rts.header.operation,
                                .body = Pod(wire::CtsBody{{1, 1, 1}})}));
  (void)peer_.lane().Expect(Type::kWrite);
  send->Cancel();
  LetItRead();
  EXPECT_FALSE(send->Poll());
  const auto frames = AckUntilEnd(*send);
  ASSERT_TRUE(EndsWith(Code::kCancelled, *send));
  EXPECT_LT(frames.size(), kTargetBytes / kSlice / 2);
  const auto rest = peer_.lane().UntilPong();
  ASSERT_TRUE(rest);
  const auto is_end = [](const RawFrame& f) { return f.header.type == Type::kFin; };
  EXPECT_EQ(std::count_if(frames.begin(), frames.end(), is_end) +
                std::count_if(rest->begin(), rest->end(), is_end),
            1);
}

TEST_F(EndingTest, ASmallSendWithoutAnAnswerEndsAtItsDeadlineAndTheAcknowledgementThatFollowsIt) {
  auto send = theirs_.Send(1, memory_.span().first(10), By(std::chrono::seconds(1)));
  (void)peer_.lane().Expect(Type::kSend);
  EXPECT_FALSE(send->Wait(Deadline::After(milliseconds(1500))));
  EXPECT_FALSE(send->Poll());
  ASSERT_TRUE(peer_.lane().AckAll());
  ASSERT_TRUE(EndsWith(Code::kTimedOut, *send));
}

// The answers to a small message arrive while the message is still queued here. The scripted peer
// answers without having read it; a real peer may have read its metadata.
class EarlyAnswerTest : public EndingTest {
 protected:
  static constexpr std::uint32_t kAhead = 500;  // more than the sockets hold

  EarlyAnswerTest() {
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      ahead_.push_back(Must(theirs_.Notify(RandomBytes(64 * 1024, 1))));
    }
    send_.emplace(Must(theirs_.Send(1, memory_.span().first(10'000))));
    LetItRead();  // and so has numbered and queued its frames
    const wire::RefuseBody later{.sequence = kAhead,
                                 .code = static_cast<std::uint8_t>(Code::kUnavailable)};
    EXPECT_TRUE(peer_.lane().Say({.type = Type::kNack, .body = Pod(later), .ack = kAhead}));
  }
  void Answer(Type type, std::vector<std::byte> body) {
    // Operation ids start at 1.
    EXPECT_TRUE(peer_.lane().Say(
        {.type = type, .operation = kAhead + 1, .body = std::move(body), .ack = kAhead + 1}));
    LetItRead();
    EXPECT_FALSE(send_->Poll()) << EndMessage(*send_);
    for (std::uint32_t i = 0; i < kAhead; ++i) (void)peer_.lane().Expect(Type::kNotify);
    (void)peer_.lane().Expect(Type::kSend);
  }

  std::vector<Operation> ahead_;
  std::optional<Operation> send_;
};

TEST_F(EarlyAnswerTest, AMessageAskedForBeforeItHasLeftIsWritten) {
  Answer(Type::kCts, Pod(wire::CtsBody{{1, 1, 1}}));
  std::vector<RawFrame> frames = AckUntilEnd(*send_);
  ASSERT_TRUE(EndsOk(*send_));
  std::size_t written = 0;
  for (const RawFrame& frame : frames) {
    if (frame.header.type == Type::kWrite) written += frame.payload.size();
  }
  EXPECT_EQ(written, 10'000u);
}

TEST_F(EarlyAnswerTest, AMessageDeclinedBeforeItHasLeftEndsWhenItHas) {
  const wire::RefuseBody no{.code = static_cast<std::uint8_t>(Code::kUnavailable)};
  Answer(Type::kDeclined, Joined(Pod(no), BytesOf("no room")));
  ASSERT_TRUE(EndsWith(Code::kUnavailable, *send_));
  EXPECT_THAT(EndMessage(*send_), HasSubstr("declined the message: no room"));
}

// ---- peers that stop answering ------------------------------------------------------------------

class LittleGraceTest : public EndingTest {
 protected:
  LittleGraceTest() : EndingTest(OneLoop(milliseconds(50))) {}

  void ExpectLost(const std::string& words) {
    const auto end = theirs_.TakeNotification(Soon());
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kPeerLost);
    EXPECT_THAT(end.error().message(), AllOf(HasSubstr(words), HasSubstr("reconnect")));
    peer_.lane(0).WaitClosed();
    peer_.lane(1).WaitClosed();
  }
};

TEST_F(LittleGraceTest, ACancelledWriteThatIsNeverAcknowledgedEndsWithTheConnection) {
  auto write = theirs_.Write(Prepared(Direction::kWrite));
  (void)peer_.lane().Expect(Type::kWrite);
  write->Cancel();
  ASSERT_TRUE(EndsWith(Code::kCancelled, *write));
  ASSERT_TRUE(local_.Deregister(Soon()));
  ExpectLost("did not acknowledge a cancelled or late write");
}

TEST_F(LittleGraceTest, AWriteThatIsNeverAcknowledgedEndsAfterItsDeadlineWithTheConnection) {
  const auto write = theirs_.Write(Prepared(Direction::kWrite), By(std::chrono::seconds(1)));
  const auto other = theirs_.Recv(1, kWholeTag, {});
  ASSERT_TRUE(EndsWith(Code::kTimedOut, write));
  ASSERT_TRUE(EndsWith(Code::kPeerLost, other));
  ExpectLost("did not acknowledge a cancelled or late write");
}

// ---- peers that close ---------------------------------------------------------------------------

TEST_F(EndingTest, WhatIsAcknowledgedOverOneLaneCountsThoughThePeerHasClosedAnother) {
  auto notify = theirs_.Notify(BytesOf("x"));
  (void)peer_.lane(0).Expect(Type::kNotify);
  CloseInOrder(1);
  LetItRead();
  EXPECT_TRUE(theirs_.lost());
  EXPECT_FALSE(notify->Poll());
  ASSERT_TRUE(peer_.lane(0).AckAll());
  EXPECT_TRUE(EndsOk(notify));
  CloseInOrder(0);
  EXPECT_FALSE(theirs_.TakeNotification(Soon()));
}

TEST_F(LittleGraceTest, APeerThatClosesOneLaneAndSaysNoMoreOverAnotherIsLost) {
  const auto notify = theirs_.Notify(BytesOf("x"));
  (void)peer_.lane(0).Expect(Type::kNotify);
  CloseInOrder(1);
  EXPECT_TRUE(EndsWith(Code::kPeerLost, notify));
  peer_.lane(0).WaitClosed();
}

// ---- peers that say nothing ---------------------------------------------------------------------

Config Watchful() {
  Config config = OneLoop();
  config.heartbeat_interval = milliseconds(50);
  config.peer_timeout = std::chrono::seconds(1);  // longer than a busy machine delays the test
  return config;
}

class SilentPeerTest : public EndingTest {
 protected:
  SilentPeerTest() : EndingTest(Watchful()) {}
};

TEST_F(SilentPeerTest, APeerThatSaysNothingIsLostAndEveryOperationWithIt) {
  const auto write = theirs_.Write(Prepared(Direction::kWrite));
  const auto read = theirs_.Read(Prepared(Direction::kRead));
  const auto receive = theirs_.Recv(1, kWholeTag, memory_.span());
  const auto rts = theirs_.Send(1, memory_.span());
  const auto send = theirs_.Send(1, memory_.span().first(1));
  for (const auto* operation : {&write, &read, &receive, &rts, &send}) {
    EXPECT_TRUE(EndsWith(Code::kPeerLost, *operation));
    EXPECT_THAT(EndMessage(**operation), HasSubstr("nothing was heard"));
  }
  ASSERT_TRUE(local_.Deregister(Soon()));
}

TEST_F(SilentPeerTest, APeerThatOnlyPingsIsNotLost) {
  const auto receive = theirs_.Recv(1, kWholeTag, {});
  const Deadline longer_than_the_timeout = Deadline::After(std::chrono::seconds(3));
  while (!longer_than_the_timeout.expired()) {
    ASSERT_TRUE(peer_.lane().UntilPong().has_value());
  }
  EXPECT_FALSE(theirs_.lost());
}

// ---- regions ------------------------------------------------------------------------------------

TEST_F(EndingTest, ARegionDeregisteredInTheMiddleOfAPeersWriteIsNotWrittenToAfterwards) {
  const auto rest = SayAllBut100(1, WriteInto(local_.remote().key, 10'000));
  ASSERT_TRUE(local_.Deregister(Soon()));
  Reclaim();
  ASSERT_TRUE(peer_.lane(1).SendBytes(rest));
  ExpectRefusedOnLane1("deregistered during the write");
  ExpectUntouched();
  EXPECT_EQ(theirs_.Info().refused_accesses, 1u);
}

TEST_F(EndingTest, ARegionIsInUseUntilAPeerHasReadWhatItAskedFor) {
  auto body = Pod(wire::WriteBody{local_.remote().key, 0, 1});
  wire::Append(&body, wire::BlockOnWire{0, kTargetBytes});
  for (int i = 0; i < 32; ++i) {
    ASSERT_TRUE(peer_.lane(1).Say({.type = Type::kReadRequest, .operation = 9, .body = body}));
  }
  LetItRead();
  const Status early = local_.Deregister(Deadline::After(milliseconds(20)));
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), Code::kTimedOut);
  EXPECT_THAT(early.error().message(), AllOf(HasSubstr("still in use"), HasSubstr("call again")));
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(peer_.lane(1).Expect(Type::kReadData).payload, memory_.Copy());
  }
  ASSERT_TRUE(peer_.lane(1).AckAll());
  EXPECT_TRUE(local_.Deregister(Soon()));
  ExpectAlive();
}

TEST_F(EndingTest, ARegionIsInUseUntilOurOwnWriteOfItHasEnded) {
  auto write = theirs_.Write(Prepared(Direction::kWrite));
  EXPECT_FALSE(local_.Deregister(Deadline::After(milliseconds(20))));
  (void)AckUntilEnd(*write);
  EXPECT_TRUE(EndsOk(*write));
  EXPECT_TRUE(local_.Deregister(Soon()));
}

}  // namespace
}  // namespace ferry::transfer
