// Tests of parsing and formatting sizes and durations.
#include "ferry/core/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace ferry {
namespace {

using std::chrono::microseconds;

TEST(ParseSize, UnderstandsBinaryDecimalAndShortUnits) {
  const struct {
    const char* text;
    std::uint64_t bytes;
  } kCases[] = {
      {"0", 0},
      {"17", 17},
      {"17B", 17},
      {"4k", 4096},
      {"4K", 4096},
      {"4KiB", 4096},
      {"4 KiB", 4096},
      {"4kib", 4096},
      {"4KB", 4000},
      {"3m", 3 * kMiB},
      {"3MiB", 3 * kMiB},
      {"3MB", 3'000'000},
      {"2g", 2 * kGiB},
      {"2 GiB", 2 * kGiB},
      {"2GB", 2'000'000'000},
      {"5t", 5120 * kGiB},
      {"5TiB", 5120 * kGiB},
      {"5TB", 5'000'000'000'000},
      {"18446744073709551615", std::numeric_limits<std::uint64_t>::max()},
      {"17179869183GiB", 17179869183 * kGiB},
  };
  for (const auto& [text, bytes] : kCases) {
    const auto size = ParseSize(text);
    ASSERT_TRUE(size) << text;
    EXPECT_EQ(*size, bytes) << text;
  }
}

TEST(ParseSize, RefusesWhatIsNotAWholeNumberWithAUnit) {
  for (const char* text :
       {"", " ", "k", "-1", "+1", " 1", "1 ", "1  k", "1.5g", "1q", "1kk", "0x10"}) {
    const auto size = ParseSize(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().code(), Code::kInvalidArgument);
    EXPECT_EQ(size.error().message(),
              std::string("'") + text +
                  "' is not a size; write a whole number of bytes, or one with KiB, MiB, GiB, KB, "
                  "MB or GB, below 2^64 bytes");
  }
}

TEST(ParseSize, RefusesSizesOf64BitsAndMoreInsteadOfWrapping) {
  for (const char* text : {"18446744073709551616", "17179869184GiB", "18446744073709551615k"}) {
    const auto size = ParseSize(text);
    ASSERT_FALSE(size) << text;
    EXPECT_NE(size.error().message().find("is too large for a size"), std::string::npos);
  }
}

TEST(FormatSize, UsesTheLargestUnitThatDivides) {
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(1536), "1536 B");
  EXPECT_EQ(FormatSize(4096), "4 KiB");
  EXPECT_EQ(FormatSize(1536 * kKiB), "1536 KiB");
  EXPECT_EQ(FormatSize(64 * kMiB), "64 MiB");
  EXPECT_EQ(FormatSize(kGiB), "1 GiB");
}

TEST(FormatSize, IsReadBackUnchanged) {
  for (std::uint64_t bytes = 1; bytes != 0; bytes *= 2) {
    for (const std::uint64_t near : {bytes - 1, bytes, bytes + 1}) {
      const auto size = ParseSize(FormatSize(near));
      ASSERT_TRUE(size) << near;
      EXPECT_EQ(*size, near);
    }
  }
}

TEST(ParseDuration, TakesABareNumberAsMilliseconds) {
  const struct {
    const char* text;
    microseconds duration;
  } kCases[] = {
      {"0", microseconds(0)},
      {"25", microseconds(25'000)},
      {"25ms", microseconds(25'000)},
      {"25 ms", microseconds(25'000)},
      {"7us", microseconds(7)},
      {"10s", microseconds(10'000'000)},
      {"10 S", microseconds(10'000'000)},
      {"9223372036854775807us", microseconds::max()},
  };
  for (const auto& [text, duration] : kCases) {
    const auto parsed = ParseDuration(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(*parsed, duration) << text;
  }
}

TEST(ParseDuration, RefusesOtherTextAndOverflow) {
  for (const char* text : {"", "s", "-1", "1.5s", "1m", "1 min", "1 ", "9223372036854775808us",
                           "9223372036854775807", "9223372036854775807s"}) {
    const auto parsed = ParseDuration(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(ParseDuration("1.5s").error().message(),
            "'1.5s' is not a duration; write a whole number of milliseconds, or one with us, ms or "
            "s");
}

TEST(FormatDuration, IsReadBackUnchanged) {
  EXPECT_EQ(FormatDuration(microseconds(10'000'000)), "10 s");
  EXPECT_EQ(FormatDuration(microseconds(1'500'000)), "1500 ms");
  EXPECT_EQ(FormatDuration(microseconds(20)), "20 us");
  for (const std::int64_t us :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{999}, std::int64_t{1000}, std::int64_t{1001},
        std::int64_t{3'600'000'000}, std::numeric_limits<std::int64_t>::max()}) {
    const auto parsed = ParseDuration(FormatDuration(microseconds(us)));
    ASSERT_TRUE(parsed) << us;
    EXPECT_EQ(parsed->count(), us);
  }
}

}  // namespace
}  // namespace ferry
