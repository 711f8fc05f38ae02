// Tests of what a failed FERRY_CHECK prints.
#include "ferry/core/check.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ferry {
namespace {

TEST(Check, EvaluatesItsConditionOnceAndItsValuesOnlyOnFailure) {
  int conditions = 0;
  int values = 0;
  FERRY_CHECK(++conditions == 1, ++values);
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(values, 0);
}

TEST(Check, IsOneStatement) {
  const auto branch = [](bool checked) {
    if (checked)
      FERRY_CHECK(checked);
    else
      return 2;
    return 1;
  };
  EXPECT_EQ(branch(true), 1);
  EXPECT_EQ(branch(false), 2);
}

TEST(CheckDeathTest, PrintsPlaceExpressionAndValuesThenAborts) {
  const int used = 9;
  const int capacity = 8;
  EXPECT_EXIT(FERRY_CHECK(used <= capacity, used, capacity), testing::KilledBySignal(SIGABRT),
              "check_test\\.cc:[0-9]+: check failed: used <= capacity with 9 8");
}

TEST(CheckDeathTest, PrintsNoValuesWhereNoneAreGiven) {
  EXPECT_DEATH(FERRY_CHECK(1 > 2), "check failed: 1 > 2\n");
}

}  // namespace
}  // namespace ferry
