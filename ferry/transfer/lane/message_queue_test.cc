// Tests tagged messages against a connection that only records what they ask for.
#include "ferry/transfer/lane/message_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;
using wire::Type;

class MessageQueueTest : public ::testing::Test {
 protected:
  MessageQueueTest() {
    config_.eager_bytes = 100;
    config_.unexpected_bytes = 1000;
    config_.max_operations = 4;
    context_.config = &config_;
    context_.regions = &regions_;
    context_.memory = &memory_;
    context_.peer_name = "peer:1";
    context_.owner = &owner_;
    context_.operations = &host_;
    queue_.emplace(&context_, loop_.get());
  }

  OperationRef New(OperationKind kind, std::uint64_t tag) {
    auto operation = std::make_shared<OperationState>();
    operation->kind = kind;
    operation->id = ++last_id_;
    operation->tag = tag;
    operation->mask = ~std::uint64_t{0};
    host_.operations[operation->id] = operation;
    return operation;
  }
  OperationRef Send(std::size_t bytes) {
    OperationRef operation = New(OperationKind::kSend, 7);
    operation->message = std::span<const std::byte>(memory_to_send_).first(bytes);
    queue_->BeginSend(operation);
    return operation;
  }
  OperationRef Receive(std::uint64_t tag) {
    OperationRef operation = New(OperationKind::kRecv, tag);
    operation->buffer = buffer_;
    queue_->BeginReceive(operation);
    return operation;
  }
  template <class Body>
  Status Hear(Type type, std::uint64_t operation, const Body& body, const std::string& text = "") {
    wire::MessageHeader header;
    header.type = type;
    header.operation = operation;
    std::vector<std::byte> bytes;
    wire::Append(&bytes, body);
    wire::AppendText(&bytes, text);
    wire::MetaReader reader(bytes);
    return queue_->OnMessage(header, &reader);
  }
  Status HearFin(std::uint64_t operation) {
    return Hear(Type::kFin, operation, wire::RefuseBody{});
  }
  static wire::RefuseBody Code8(Code code) {
    wire::RefuseBody body;
    body.code = static_cast<std::uint8_t>(code);
    return body;
  }
  // The code in the last frame, which is a FIN or declined.
  Code LastCode() const {
    wire::RefuseBody body;
    std::memcpy(&body, host_.sent.back().body.data(), sizeof body);
    return wire::CodeFromWire(body.code);
  }
  static ArrivedMessage Whole(std::uint64_t tag, std::size_t bytes) {
    return {tag, bytes, 0, /*announced=*/false, std::vector<std::byte>(bytes, std::byte{9})};
  }

  Config config_;
  RegionTable regions_;
  HeldMemory memory_;
  LaneContext context_;
  std::unique_ptr<EventLoop> loop_ = Must(EventLoop::Create());
  FakeOwner owner_;
  FakeOperations host_;
  std::vector<std::byte> memory_to_send_ = std::vector<std::byte>(10000);
  std::vector<std::byte> buffer_ = std::vector<std::byte>(5000);
  std::uint64_t last_id_ = 0;
  std::optional<MessageQueue> queue_;
};

TEST_F(MessageQueueTest, ASmallMessageIsSentAtOnce) {
  const auto sent = Send(100);
  ASSERT_EQ(host_.sent.size(), 1u);
  EXPECT_EQ(host_.sent[0].type, Type::kSend);
  EXPECT_EQ(host_.sent[0].payload, 100u);
  EXPECT_EQ(sent->phase(), OperationState::Phase::kMessage);
}

TEST_F(MessageQueueTest, ALargeMessageWaitsForACtsAndIsThenWritten) {
  const auto sent = Send(101);
  ASSERT_EQ(host_.sent.size(), 1u);
  EXPECT_EQ(host_.sent[0].type, Type::kRts);
  EXPECT_EQ(host_.sent[0].payload, 0u);
  EXPECT_TRUE(host_.sliced.empty());
  EXPECT_TRUE(Hear(Type::kCts, sent->id, wire::CtsBody{}));
  EXPECT_EQ(host_.sliced, std::vector{sent->id});
  EXPECT_EQ(sent->plan->bytes, 101u);
}

TEST_F(MessageQueueTest, TooManyUnacknowledgedMessagesAreRefusedHere) {
  host_.may_send_rts = false;
  const auto sent = Send(101);
  EXPECT_EQ(sent->outcome.status.error().code(), Code::kUnavailable);
  EXPECT_TRUE(host_.sent.empty());
}

TEST_F(MessageQueueTest, ACtsThatOvertakesTheRefusalOfAnEagerMessageIsKept) {
  const auto sent = Send(50);
  EXPECT_TRUE(Hear(Type::kCts, sent->id, wire::CtsBody{}));
  EXPECT_TRUE(host_.sliced.empty());
  queue_->BecomesRts(sent);
  EXPECT_EQ(host_.sliced, std::vector{sent->id});
}

TEST_F(MessageQueueTest, ADeclinedMessageEndsWithThePeersReason) {
  const auto sent = Send(101);
  EXPECT_TRUE(Hear(Type::kDeclined, sent->id, Code8(Code::kUnavailable), "no room"));
  EXPECT_EQ(sent->outcome.status.error().code(), Code::kUnavailable);
  EXPECT_THAT(sent->outcome.status.error().message(), HasSubstr("no room"));
}

TEST_F(MessageQueueTest, ADeclineThatOvertakesTheRefusalOfAnEagerMessageIsKept) {
  const auto sent = Send(50);
  EXPECT_TRUE(Hear(Type::kDeclined, sent->id, Code8(Code::kInvalidArgument), "too short"));
  EXPECT_FALSE(sent->done);
  queue_->BecomesRts(sent);
  EXPECT_EQ(sent->outcome.status.error().code(), Code::kInvalidArgument);
}

TEST_F(MessageQueueTest, AWholeMessageIsKeptForItsReceive) {
  EXPECT_TRUE(queue_->MayKeep(60));
  queue_->OnWholeMessage(nullptr, Whole(3, 60), Ok());
  EXPECT_EQ(memory_.held(), kKeptRecordBytes + kTableEntryBytes + 60);
  const auto other = Receive(4);
  EXPECT_FALSE(other->done);
  const auto received = Receive(3);
  ASSERT_TRUE(received->done);
  EXPECT_TRUE(received->outcome.status);
  EXPECT_EQ(received->outcome.bytes, 60u);
  EXPECT_EQ(received->outcome.tag, 3u);
  EXPECT_EQ(buffer_[59], std::byte{9});
  EXPECT_EQ(memory_.held(), 0u);
}

TEST_F(MessageQueueTest, AReceiveTakesTheMessageThatArrivesAndGoesBackIfItBreaksOff) {
  const auto received = Receive(3);
  EXPECT_EQ(Must(queue_->TakeReceive(3, 50)), received);
  EXPECT_EQ(Must(queue_->TakeReceive(3, 50)), nullptr) << "it was taken";
  queue_->PutBackReceive(received);
  EXPECT_EQ(Must(queue_->TakeReceive(3, 50)), received);
  queue_->OnWholeMessage(received, {}, Ok());
  EXPECT_TRUE(received->done);
}

TEST_F(MessageQueueTest, AMessageTooLongForItsReceiveEndsIt) {
  const auto received = Receive(3);
  EXPECT_FALSE(queue_->TakeReceive(3, buffer_.size() + 1));
  EXPECT_EQ(received->outcome.status.error().code(), Code::kInvalidArgument);
}

TEST_F(MessageQueueTest, AnRtsIsAnsweredOnceThereIsAReceive) {
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  EXPECT_TRUE(host_.sent.empty());
  const auto received = Receive(3);
  ASSERT_EQ(host_.sent.size(), 1u);
  EXPECT_EQ(host_.sent[0].type, Type::kCts);
  EXPECT_EQ(host_.sent[0].operation, 77u);
  EXPECT_EQ(regions_.size(), 1u);
  EXPECT_FALSE(received->done);
  EXPECT_TRUE(HearFin(77));
  EXPECT_TRUE(received->done && received->outcome.status);
  EXPECT_EQ(regions_.size(), 0u);
}

TEST_F(MessageQueueTest, AReceiveOutlastsAFinWhileALaneIsInItsBuffer) {
  const auto received = Receive(3);
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  {
    const RegionPin pin(received->receiving.landing);
    EXPECT_TRUE(Hear(Type::kFin, 77, Code8(Code::kCancelled), "cancelled"));
    EXPECT_FALSE(received->done);
  }
  ASSERT_EQ(host_.revoked.size(), 1u);
  host_.revoked[0]();
  EXPECT_EQ(received->outcome.status.error().code(), Code::kCancelled);
}

TEST_F(MessageQueueTest, AnRtsOfAnEarlierNumberIsAnError) {
  (void)Receive(3);
  (void)Receive(3);
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  EXPECT_THAT(host_.failed, HasSubstr("two RTS with one operation id"));
}

TEST_F(MessageQueueTest, AWithdrawnRtsFindsNoReceive) {
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  EXPECT_TRUE(Hear(Type::kFin, 77, Code8(Code::kCancelled), "cancelled"));
  EXPECT_FALSE(Receive(3)->done);
  EXPECT_TRUE(host_.sent.empty());
  EXPECT_EQ(memory_.held(), 0u);
}

TEST_F(MessageQueueTest, MoreMessagesThanAreKeptAreDeclined) {
  for (std::uint64_t i = 0; i < 2 * config_.max_operations; ++i) {
    EXPECT_TRUE(Hear(Type::kRts, 100 + i, wire::TagBody{3, 4000}));
  }
  EXPECT_TRUE(host_.sent.empty());
  EXPECT_FALSE(queue_->MayKeep(1));
  EXPECT_TRUE(Hear(Type::kRts, 200, wire::TagBody{3, 4000}));
  ASSERT_EQ(host_.sent.size(), 1u);
  EXPECT_EQ(host_.sent[0].type, Type::kDeclined);
  EXPECT_EQ(host_.sent[0].operation, 200u);
  EXPECT_EQ(LastCode(), Code::kUnavailable);
}

TEST_F(MessageQueueTest, AnswersWaitUntilThePeerHasAcknowledgedOthers) {
  host_.may_answer = false;
  (void)Receive(3);
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  const auto late = Receive(3);
  EXPECT_TRUE(Hear(Type::kRts, 78, wire::TagBody{3, 4000}));
  queue_->AbortReceive(late, Error(Code::kTimedOut, "late"));
  for (std::uint64_t i = 0; i <= 2 * config_.max_operations; ++i) {
    EXPECT_TRUE(Hear(Type::kRts, 100 + i, wire::TagBody{4, 4000}));
  }
  queue_->OnAcknowledged();
  EXPECT_TRUE(host_.sent.empty());
  EXPECT_EQ(memory_.late_answers(), 3u);
  host_.may_answer = true;
  queue_->OnAcknowledged();
  ASSERT_EQ(host_.sent.size(), 3u);
  EXPECT_EQ(memory_.late_answers(), 0u);
  EXPECT_EQ(host_.sent[0].type, Type::kCts);
  EXPECT_EQ(host_.sent[0].operation, 77u);
  EXPECT_EQ(host_.sent[1].type, Type::kDeclined) << "nothing receives it any more";
  EXPECT_EQ(host_.sent[1].operation, 78u);
  EXPECT_EQ(host_.sent[2].type, Type::kDeclined);
  EXPECT_EQ(host_.sent[2].operation, 100 + 2 * config_.max_operations);
  EXPECT_EQ(LastCode(), Code::kUnavailable);
}

TEST_F(MessageQueueTest, ACloseDropsAnswersThatWait) {
  host_.may_answer = false;
  (void)Receive(3);
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  EXPECT_GT(memory_.held(), 0u);
  queue_->Stop();
  queue_->Close();
  EXPECT_EQ(memory_.held(), 0u);
}

TEST_F(MessageQueueTest, APostedReceiveIsAbortedAtOnce) {
  const auto received = Receive(3);
  queue_->AbortReceive(received, Error(Code::kTimedOut, "late"));
  EXPECT_EQ(received->outcome.status.error().code(), Code::kTimedOut);
  EXPECT_EQ(Must(queue_->TakeReceive(3, 1)), nullptr);
}

TEST_F(MessageQueueTest, AReceiveOfAnArrivingMessageIsAbortedAfterItsLaneHasLetGo) {
  const auto received = Receive(3);
  EXPECT_EQ(Must(queue_->TakeReceive(3, 50)), received);
  queue_->AbortReceive(received, Error(Code::kTimedOut, "late"));
  EXPECT_EQ(host_.dropped, received->id);
  EXPECT_TRUE(received->done);
}

TEST_F(MessageQueueTest, ARendezvousIsAbortedAfterTheLanesHaveLetGo) {
  const auto received = Receive(3);
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  queue_->AbortReceive(received, Error(Code::kTimedOut, "late"));
  EXPECT_FALSE(received->done);
  EXPECT_EQ(regions_.size(), 0u) << "nothing new may enter";
  ASSERT_EQ(host_.revoked.size(), 1u);
  host_.revoked[0]();
  EXPECT_EQ(received->outcome.status.error().code(), Code::kTimedOut);
  EXPECT_TRUE(HearFin(77)) << "which crossed the abort";
}

TEST_F(MessageQueueTest, AStopDropsWhatIsKeptAndACloseTheBuffers) {
  queue_->OnWholeMessage(nullptr, Whole(5, 60), Ok());
  (void)Receive(3);
  EXPECT_TRUE(Hear(Type::kRts, 77, wire::TagBody{3, 4000}));
  queue_->Stop();
  EXPECT_EQ(memory_.held(), 0u);
  EXPECT_EQ(regions_.size(), 1u);
  queue_->Close();
  EXPECT_EQ(regions_.size(), 0u);
}

TEST_F(MessageQueueTest, MalformedFramesEndTheConnection) {
  for (const Type type : {Type::kRts, Type::kCts, Type::kFin, Type::kDeclined}) {
    const auto heard = Hear(type, 1, std::uint8_t{0});
    ASSERT_FALSE(heard) << wire::TypeName(type);
    EXPECT_EQ(heard.error().code(), Code::kCorrupt);
  }
}

TEST_F(MessageQueueTest, NotificationsAreKeptForTheApplication) {
  EXPECT_TRUE(queue_->notifications().HasRoom(10));
  queue_->OnNotification(std::vector<std::byte>(10));
  std::vector<std::byte> taken;
  EXPECT_TRUE(queue_->notifications().Take(&taken));
  EXPECT_EQ(taken.size(), 10u);
}

}  // namespace
}  // namespace ferry::transfer
