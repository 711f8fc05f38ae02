#include "ferry/transfer/matcher.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace ferry::transfer {
namespace {

Matcher::Receive Receive(std::uint64_t tag, std::uint64_t mask = ~std::uint64_t{0}) {
  auto receive = std::make_shared<OperationState>();
  receive->kind = OperationKind::kRecv;
  receive->tag = tag;
  receive->mask = mask;
  return receive;
}

ArrivedMessage Message(std::uint64_t tag, const std::string& text) {
  ArrivedMessage message{.tag = tag, .bytes = text.size(), .peer_operation = 0, .data = {}};
  message.data.resize(text.size());
  if (!text.empty()) std::memcpy(message.data.data(), text.data(), text.size());
  return message;
}

ArrivedMessage Offer(std::uint64_t tag, std::uint64_t peer_operation, std::uint64_t bytes) {
  return {
      .tag = tag, .bytes = bytes, .peer_operation = peer_operation, .offered = true, .data = {}};
}

std::string MessageText(const ArrivedMessage& message) {
  return {reinterpret_cast<const char*>(message.data.data()), message.data.size()};
}

TEST(Matcher, TakesTheOldestReceiveThatWantsTheTag) {
  Matcher matcher;
  const auto first = Receive(7);
  const auto second = Receive(7);
  EXPECT_FALSE(matcher.Post(first));
  EXPECT_FALSE(matcher.Post(second));
  EXPECT_EQ(matcher.TakeReceive(8), nullptr);
  EXPECT_EQ(matcher.TakeReceive(7), first);
  EXPECT_EQ(matcher.TakeReceive(7), second);
  EXPECT_EQ(matcher.TakeReceive(7), nullptr);
}

TEST(Matcher, GivesAReceiveTheOldestMessageThatItWants) {
  Matcher matcher;
  matcher.Keep(Message(1, "one"));
  matcher.Keep(Message(2, "two"));
  matcher.Keep(Message(1, "another one"));
  EXPECT_EQ(MessageText(*matcher.Post(Receive(1))), "one");
  EXPECT_EQ(MessageText(*matcher.Post(Receive(0, 0))), "two");
  EXPECT_EQ(MessageText(*matcher.Post(Receive(1))), "another one");
  EXPECT_FALSE(matcher.Post(Receive(1)));
}

TEST(Matcher, AReceiveTakesATagThatAgreesInTheBitsOfItsMaskForAllSmallTagsAndMasks) {
  for (unsigned tag = 0; tag < 8; ++tag) {
    for (unsigned mask = 0; mask < 8; ++mask) {
      for (unsigned sent = 0; sent < 8; ++sent) {
        SCOPED_TRACE(std::to_string(tag) + "/" + std::to_string(mask) + "/" + std::to_string(sent));
        const bool agrees = (tag & mask) == (sent & mask);
        Matcher posted_first;
        EXPECT_FALSE(posted_first.Post(Receive(tag, mask)));
        EXPECT_EQ(posted_first.TakeReceive(sent) != nullptr, agrees);
        Matcher arrived_first;
        arrived_first.Keep(Message(sent, "m"));
        EXPECT_EQ(arrived_first.Post(Receive(tag, mask)).has_value(), agrees);
      }
    }
  }
}

TEST(Matcher, LooksAtEveryBitOfTheTag) {
  for (int bit = 0; bit < 64; ++bit) {
    Matcher matcher;
    matcher.Keep(Message(std::uint64_t{1} << bit, "m"));
    EXPECT_FALSE(matcher.Post(Receive(0)));
    EXPECT_TRUE(matcher.Post(Receive(0, ~(std::uint64_t{1} << bit))));
  }
}

TEST(Matcher, AMessageThatMatchesOnlyALaterReceiveLeavesTheEarlierOneWaiting) {
  Matcher matcher;
  const auto picky = Receive(0x10, 0xF0);
  const auto any = Receive(0, 0);
  EXPECT_FALSE(matcher.Post(picky));
  EXPECT_FALSE(matcher.Post(any));
  EXPECT_EQ(matcher.TakeReceive(0x21), any);
  EXPECT_EQ(matcher.TakeReceive(0x1F), picky);
}

TEST(Matcher, CountsTheBytesAndMessagesItKeeps) {
  Matcher matcher;
  matcher.Keep(Message(1, "12345"));
  matcher.Keep(Offer(1, 9, 1000));
  matcher.Keep(Message(1, ""));
  EXPECT_EQ(matcher.kept_bytes(), 5u);
  EXPECT_EQ(matcher.kept_messages(), 3u);
  const auto first = matcher.Post(Receive(1));
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->offered);
  EXPECT_EQ(matcher.kept_bytes(), 0u);
  const auto second = matcher.Post(Receive(1));
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->offered);
  EXPECT_EQ(second->peer_operation, 9u);
  EXPECT_EQ(second->bytes, 1000u);
  EXPECT_EQ(matcher.kept_messages(), 1u);
}

TEST(Matcher, ARemovedReceiveTakesNothing) {
  Matcher matcher;
  const auto first = Receive(1);
  const auto second = Receive(1);
  EXPECT_FALSE(matcher.Post(first));
  EXPECT_FALSE(matcher.Post(second));
  EXPECT_TRUE(matcher.RemoveReceive(first.get()));
  EXPECT_FALSE(matcher.RemoveReceive(first.get()));
  EXPECT_EQ(matcher.TakeReceive(1), second);
}

TEST(Matcher, RemovesAnOfferByItsNumberAndNeverAMessageThatIsHere) {
  Matcher matcher;
  ArrivedMessage here = Message(1, "here");
  here.peer_operation = 5;
  matcher.Keep(std::move(here));
  EXPECT_FALSE(matcher.RemoveOffer(5));
  matcher.Keep(Offer(1, 5, 10));
  matcher.Keep(Offer(1, 6, 10));
  EXPECT_TRUE(matcher.RemoveOffer(5));
  EXPECT_FALSE(matcher.RemoveOffer(5));
  EXPECT_EQ(MessageText(*matcher.Post(Receive(1))), "here");
  EXPECT_EQ(matcher.Post(Receive(1))->peer_operation, 6u);
  EXPECT_EQ(matcher.kept_messages(), 0u);
}

}  // namespace
}  // namespace ferry::transfer
