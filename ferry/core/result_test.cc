// Tests of Result, of its macros and of the codes on the wire.
#include "ferry/core/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string_view>

namespace ferry {
namespace {

Result<std::unique_ptr<int>> Make(bool good) {
  if (!good) return Error(Code::kUnavailable, "no number is left");
  return std::make_unique<int>(7);
}

Result<int> Twice(bool good) {
  FERRY_TRY_ASSIGN(const std::unique_ptr<int> number, Make(good));
  return 2 * *number;
}

Status Check(bool first, bool second, int& reached) {
  FERRY_TRY(Make(first));
  ++reached;
  FERRY_TRY(Make(second));
  ++reached;
  return Ok();
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> value = 3;
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(*value, 3);
  const Result<int> error = Error(Code::kTimedOut, "nothing came in 5 s");
  ASSERT_FALSE(error.has_value());
  EXPECT_EQ(error.error().code(), Code::kTimedOut);
  EXPECT_EQ(error.error().message(), "nothing came in 5 s");
}

TEST(Result, GivesUpAMoveOnlyValue) {
  auto made = Make(true);
  ASSERT_TRUE(made);
  EXPECT_EQ(**made, 7);
  const std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 7);
}

TEST(Result, ReachesMembersThroughAnArrow) {
  Result<std::string> text = std::string("abc");
  EXPECT_EQ(text->size(), 3u);
  text->push_back('d');
  EXPECT_EQ(*std::as_const(text), "abcd");
}

TEST(Try, PassesTheErrorOnUnchanged) {
  const Result<int> result = Twice(false);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kUnavailable);
  EXPECT_EQ(result.error().message(), "no number is left");
}

TEST(Try, AssignsTheValue) {
  const Result<int> result = Twice(true);
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 14);
}

TEST(Try, StopsAtTheFirstError) {
  int reached = 0;
  EXPECT_FALSE(Check(false, true, reached));
  EXPECT_EQ(reached, 0);
  EXPECT_FALSE(Check(true, false, reached));
  EXPECT_EQ(reached, 1);
  EXPECT_TRUE(Check(true, true, reached));
  EXPECT_EQ(reached, 3);
}

TEST(Error, RemembersWhereItWasMade) {
  const Error error(Code::kInternal, "x");
  const int line = __LINE__ - 1;
  EXPECT_EQ(error.where().line, line);
  EXPECT_TRUE(std::string_view(error.where().file).ends_with("result_test.cc"));
}

TEST(Error, IsPrintedWithTheNameOfItsCode) {
  EXPECT_EQ(Error(Code::kPeerLost, "10.0.0.1 closed the lane").ToString(),
            "PeerLost: 10.0.0.1 closed the lane");
}

// On the wire: a change here breaks peers of other versions.
TEST(Code, KeepsItsNumbersAndNames) {
  const char* const names[] = {"InvalidArgument", "Unsupported", "Unavailable", "Refused",
                               "Cancelled",       "TimedOut",    "PeerLost",    "DeviceLost",
                               "Corrupt",         "Internal"};
  unsigned char number = 1;
  for (const char* name : names) EXPECT_STREQ(CodeName(static_cast<Code>(number++)), name);
  EXPECT_STREQ(CodeName(static_cast<Code>(0)), "Unknown");
  EXPECT_STREQ(CodeName(static_cast<Code>(number)), "Unknown");
}

}  // namespace
}  // namespace ferry
