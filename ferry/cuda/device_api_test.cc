// Tests of the limit on streams that wait for flags.
#include "ferry/cuda/device_api.h"

#include <gtest/gtest.h>

namespace ferry::cuda {
namespace {

TEST(MaxHeldStreams, AreHalfOfTheQueuesToTheDevice) {
  EXPECT_EQ(MaxHeldStreams(nullptr), 4U);
  EXPECT_EQ(MaxHeldStreams(""), 4U);
  EXPECT_EQ(MaxHeldStreams("many"), 4U);
  EXPECT_EQ(MaxHeldStreams("8"), 4U);
  EXPECT_EQ(MaxHeldStreams("32"), 16U);
  EXPECT_EQ(MaxHeldStreams("1000"), 16U);
  EXPECT_EQ(MaxHeldStreams("2"), 1U);
  EXPECT_EQ(MaxHeldStreams("1"), 0U);
  EXPECT_EQ(MaxHeldStreams("-3"), 0U);
}

}  // namespace
}  // namespace ferry::cuda
