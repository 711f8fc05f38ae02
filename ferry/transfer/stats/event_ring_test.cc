// Tests the ring of connection events.
#include "ferry/transfer/stats/event_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace ferry::transfer {
namespace {

using ::testing::ContainsRegex;

TEST(EventRing, AnEmptyOneHasNothingToSay) {
  const EventRing ring{};
  EXPECT_TRUE(ring.Events().empty());
  EXPECT_EQ(ring.Describe(16), "");
}

TEST(EventRing, KeepsTheLastEventsInTheirOrder) {
  EventRing ring;
  for (std::size_t total = 1; total <= 3 * EventRing::kEvents; ++total) {
    ring.Add("event " + std::to_string(total));
    const auto events = ring.Events();
    ASSERT_EQ(events.size(), std::min(total, EventRing::kEvents));
    for (std::size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i].text, "event " + std::to_string(total - events.size() + 1 + i));
      EXPECT_LE(events[i].when, Clock::now());
      EXPECT_TRUE(i == 0 || events[i - 1].when <= events[i].when);
    }
  }
}

TEST(EventRing, LongTextsAreCut) {
  EventRing ring;
  const std::string text(1000, 'x');
  ring.Add(text);
  ring.Add("short");
  EXPECT_EQ(ring.Events().front().text, text.substr(0, EventRing::kTextBytes));
  EXPECT_EQ(ring.Events().back().text, "short");
}

TEST(EventRing, DescribesTheLatestWithTheirAges) {
  EventRing ring;
  for (const char* text : {"one", "two", "three"}) ring.Add(text);
  EXPECT_THAT(ring.Describe(2), ContainsRegex("^[0-9.]+ s ago: two; [0-9.]+ s ago: three$"));
}

TEST(EventRing, ManyThreadsMayAddWhileOthersLook) {
  EventRing ring;
  const auto add = [&ring](int thread) {
    for (int i = 0; i < 500; ++i) ring.Add(std::string(static_cast<std::size_t>(thread), 'a'));
  };
  {
    const std::jthread one(add, 1);
    const std::jthread two(add, 2);
    for (int i = 0; i < 100; ++i) {
      for (const ConnectionEvent& event : ring.Events()) {
        EXPECT_TRUE(event.text == "a" || event.text == "aa") << event.text;
      }
    }
  }
  EXPECT_EQ(ring.Events().size(), EventRing::kEvents);
}

TEST(EventRing, OfWhatRepeatsLessAndLessIsKept) {
  std::vector<std::uint64_t> kept;
  for (std::uint64_t n = 1; n <= 100; ++n) {
    if (WorthKeeping(n)) kept.push_back(n);
  }
  EXPECT_EQ(kept, (std::vector<std::uint64_t>{1, 2, 4, 8, 16, 32, 64}));
}

}  // namespace
}  // namespace ferry::transfer
