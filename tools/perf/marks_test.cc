// Tests of the selection and the slots of verified operations.

#include "tools/perf/marks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ferry/core/units.h"
#include "tools/support/json.h"

namespace ferry::tools {
namespace {

using ::testing::ElementsAre;

std::vector<std::uint64_t> Chosen(std::uint64_t count, std::uint64_t most) {
  const Marks marks = Marks::Choose(count, most);
  return {marks.operations().begin(), marks.operations().end()};
}

TEST(Marks, AreTheLastOperationAndSomeOfTheOthers) {
  std::set<std::uint64_t> others;
  for (int i = 0; i < 1000; ++i) {
    const auto marks = Chosen(10, 2);
    ASSERT_EQ(marks.size(), 2U);
    EXPECT_EQ(marks.back(), 9U);
    EXPECT_LT(marks.front(), 9U);
    others.insert(marks.front());
  }
  EXPECT_EQ(others.size(), 9U);  // any of them, sooner or later
}

TEST(Marks, AreFewEnoughNotToShow) {
  EXPECT_EQ(Chosen(1, 17).size(), 1U);
  EXPECT_EQ(Chosen(50, 17).size(), 2U);
  EXPECT_EQ(Chosen(1001, 17).size(), 11U);
  EXPECT_EQ(Chosen(1'000'000, 17).size(), 17U);
  EXPECT_TRUE(Chosen(5, 0).empty());
  EXPECT_TRUE(Chosen(0, 2).empty());
}

TEST(Marks, AreMoreWhereOperationsAreSmall) {
  EXPECT_EQ(MarksFor({.op = Op::kWrite, .size = 8}), kMaxMarks);
  EXPECT_EQ(MarksFor({.op = Op::kWrite, .size = 4 * kMiB}), 5U);
  EXPECT_EQ(MarksFor({.op = Op::kWrite, .size = kGiB}), 2U);
  EXPECT_EQ(MarksFor({.op = Op::kWrite, .size = kGiB}, 3 * kGiB - 1), 1U);
  EXPECT_EQ(MarksFor({.op = Op::kWrite, .size = kGiB}, 2 * kGiB - 1), 0U);
  EXPECT_EQ(MarksFor({.op = Op::kWrite, .size = kGiB}, kGiB - 1), 0U);
}

TEST(Marks, CrossToThePeerAndBack) {
  const Marks marks = Marks::Choose(1000, 17);
  const auto heard = Marks::FromJson({{"marks", marks.ToJson()}}, 1000, 17);
  ASSERT_TRUE(heard);
  const auto told = marks.operations();
  EXPECT_TRUE(
      std::equal(told.begin(), told.end(), heard->operations().begin(), heard->operations().end()));
  for (const char* const wrong : {"[5, 5]", "[6, 5]", "[1000]", "[-1]", "[1, 2, 3]", "\"1\""}) {
    const Json request{{"marks", Json::parse(wrong)}};
    EXPECT_FALSE(Marks::FromJson(request, 1000, 2)) << wrong;
  }
  EXPECT_FALSE(Marks::FromJson(Json::object(), 1000, 2));
}

TEST(SlotCursor, GivesEachMarkedOperationAPlaceOfItsOwn) {
  const auto marks = Marks::FromJson({{"marks", Json::parse("[1, 2, 4]")}}, 5, 3);
  ASSERT_TRUE(marks);
  SlotCursor to(*marks);
  std::vector<std::uint64_t> destinations;
  for (int i = 0; i < 5; ++i) destinations.push_back(to.NextDestination());
  EXPECT_THAT(destinations, ElementsAre(0, 1, 2, 0, 3));
}

}  // namespace
}  // namespace ferry::tools
