// Tests the log of refused frames.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "ferry/transfer/lane/frames/frame_sender.h"

namespace ferry::transfer {
namespace {

using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

Pairs LatestOf(const RefusalLog& log, std::size_t most = 100) {
  Pairs pairs;
  for (const auto& refusal : log.Latest(most)) pairs.emplace_back(refusal.sequence, refusal.code);
  return pairs;
}

TEST(RefusalLogTest, RemembersWhichFramesWereRefusedAndWhy) {
  RefusalLog log(100);
  EXPECT_TRUE(LatestOf(log).empty());
  log.Add(5, 3, true);
  log.Add(9, 4, true);
  log.Add(7, 2, true);  // its payload arrived later
  log.Add(4, 1, true);
  EXPECT_EQ(LatestOf(log), (Pairs{{4, 1}, {5, 3}, {7, 2}, {9, 4}}));
  EXPECT_EQ(LatestOf(log, 2), (Pairs{{7, 2}, {9, 4}}));
  EXPECT_FALSE(log.has_unsaid());
  EXPECT_EQ(log.Acknowledgeable(20), 20u);
}

TEST(RefusalLogTest, AcknowledgesNoFrameWhoseRefusalIsStillToBeSaid) {
  RefusalLog log(100);
  log.Add(3, 1, true);
  log.Add(6, 2, false);
  log.Add(8, 3, false);
  log.Add(5, 4, false);
  EXPECT_EQ(log.Acknowledgeable(4), 4u);
  EXPECT_EQ(log.Acknowledgeable(10), 5u);
  EXPECT_EQ(log.UnsaidSpan(10), 5u);
  Pairs said;
  while (const auto next = log.NextUnsaid()) {
    said.emplace_back(next->sequence, next->code);
    EXPECT_EQ(log.Acknowledgeable(10), next->sequence);
    log.SaidNext();
  }
  EXPECT_EQ(said, (Pairs{{5, 4}, {6, 2}, {8, 3}}));
  EXPECT_EQ(log.Acknowledgeable(10), 10u);
  EXPECT_EQ(log.UnsaidSpan(10), 0u);
  EXPECT_EQ(LatestOf(log), (Pairs{{3, 1}, {5, 4}, {6, 2}, {8, 3}}));
}

TEST(RefusalLogTest, ForgetsWhatLiesFarBehindButNothingThatIsStillToBeSaid) {
  RefusalLog log(10);
  log.Add(0, 1, true);
  log.Add(2, 1, false);
  for (std::uint32_t finished = 1; finished <= 30; ++finished) log.Forget(finished);
  EXPECT_EQ(LatestOf(log), (Pairs{{2, 1}}));
  log.SaidNext();
  log.Forget(31);
  EXPECT_EQ(log.bytes(), 0u);
}

TEST(RefusalLogTest, HoldsAByteAFrameHoweverManyAreRefused) {
  RefusalLog log(100);
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    log.Add(i, 1, true);
    log.Forget(i + 1);
  }
  EXPECT_LE(log.bytes(), 101u);
  // A long time without refusals takes no memory either.
  log.Add(2'000'000'000U, 1, true);
  EXPECT_LE(log.bytes(), 1u);
}

TEST(RefusalLogTest, GoesOnWhereSequenceNumbersBeginAnew) {
  RefusalLog log(100);
  const std::uint32_t last = ~std::uint32_t{0};
  log.Add(last, 1, false);
  log.Add(1, 2, false);
  EXPECT_EQ(log.Acknowledgeable(3), last);
  EXPECT_EQ(log.UnsaidSpan(3), 4u);
  log.SaidNext();
  EXPECT_EQ(log.Acknowledgeable(3), 1u);
  EXPECT_EQ(LatestOf(log), (Pairs{{last, 1}, {1, 2}}));
  log.MarkAllSaid();
  EXPECT_EQ(log.Acknowledgeable(3), 3u);
}

}  // namespace
}  // namespace ferry::transfer
