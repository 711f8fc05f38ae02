// Tests tagged messages between two endpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "ferry/transfer/testing/linked_endpoints.h"

// Tagged messages between two endpoints of this process.
namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kEager = 8 * 1024;  // the limit in these tests
constexpr std::size_t kLarge = 300'000;

Config EagerConfig() {
  Config config = SmallSlices(3, 2);
  config.eager_bytes = kEager;
  return config;
}

class MessageTest : public ::testing::Test {
 protected:
  explicit MessageTest(const Config& far_config = EagerConfig())
      : link_(MakeLink(EagerConfig(), far_config)) {}

  // The receiver has processed all that was sent before: messages keep their order.
  void ExpectArrived() {
    std::byte nothing{};
    const auto receive = far_.Recv(~0ULL - 1, kWholeTag, {&nothing, 0});
    ASSERT_TRUE(EndsOk(near_.Send(~0ULL - 1, {})));
    ASSERT_TRUE(EndsOk(receive));
  }

  Link link_;
  Connection near_ = *link_.near.connection;
  Connection far_ = *link_.far.connection;
};

TEST_F(MessageTest, ArrivesWholeAtEverySizeAroundTheEagerLimitPostedFirst) {
  for (const std::size_t bytes : {0UL, 1UL, 7UL, kEager - 1, kEager, kEager + 1, kLarge}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    const auto message = RandomBytes(bytes, 3);
    std::vector<std::byte> buffer(bytes + 5, std::byte{0xEE});
    auto receive = far_.Recv(9, kWholeTag, buffer);
    ExpectArrived();
    ASSERT_TRUE(EndsOk(near_.Send(9, message)));
    ASSERT_TRUE(EndsOk(receive));
    EXPECT_EQ(receive->bytes(), bytes);
    EXPECT_EQ(receive->tag(), 9u);
    EXPECT_TRUE(std::equal(message.begin(), message.end(), buffer.begin()));
    EXPECT_EQ(buffer[bytes], std::byte{0xEE});
  }
}

TEST_F(MessageTest, ArrivesWholeAtEverySizeAroundTheEagerLimitSentFirst) {
  for (const std::size_t bytes : {0UL, 1UL, 7UL, kEager - 1, kEager, kEager + 1, kLarge}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    const auto message = RandomBytes(bytes, 4);
    std::vector<std::byte> buffer(bytes + 5, std::byte{0xEE});
    const auto send = near_.Send(9, message);
    ExpectArrived();
    auto receive = far_.Recv(9, kWholeTag, buffer);
    ASSERT_TRUE(EndsOk(send));
    ASSERT_TRUE(EndsOk(receive));
    EXPECT_EQ(receive->bytes(), bytes);
    EXPECT_TRUE(std::equal(message.begin(), message.end(), buffer.begin()));
    EXPECT_EQ(buffer[bytes], std::byte{0xEE});
  }
}

TEST_F(MessageTest, ASmallSendEndsBeforeItsReceiveIsPostedAndALargeOneDoesNot) {
  const auto small = RandomBytes(kEager, 1);
  const auto large = RandomBytes(kEager + 1, 1);
  ASSERT_TRUE(EndsOk(near_.Send(1, small)));
  auto send = near_.Send(2, large);
  ExpectArrived();
  EXPECT_FALSE(send->Poll());
  std::vector<std::byte> buffer(kEager + 1);
  ASSERT_TRUE(EndsOk(far_.Recv(2, kWholeTag, buffer)));
  ASSERT_TRUE(EndsOk(*send));
}

TEST_F(MessageTest, ASmallOneWaitsForItsReceiveWhereARendezvousIsAskedFor) {
  const auto small = RandomBytes(23, 1);
  auto send = near_.Send(1, small, {.rendezvous = true});
  ExpectArrived();
  EXPECT_FALSE(send->Poll());
  std::vector<std::byte> buffer(23);
  ASSERT_TRUE(EndsOk(far_.Recv(1, kWholeTag, buffer)));
  ASSERT_TRUE(EndsOk(*send));
  EXPECT_EQ(buffer, small);
  ASSERT_TRUE(EndsOk(near_.Send(2, {}, {.rendezvous = true}))) << "nothing waits for no bytes";
}

TEST_F(MessageTest, MessagesOfOneTagAreReceivedInTheOrderOfTheirSending) {
  constexpr int kMessages = 40;
  const auto size_of = [](int i) {
    return i % 3 == 0 ? kEager + 100U : 16U + static_cast<unsigned>(i);
  };
  for (const bool posted_first : {true, false}) {
    std::vector<std::vector<std::byte>> sent;
    std::vector<std::vector<std::byte>> buffers(kMessages, std::vector<std::byte>(2 * kEager));
    std::vector<Operation> sends;
    std::vector<Operation> receives;
    const auto post = [&] {
      for (auto& buffer : buffers) receives.push_back(Must(far_.Recv(5, kWholeTag, buffer)));
    };
    if (posted_first) post();
    for (int i = 0; i < kMessages; ++i) {
      sent.push_back(RandomBytes(size_of(i), static_cast<unsigned>(i)));
      sends.push_back(Must(near_.Send(5, sent.back())));
    }
    if (!posted_first) ExpectArrived();
    if (!posted_first) post();
    for (std::size_t i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(EndsOk(sends[i]));
      ASSERT_TRUE(EndsOk(receives[i]));
      ASSERT_EQ(receives[i].bytes(), sent[i].size()) << "message " << i;
      ASSERT_TRUE(std::equal(sent[i].begin(), sent[i].end(), buffers[i].begin()));
    }
  }
}

TEST_F(MessageTest, AMaskChoosesAmongTheMessagesThatAreThere) {
  for (const std::uint64_t tag : {0x11U, 0x21U, 0x12U}) {
    ASSERT_TRUE(EndsOk(near_.Send(tag, BytesOf("m"))));
  }
  std::vector<std::byte> buffer(1);
  std::vector<std::uint64_t> tags;
  for (const auto& [tag, mask] : {std::pair{0x02U, 0x0FU}, {0x20U, 0xF0U}, {0U, 0U}}) {
    auto receive = far_.Recv(tag, mask, buffer);
    ASSERT_TRUE(EndsOk(receive));
    tags.push_back(receive->tag());
  }
  EXPECT_EQ(tags, (std::vector<std::uint64_t>{0x12, 0x21, 0x11}));
}

TEST_F(MessageTest, AMaskChoosesAmongTheReceivesThatAreThere) {
  std::vector<std::byte> low(1);
  std::vector<std::byte> any(1);
  auto wants_low = far_.Recv(0x01, 0x0F, low);
  auto wants_any = far_.Recv(0, 0, any);
  ASSERT_TRUE(EndsOk(near_.Send(0x32, BytesOf("a"))));
  ASSERT_TRUE(EndsOk(near_.Send(0x31, BytesOf("b"))));
  ASSERT_TRUE(EndsOk(wants_low));
  ASSERT_TRUE(EndsOk(wants_any));
  EXPECT_EQ(wants_low->tag(), 0x31u);
  EXPECT_EQ(wants_any->tag(), 0x32u);
  EXPECT_EQ(TextOf(low) + TextOf(any), "ba");
}

TEST_F(MessageTest, AMessageLargerThanTheBufferFailsOnBothSidesAndLaterOnesAreFine) {
  for (const std::size_t bytes : {100UL, kEager, kEager + 1, kLarge}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    GuardedMemory buffer(bytes - 1);
    const auto before = buffer.Copy();
    auto receive = far_.Recv(1, kWholeTag, buffer.span());
    ExpectArrived();
    auto send = near_.Send(1, RandomBytes(bytes, 1));
    ASSERT_TRUE(EndsWith(Code::kInvalidArgument, send));
    ASSERT_TRUE(EndsWith(Code::kInvalidArgument, receive));
    EXPECT_THAT(EndMessage(*receive), AllOf(HasSubstr(std::to_string(bytes) + " bytes"),
                                            HasSubstr("post a larger buffer")));
    EXPECT_THAT(EndMessage(*send), HasSubstr("post a larger buffer"));
    EXPECT_EQ(buffer.Copy(), before);
    EXPECT_TRUE(buffer.GuardsIntact());
    ASSERT_TRUE(Works(&link_));
  }
}

TEST_F(MessageTest, AKeptMessageLargerThanTheBufferIsDroppedAndTheNextOneIsReceived) {
  ASSERT_TRUE(EndsOk(near_.Send(1, RandomBytes(100, 1))));
  auto announced = near_.Send(1, RandomBytes(kLarge, 1));
  ASSERT_TRUE(EndsOk(near_.Send(1, BytesOf("fits"))));
  std::vector<std::byte> buffer(4);
  EXPECT_TRUE(EndsWith(Code::kInvalidArgument, far_.Recv(1, kWholeTag, buffer)));
  EXPECT_TRUE(EndsWith(Code::kInvalidArgument, far_.Recv(1, kWholeTag, buffer)));
  EXPECT_TRUE(EndsWith(Code::kInvalidArgument, announced));
  EXPECT_TRUE(EndsOk(far_.Recv(1, kWholeTag, buffer)));
  EXPECT_EQ(TextOf(buffer), "fits");
}

// Regression: each side took the FIN of the other's message for an answer to its own, because
// operations of both sides have the same ids.
TEST_F(MessageTest, BothSidesMaySendLargeMessagesAtTheSameTime) {
  const auto ours = RandomBytes(kLarge, 1);
  const auto theirs = RandomBytes(kLarge, 2);
  std::vector<std::byte> here(kLarge);
  std::vector<std::byte> there(kLarge);
  for (int round = 0; round < 10; ++round) {
    const auto out = near_.Send(1, ours);
    const auto back = far_.Send(2, theirs);
    const auto out_again = near_.Send(3, ours);
    const auto back_again = far_.Send(4, theirs);
    std::fill(there.begin(), there.end(), std::byte{0});
    ASSERT_TRUE(EndsOk(far_.Recv(1, kWholeTag, there)));
    ASSERT_EQ(there, ours);
    std::fill(here.begin(), here.end(), std::byte{0});
    ASSERT_TRUE(EndsOk(near_.Recv(2, kWholeTag, here)));
    ASSERT_EQ(here, theirs);
    ASSERT_TRUE(EndsOk(out));
    ASSERT_TRUE(EndsOk(back));
    ASSERT_TRUE(EndsOk(near_.Recv(4, kWholeTag, here)));
    ASSERT_TRUE(EndsOk(far_.Recv(3, kWholeTag, there)));
    ASSERT_TRUE(EndsOk(out_again));
    ASSERT_TRUE(EndsOk(back_again));
  }
}

TEST_F(MessageTest, ACancelledRtsOfOneSideDoesNotEndTheOtherSidesRts) {
  const auto message = RandomBytes(kLarge, 1);
  std::vector<std::byte> buffer(kLarge);
  const auto far_send = far_.Send(1, message);
  auto near_send = near_.Send(1, message);
  ExpectArrived();
  near_send->Cancel();
  ASSERT_TRUE(EndsWith(Code::kCancelled, *near_send));
  ASSERT_TRUE(EndsOk(near_.Recv(1, kWholeTag, buffer)));
  ASSERT_TRUE(EndsOk(far_send));
  EXPECT_EQ(buffer, message);
}

TEST_F(MessageTest, ManyThreadsMaySendAndReceiveOnOneConnectionAtOnce) {
  constexpr unsigned kThreads = 6;
  constexpr unsigned kRounds = 20;
  const auto size_of = [](unsigned round) { return round % 2 == 0 ? 100U : 2 * kEager; };
  std::vector<std::jthread> threads;
  for (unsigned tag = 0; tag < kThreads; ++tag) {
    threads.emplace_back([&, tag, to = far_]() mutable {
      for (unsigned round = 0; round < kRounds; ++round) {
        std::vector<std::byte> buffer(2 * kEager);
        auto receive = to.Recv(tag, kWholeTag, buffer);
        ASSERT_TRUE(EndsOk(receive));
        ASSERT_EQ(receive->bytes(), size_of(round));
        buffer.resize(receive->bytes());
        ASSERT_EQ(buffer, RandomBytes(size_of(round), tag * 1000 + round));
      }
    });
    threads.emplace_back([&, tag, from = near_]() mutable {
      for (unsigned round = 0; round < kRounds; ++round) {
        const auto message = RandomBytes(size_of(round), tag * 1000 + round);
        ASSERT_TRUE(EndsOk(from.Send(tag, message)));
      }
    });
  }
}

// ---- more than is kept without a receive --------------------------------------------------------

Config LittleRoom() {
  Config config = EagerConfig();
  config.unexpected_bytes = 64 * 1024;  // the minimum
  return config;
}

class LittleRoomTest : public MessageTest {
 protected:
  LittleRoomTest() : MessageTest(LittleRoom()) {}
};

TEST_F(LittleRoomTest, NothingIsLostAndTheOrderIsKeptWhenUnexpectedMessagesFindNoRoom) {
  constexpr unsigned kMessages = 60;
  const auto size_of = [](unsigned i) { return i % 4 == 1 ? 10U + i : 6000U + i; };
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<std::byte>> sent;
    std::vector<Operation> sends;
    for (unsigned i = 0; i < kMessages; ++i) sent.push_back(RandomBytes(size_of(i), i));
    for (const auto& message : sent) sends.push_back(Must(near_.Send(7, message)));
    ExpectArrived();
    for (unsigned i = 0; i < kMessages; ++i) {
      std::vector<std::byte> buffer(kEager);
      auto receive = far_.Recv(7, kWholeTag, buffer);
      ASSERT_TRUE(EndsOk(receive)) << "message " << i;
      buffer.resize(receive->bytes());
      ASSERT_EQ(buffer, sent[i]) << "message " << i;
    }
    for (const Operation& send : sends) ASSERT_TRUE(EndsOk(send));
  }
}

TEST_F(LittleRoomTest, ReceivesPostedWhileMessagesOverflowLoseNothing) {
  constexpr unsigned kMessages = 200;
  std::jthread sender([from = near_]() mutable {
    std::vector<std::vector<std::byte>> sent;
    std::vector<Operation> sends;
    for (unsigned i = 0; i < kMessages; ++i) sent.push_back(RandomBytes(5000 + i, i));
    for (const auto& message : sent) sends.push_back(Must(from.Send(7, message)));
    for (const Operation& send : sends) ASSERT_TRUE(EndsOk(send));
  });
  for (unsigned i = 0; i < kMessages; ++i) {
    std::vector<std::byte> buffer(kEager);
    auto receive = far_.Recv(7, kWholeTag, buffer);
    ASSERT_TRUE(EndsOk(receive)) << "message " << i;
    buffer.resize(receive->bytes());
    ASSERT_EQ(buffer, RandomBytes(5000 + i, i)) << "message " << i;
  }
}

TEST_F(LittleRoomTest, AnRtsForWantOfRoomCanBeCancelledAndTheOthersArrive) {
  const auto message = RandomBytes(kEager, 1);
  std::vector<Operation> sends;
  for (int i = 0; i < 12; ++i) sends.push_back(Must(near_.Send(7, message)));
  ExpectArrived();
  ASSERT_FALSE(sends[10].Poll());
  sends[10].Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, sends[10]));
  for (int i = 0; i < 11; ++i) {
    std::vector<std::byte> buffer(kEager);
    ASSERT_TRUE(EndsOk(far_.Recv(7, kWholeTag, buffer))) << "message " << i;
    ASSERT_EQ(buffer, message);
  }
  for (int i = 0; i < 12; ++i) {
    if (i != 10) {
      EXPECT_TRUE(EndsOk(sends[static_cast<std::size_t>(i)]));
    }
  }
  EXPECT_TRUE(Works(&link_));
}

Config FewMessages() {
  Config config = EagerConfig();
  config.max_operations = 4;
  return config;
}

class FewMessagesTest : public MessageTest {
 protected:
  FewMessagesTest() : MessageTest(FewMessages()) {}
};

// Regression: the receive of such a message failed, and its send waited for its deadline.
TEST_F(FewMessagesTest, EmptyMessagesThatFindNoRoomArrive) {
  std::vector<Operation> sends;
  for (int i = 0; i < 6; ++i) sends.push_back(Must(near_.Send(7, {})));
  for (int i = 0; i < 6; ++i) {
    std::byte nothing{};
    auto receive = far_.Recv(7, kWholeTag, {&nothing, 0});
    ASSERT_TRUE(EndsOk(receive)) << "message " << i;
    EXPECT_EQ(receive->bytes(), 0u);
  }
  for (const Operation& send : sends) EXPECT_TRUE(EndsOk(send));
}

// The sender's own limit is higher than the receiver's. Regression: that closed the connection.
TEST_F(FewMessagesTest, MessagesBeyondWhatTheReceiverKeepsAtAllAreUnavailableToTheirSenderOnly) {
  for (const std::size_t bytes : {100UL, kLarge}) {
    const auto message = RandomBytes(bytes, 1);
    std::vector<Operation> sends;
    for (int i = 0; i < 20; ++i) sends.push_back(Must(near_.Send(7, message)));
    ASSERT_TRUE(EndsWith(Code::kUnavailable, sends.back()));
    EXPECT_THAT(EndMessage(sends.back()), HasSubstr("receive"));
    std::size_t received = 0;
    for (Operation& send : sends) {
      std::vector<std::byte> buffer(kLarge);
      if (send.Poll() && !send.Wait(Now())) break;
      ASSERT_TRUE(EndsOk(far_.Recv(7, kWholeTag, buffer)));
      ASSERT_TRUE(EndsOk(send));
      ++received;
    }
    EXPECT_GE(received, 4u);
    EXPECT_TRUE(Works(&link_));
  }
}

}  // namespace
}  // namespace ferry::transfer
