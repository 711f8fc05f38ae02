// Tests matching of receives and messages against a simple model.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ferry/transfer/lane/message_queue.h"
#include "ferry/transfer/testing/cost.h"

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

ArrivedMessage Rts(std::uint64_t tag, std::uint64_t peer_operation, std::uint64_t bytes) {
  return {
      .tag = tag, .bytes = bytes, .peer_operation = peer_operation, .announced = true, .data = {}};
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
  matcher.Keep(Rts(1, 9, 1000));
  matcher.Keep(Message(1, ""));
  EXPECT_EQ(matcher.kept_bytes(), 5u);
  EXPECT_EQ(matcher.kept_messages(), 3u);
  const auto first = matcher.Post(Receive(1));
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->announced);
  EXPECT_EQ(matcher.kept_bytes(), 0u);
  const auto second = matcher.Post(Receive(1));
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->announced);
  EXPECT_EQ(second->peer_operation, 9u);
  EXPECT_EQ(second->bytes, 1000u);
  EXPECT_EQ(matcher.kept_messages(), 1u);
}

TEST(Matcher, CountsWhatItsTablesMayTakeAndWhatTheyTake) {
  constexpr std::uint64_t kMessages = 1000;
  Matcher matcher;
  const std::uint64_t one = matcher.CostOfNext(/*announced=*/true);
  for (std::uint64_t i = 0; i < kMessages; ++i) matcher.Keep(Rts(i, i, 10));
  EXPECT_EQ(matcher.held_bytes(), kMessages * one);
  EXPECT_FALSE(matcher.Post(Receive(kMessages), /*may_index=*/false));
  EXPECT_EQ(matcher.held_bytes(), kMessages * one) << "the first table is paid for";
  EXPECT_FALSE(matcher.Post(Receive(1024, 1025), /*may_index=*/false));
  EXPECT_EQ(matcher.held_bytes(), kMessages * one);
  EXPECT_FALSE(matcher.Post(Receive(1024, 1024), /*may_index=*/true));
  EXPECT_EQ(matcher.held_bytes(), kMessages * (one + kTableEntryBytes));
  EXPECT_EQ(matcher.CostOfNext(/*announced=*/true), one + kTableEntryBytes);
  for (std::uint64_t i = 1; i < kMessages; ++i) EXPECT_TRUE(matcher.RemoveRts(i));
  EXPECT_GT(matcher.held_bytes(), kMessages * 40) << "tables shrink only when they are empty";
  EXPECT_TRUE(matcher.RemoveRts(0));
  EXPECT_EQ(matcher.held_bytes(), 0u);
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

TEST(Matcher, RemovesAnRtsByItsNumberAndNeverAMessageThatIsHere) {
  Matcher matcher;
  ArrivedMessage here = Message(1, "here");
  here.peer_operation = 5;
  matcher.Keep(std::move(here));
  EXPECT_FALSE(matcher.RemoveRts(5));
  matcher.Keep(Rts(1, 5, 10));
  matcher.Keep(Rts(1, 6, 10));
  EXPECT_TRUE(matcher.RemoveRts(5));
  EXPECT_FALSE(matcher.RemoveRts(5));
  EXPECT_EQ(MessageText(*matcher.Post(Receive(1))), "here");
  EXPECT_EQ(matcher.Post(Receive(1))->peer_operation, 6u);
  EXPECT_EQ(matcher.kept_messages(), 0u);
}

TEST(Matcher, AReceiveThatIsPutBackIsWhereItWas) {
  Matcher matcher;
  const auto first = Receive(1);
  const auto any = Receive(0, 0);
  const auto last = Receive(2);
  for (const auto& receive : {first, any, last}) EXPECT_FALSE(matcher.Post(receive));
  EXPECT_EQ(matcher.TakeReceive(2), any);
  matcher.PutBack(any);
  EXPECT_EQ(matcher.TakeReceive(1), first);
  EXPECT_EQ(matcher.TakeReceive(2), any);
  EXPECT_EQ(matcher.TakeReceive(2), last);
}

// ---- against a simple model ---------------------------------------------------------------------

// Scans everything, in order.
class PlainMatcher {
 public:
  std::optional<ArrivedMessage> Post(const Matcher::Receive& receive) {
    const auto it = std::find_if(arrived_.begin(), arrived_.end(),
                                 [&](const auto& message) { return Takes(*receive, message.tag); });
    if (it == arrived_.end()) {
      posted_.emplace_back(++last_, receive);
      return std::nullopt;
    }
    ArrivedMessage message = std::move(*it);
    arrived_.erase(it);
    return message;
  }
  Matcher::Receive TakeReceive(std::uint64_t tag) {
    const auto it = std::find_if(posted_.begin(), posted_.end(),
                                 [&](const auto& each) { return Takes(*each.second, tag); });
    if (it == posted_.end()) return nullptr;
    taken_ = *it;
    posted_.erase(it);
    return taken_.second;
  }
  // The receive that was taken last.
  void PutBack() {
    const auto it = std::find_if(posted_.begin(), posted_.end(),
                                 [&](const auto& each) { return each.first > taken_.first; });
    posted_.insert(it, taken_);
  }
  void Keep(ArrivedMessage message) { arrived_.push_back(std::move(message)); }
  bool RemoveReceive(const OperationState* receive) {
    return std::erase_if(posted_, [&](const auto& each) { return each.second.get() == receive; }) >
           0;
  }
  bool RemoveRts(std::uint64_t peer_operation) {
    const auto it = std::find_if(arrived_.begin(), arrived_.end(), [&](const auto& message) {
      return message.announced && message.peer_operation == peer_operation;
    });
    if (it == arrived_.end()) return false;
    arrived_.erase(it);
    return true;
  }
  std::uint64_t kept_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& message : arrived_) bytes += message.data.size();
    return bytes;
  }
  std::size_t kept_messages() const { return arrived_.size(); }
  const auto& posted() const { return posted_; }

 private:
  static bool Takes(const OperationState& receive, std::uint64_t tag) {
    return ((receive.tag ^ tag) & receive.mask) == 0;
  }

  std::vector<std::pair<std::uint64_t, Matcher::Receive>> posted_;  // with their positions
  std::vector<ArrivedMessage> arrived_;
  std::pair<std::uint64_t, Matcher::Receive> taken_;
  std::uint64_t last_ = 0;
};

// Applies the same random steps to a Matcher and a PlainMatcher.
class MatcherModelTest : public ::testing::TestWithParam<unsigned> {
 protected:
  // Few tags, so that most match something; more masks than are indexed.
  std::uint64_t AnyTag() { return Any(12) | (Any(2) << 40); }
  std::uint64_t AnyMask() {
    constexpr std::array<std::uint64_t, 12> kMasks{
        ~std::uint64_t{0}, ~std::uint64_t{0},     ~std::uint64_t{0}, 0, ~std::uint64_t{1},
        ~std::uint64_t{3}, std::uint64_t{3},      std::uint64_t{7},  5, 6,
        std::uint64_t{9},  std::uint64_t{1} << 40};
    return kMasks[Any(kMasks.size())];
  }
  std::uint64_t Any(std::uint64_t below) { return random_() % below; }

  void PostOne() {
    const auto receive = Receive(AnyTag(), AnyMask());
    const auto message = matcher_.Post(receive);
    const auto expected = plain_.Post(receive);
    ASSERT_EQ(message.has_value(), expected.has_value());
    if (message) ExpectSame(*message, *expected);
  }
  void BringOne() {
    const std::uint64_t tag = AnyTag();
    const auto receive = matcher_.TakeReceive(tag);
    ASSERT_EQ(receive, plain_.TakeReceive(tag));
    if (receive && Any(4) == 0) {
      matcher_.PutBack(receive);
      plain_.PutBack();
    } else if (!receive) {
      ArrivedMessage message =
          Any(2) == 0 ? Rts(tag, Any(50), ++number_) : Message(tag, std::to_string(++number_));
      plain_.Keep(message);
      matcher_.Keep(std::move(message));
    }
  }
  void CancelOne() {
    if (plain_.posted().empty()) return;
    const auto receive = plain_.posted()[Any(plain_.posted().size())].second;
    EXPECT_TRUE(plain_.RemoveReceive(receive.get()));
    ASSERT_TRUE(matcher_.RemoveReceive(receive.get()));
    ASSERT_FALSE(matcher_.RemoveReceive(receive.get()));
  }
  void WithdrawOne() {
    const std::uint64_t number = Any(50);
    ASSERT_EQ(matcher_.RemoveRts(number), plain_.RemoveRts(number));
  }
  void ExpectSameCounts() {
    ASSERT_EQ(matcher_.kept_messages(), plain_.kept_messages());
    ASSERT_EQ(matcher_.kept_bytes(), plain_.kept_bytes());
  }
  static void ExpectSame(const ArrivedMessage& message, const ArrivedMessage& expected) {
    ASSERT_EQ(message.tag, expected.tag);
    ASSERT_EQ(message.bytes, expected.bytes);
    ASSERT_EQ(message.peer_operation, expected.peer_operation);
    ASSERT_EQ(message.announced, expected.announced);
    ASSERT_EQ(message.data, expected.data);
  }

  std::mt19937_64 random_{GetParam()};
  Matcher matcher_;
  PlainMatcher plain_;
  std::uint64_t number_ = 0;
};

// Alternates phases in which mostly receives are posted with phases in which mostly messages
// arrive, so that at times both sides have long queues, and at times empty ones.
TEST_P(MatcherModelTest, GivesWhatLookingAtEverythingGivesForTensOfThousandsOfRandomSteps) {
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t choice = Any(20);
    const bool posts = step / 500 % 2 == 0 ? choice < 11 : choice < 6;
    if (choice < 17) {
      posts ? PostOne() : BringOne();
    } else {
      choice < 19 ? CancelOne() : WithdrawOne();
    }
    ExpectSameCounts();
    if (HasFatalFailure()) FAIL() << "step " << step;
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, MatcherModelTest, ::testing::Range(1U, 5U));

// ---- many ---------------------------------------------------------------------------------------

// Visits them in a different order than they were inserted in.
std::uint64_t NextTag(std::uint64_t* tag, std::size_t count) {
  *tag = (*tag + 7'919) % count;
  return *tag;
}

TEST(MatcherWithMany, FindsAReceiveWithoutASearchThroughAllReceives) {
  const auto growth = CostGrowth([](std::size_t count) {
    auto matcher = std::make_shared<Matcher>();
    for (std::size_t tag = 0; tag < count; ++tag) (void)matcher->Post(Receive(tag));
    (void)matcher->Post(Receive(count, ~std::uint64_t{1}));
    return [matcher, count, tag = std::uint64_t{0}]() mutable {
      (void)matcher->Post(matcher->TakeReceive(NextTag(&tag, count)));
    };
  });
  EXPECT_LT(growth, kMaxGrowth);
}

TEST(MatcherWithMany, RemovesAReceiveWithoutASearchThroughAllOfItsTag) {
  const auto growth = CostGrowth([](std::size_t count) {
    auto matcher = std::make_shared<Matcher>();
    auto receives = std::make_shared<std::vector<Matcher::Receive>>();
    for (std::size_t i = 0; i < count; ++i) {
      receives->push_back(Receive(1));
      (void)matcher->Post(receives->back());
    }
    return [matcher, receives, count, at = std::uint64_t{0}]() mutable {
      const auto& receive = (*receives)[NextTag(&at, count)];
      EXPECT_TRUE(matcher->RemoveReceive(receive.get()));
      (void)matcher->Post(receive);
    };
  });
  EXPECT_LT(growth, kMaxGrowth);
}

TEST(MatcherWithMany, FindsAMessageWithoutASearchThroughAllMessagesByWholeTagsAndByMasks) {
  for (const std::uint64_t mask : {~std::uint64_t{0}, ~std::uint64_t{0xF}}) {
    const auto growth = CostGrowth([mask](std::size_t count) {
      auto matcher = std::make_shared<Matcher>();
      for (std::size_t tag = 0; tag < count; ++tag) matcher->Keep(Rts(tag, tag, 1));
      return [matcher, count, receive = Receive(0, mask)]() mutable {
        receive->tag = NextTag(&receive->tag, count);
        auto message = matcher->Post(receive);
        ASSERT_TRUE(message);
        matcher->Keep(*std::move(message));
      };
    });
    EXPECT_LT(growth, kMaxGrowth) << mask;
  }
}

TEST(MatcherWithMany, RemovesAnRtsWithoutASearchThroughAllMessages) {
  const auto growth = CostGrowth([](std::size_t count) {
    auto matcher = std::make_shared<Matcher>();
    for (std::size_t tag = 0; tag < count; ++tag) matcher->Keep(Rts(tag, tag, 1));
    return [matcher, count, tag = std::uint64_t{0}]() mutable {
      EXPECT_TRUE(matcher->RemoveRts(NextTag(&tag, count)));
      matcher->Keep(Rts(tag, tag, 1));
    };
  });
  EXPECT_LT(growth, kMaxGrowth);
}

}  // namespace
}  // namespace ferry::transfer
