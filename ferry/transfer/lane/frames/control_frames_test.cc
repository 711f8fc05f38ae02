// Tests how control frames are merged and limited.
#include <gtest/gtest.h>

#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"

namespace ferry::transfer {
namespace {

using wire::Type;
using Next = ControlFrames::Next;

TEST(ControlFrames, MergeAcknowledgementsThatWait) {
  ControlFrames control;
  EXPECT_TRUE(control.Add(Type::kAck));
  EXPECT_FALSE(control.Add(Type::kAck));
  EXPECT_FALSE(control.Add(Type::kAck));
  EXPECT_EQ(control.OnSent(Type::kAck), Next::kAck);  // the latest count has not left
  EXPECT_TRUE(control.Add(Type::kAck));
  EXPECT_EQ(control.OnSent(Type::kAck), Next::kNothing);
}

TEST(ControlFrames, AnswerAPingThatCameAfterThePongWasQueued) {
  ControlFrames control;
  EXPECT_TRUE(control.Add(Type::kPong));
  EXPECT_FALSE(control.Add(Type::kPong));
  EXPECT_EQ(control.OnSent(Type::kPong), Next::kPong);
  EXPECT_TRUE(control.Add(Type::kPing));
  EXPECT_FALSE(control.Add(Type::kPing));
  EXPECT_EQ(control.OnSent(Type::kPing), Next::kNothing);  // one ping is as good as two
}

TEST(ControlFrames, QueueFewRefusals) {
  ControlFrames control;
  for (std::size_t i = 0; i < kMaxNacks; ++i) {
    EXPECT_TRUE(control.may_refuse());
    EXPECT_TRUE(control.Add(Type::kNack));
  }
  EXPECT_FALSE(control.may_refuse());
  EXPECT_EQ(control.OnSent(Type::kNack), Next::kRefusals);
  EXPECT_TRUE(control.may_refuse());
}

TEST(ControlFrames, SkipRequestsForALaneThatAreRepeatedWhileManyFramesWait) {
  ControlFrames control;
  for (std::size_t i = 0; i < kMaxPlain; ++i) EXPECT_TRUE(control.Add(Type::kReadRefused));
  EXPECT_FALSE(control.Add(Type::kLaneLost));
  control.Drop();
  EXPECT_TRUE(control.Add(Type::kLaneLost));
  control.Reset();
  EXPECT_TRUE(control.Add(Type::kLaneLost));
}

}  // namespace
}  // namespace ferry::transfer
