// Tests of the suggestions for misspelt variables.
#include "ferry/core/unknown_variables.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace ferry {
namespace {

TEST(UnknownVariables, AreToldWithTheNearestName) {
  EXPECT_EQ(DescribeUnknown("FERRY_LANE"),
            "FERRY_LANE is not a setting; did you mean FERRY_LANES?");
  EXPECT_EQ(DescribeUnknown("FERRY_PORTRANGE"),
            "FERRY_PORTRANGE is not a setting; did you mean FERRY_PORT_RANGE?");
  EXPECT_EQ(DescribeUnknown("FERRY_PERR_TIMEOUT"),
            "FERRY_PERR_TIMEOUT is not a setting; did you mean FERRY_PEER_TIMEOUT?");
  EXPECT_EQ(DescribeUnknown("FERRY_XYZZY_PLUGH_QUUX"),
            "FERRY_XYZZY_PLUGH_QUUX is not a setting; 'ferry info' lists all settings");
}

TEST(UnknownVariables, AreLoggedOnceInAProcess) {
  ASSERT_EQ(::setenv("FERRY_NO_SUCH_SETTING", "1", 1), 0);
  ::testing::internal::CaptureStderr();
  WarnOfUnknownVariables();
  WarnOfUnknownVariables();
  ::unsetenv("FERRY_NO_SUCH_SETTING");
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto at = log.find("[warn] config: FERRY_NO_SUCH_SETTING is not a setting");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find("FERRY_NO_SUCH_SETTING is not", at + 20), std::string::npos) << log;
}

}  // namespace
}  // namespace ferry
