// Tests the window of frames in flight.
#include "ferry/transfer/lane/send_window.h"

#include <gtest/gtest.h>

#include <memory>

namespace ferry::transfer {
namespace {

SentFrame FrameOf(OperationRef operation, std::uint64_t bytes = 10) {
  SentFrame frame;
  frame.operation = std::move(operation);
  frame.bytes = bytes;
  return frame;
}

TEST(SendWindow, SettlesFramesOnceTheyAreSentAndAcknowledged) {
  SendWindow window;
  window.Add(FrameOf(nullptr, 10));
  window.Add(FrameOf(nullptr, 20));
  EXPECT_EQ(window.bytes(), 30u);
  EXPECT_EQ(window.Acknowledge(1), SendWindow::Ack::kProgress);
  EXPECT_FALSE(window.TakeSettled());  // not sent completely
  window.MarkSent();
  window.MarkSent();
  const auto settled = window.TakeSettled();
  ASSERT_TRUE(settled);
  EXPECT_EQ(settled->bytes, 10u);
  EXPECT_FALSE(window.TakeSettled());  // not acknowledged
  EXPECT_EQ(window.bytes(), 20u);
  EXPECT_EQ(window.acknowledged(), 1u);
}

TEST(SendWindow, RefusesAcknowledgementsOfFramesThatWereNeverSent) {
  SendWindow window;
  window.Add(FrameOf(nullptr));
  EXPECT_EQ(window.Acknowledge(2), SendWindow::Ack::kInvalid);
  EXPECT_EQ(window.Acknowledge(0), SendWindow::Ack::kStale);
  EXPECT_EQ(window.Acknowledge(1), SendWindow::Ack::kProgress);
  EXPECT_EQ(window.Acknowledge(1), SendWindow::Ack::kStale);
  EXPECT_EQ(window.Acknowledge(~std::uint32_t{0}), SendWindow::Ack::kInvalid);
}

TEST(SendWindow, FindsAFrameByItsNumberUntilItIsSettled) {
  SendWindow window;
  window.Add(FrameOf(nullptr, 1));
  window.Add(FrameOf(nullptr, 2));
  ASSERT_NE(window.Find(1), nullptr);
  EXPECT_EQ(window.Find(1)->bytes, 2u);
  EXPECT_EQ(window.Find(2), nullptr);
  window.MarkSent();
  (void)window.Acknowledge(1);
  (void)window.TakeSettled();
  EXPECT_EQ(window.Find(0), nullptr);
  EXPECT_EQ(window.Find(1)->bytes, 2u);
}

TEST(SendWindow, NamesTheOldestFrameThatHasLeftAndIsNotAcknowledged) {
  SendWindow window;
  for (std::uint64_t bytes = 1; bytes <= 4; ++bytes) window.Add(FrameOf(nullptr, bytes));
  EXPECT_EQ(window.OldestNamed(), nullptr);
  for (const std::uint64_t payload : {5u, 0u, 6u}) {
    window.next_sent().payload = payload;
    window.MarkSent();
  }
  EXPECT_EQ(window.OldestNamed()->payload, 5u);
  (void)window.Acknowledge(1);
  EXPECT_EQ(window.OldestNamed()->payload, 6u) << "the lane cannot name the second";
  (void)window.Acknowledge(3);
  EXPECT_EQ(window.OldestNamed(), nullptr);
}

TEST(SendWindow, CountsTheBytesInFlightBeforeASliceAndItsOwn) {
  SendWindow window;
  window.Add(FrameOf(nullptr, 100));
  const Clock::time_point now = Clock::now();
  window.AddSlice(FrameOf(nullptr, 50), now);
  EXPECT_EQ(window.Find(1)->ahead, 150u);
  EXPECT_EQ(window.Find(1)->since, now);
}

TEST(SendWindow, GoesOnWithTheNumbersAfterALaneWasReplaced) {
  SendWindow window;
  for (std::uint64_t bytes = 1; bytes <= 3; ++bytes) window.Add(FrameOf(nullptr, bytes));
  window.Resume(1);
  EXPECT_TRUE(window.TakeSettled());
  EXPECT_FALSE(window.TakeSettled());
  const auto rest = window.TakeAll();
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(window.bytes(), 0u);
  EXPECT_EQ(window.first(), 1u);
  window.Add(FrameOf(nullptr, 2));
  EXPECT_EQ(window.Acknowledge(2), SendWindow::Ack::kProgress);
}

TEST(SendWindow, KnowsWhatWaitsForThePeer) {
  SendWindow window;
  SentFrame answer = FrameOf(nullptr);
  answer.reply = true;
  window.Add(std::move(answer));
  EXPECT_EQ(window.replies(), 1u);
  EXPECT_TRUE(window.OwesData());
  EXPECT_FALSE(window.HoldsWork());
  const auto operation = std::make_shared<OperationState>();
  window.Add(FrameOf(operation));
  EXPECT_TRUE(window.HoldsWork());
  EXPECT_TRUE(window.HoldsOperation(operation.get()));
  window.Resume(2);
  while (window.TakeSettled()) {
  }
  EXPECT_FALSE(window.HoldsOperation(operation.get()));
  EXPECT_FALSE(window.OwesData());
  EXPECT_EQ(window.replies(), 0u);
}

}  // namespace
}  // namespace ferry::transfer
