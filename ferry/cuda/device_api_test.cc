// Tests of the limit on streams that wait for flags.
#include "ferry/cuda/device_api.h"

#include <gtest/gtest.h>

namespace ferry::cuda {
namespace {

TEST(MostHeldStreams, AreHalfOfTheQueuesToTheDevice) {
  EXPECT_EQ(MostHeldStreams(nullptr), 4U);
  EXPECT_EQ(MostHeldStreams(""), 4U);
  EXPECT_EQ(MostHeldStreams("many"), 4U);
  EXPECT_EQ(MostHeldStreams("8"), 4U);
  EXPECT_EQ(MostHeldStreams("32"), 16U);
  EXPECT_EQ(MostHeldStreams("1000"), 16U);
  EXPECT_EQ(MostHeldStreams("2"), 1U);
  EXPECT_EQ(MostHeldStreams("1"), 0U);
  EXPECT_EQ(MostHeldStreams("-3"), 0U);
}

}  // namespace
}  // namespace ferry::cuda
