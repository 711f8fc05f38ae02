// Tests of the host's element conversions against exhaustive and boundary values.

#include "ferry/kernels/number.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace ferry::kernels {
namespace {

// A format by its definition, in double.
struct FormatFacts {
  const char* name;
  DType dtype;
  int bits;
  int mantissa;
  int bias;
  bool infinities;
};
constexpr FormatFacts kFormats[] = {{"bf16", DType::kBfloat16, 16, 7, 127, true},
                                    {"fp16", DType::kFloat16, 16, 10, 15, true},
                                    {"e4m3", DType::kFloat8E4m3, 8, 3, 7, false}};

double ByDefinition(const FormatFacts& format, std::uint32_t pattern) {
  const int exponent_bits = format.bits - 1 - format.mantissa;
  const auto mantissa = static_cast<double>(pattern % (1U << format.mantissa));
  const int exponent = static_cast<int>(pattern >> format.mantissa) & ((1 << exponent_bits) - 1);
  const double sign = pattern >> (format.bits - 1) != 0 ? -1.0 : 1.0;
  const bool highest = exponent == (1 << exponent_bits) - 1;
  const double scale = std::ldexp(1.0, format.mantissa);
  if (highest && format.infinities) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (highest && mantissa == scale - 1) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa / scale, 1 - format.bias);
  return sign * std::ldexp(1.0 + mantissa / scale, exponent - format.bias);
}

// The pattern lies in the first bytes of the word.
float Read(const FormatFacts& format, std::uint32_t pattern) {
  return ReadFloat(&pattern, format.dtype, 0);
}
std::uint32_t Written(const FormatFacts& format, float value) {
  std::uint32_t pattern = 0;
  WriteFloat(&pattern, format.dtype, 0, value);
  return pattern;
}

TEST(Number, EveryPatternIsReadAsItIsDefined) {
  for (const FormatFacts& format : kFormats) {
    for (std::uint32_t pattern = 0; pattern < 1U << format.bits; ++pattern) {
      const double expected = ByDefinition(format, pattern);
      const float read = Read(format, pattern);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(read)) << format.name << " " << pattern;
      } else {
        ASSERT_EQ(read, expected) << format.name << " " << pattern;
        ASSERT_EQ(std::signbit(read), std::signbit(expected)) << format.name << " " << pattern;
      }
    }
  }
}

TEST(Number, EveryPatternIsWrittenAsItWasRead) {
  for (const FormatFacts& format : kFormats) {
    for (std::uint32_t pattern = 0; pattern < 1U << format.bits; ++pattern) {
      const float read = Read(format, pattern);
      const std::uint32_t written = Written(format, read);
      if (std::isnan(read)) {
        ASSERT_TRUE(std::isnan(Read(format, written))) << format.name << " " << pattern;
      } else if (std::isinf(read)) {
        ASSERT_TRUE(std::isinf(Read(format, written))) << format.name << " " << pattern;
      } else {
        ASSERT_EQ(written, pattern) << format.name;
        ASSERT_EQ(RoundTo(format.dtype, read), read) << format.name;
      }
    }
  }
}

// Values between two neighbours round to the nearer one, and the midpoint to the even one.
TEST(Number, ValuesBetweenTwoPatternsGoToTheNearerOne) {
  for (const FormatFacts& format : kFormats) {
    const std::uint32_t greatest =
        format.infinities ? ((1U << (format.bits - 1 - format.mantissa)) - 1) << format.mantissa
                          : (1U << (format.bits - 1)) - 1;
    for (std::uint32_t low = 0; low + 1 < greatest; ++low) {
      const double middle = (ByDefinition(format, low) + ByDefinition(format, low + 1)) / 2;
      const auto between = static_cast<float>(middle);
      if (between != middle) continue;  // no float is in the middle of the smallest of bf16
      for (const std::uint32_t sign : {0U, 1U << (format.bits - 1)}) {
        const float value = sign != 0 ? -between : between;
        const float below = std::nextafter(value, 0.0F);
        const float above = std::nextafter(value, value * 2);
        ASSERT_EQ(Written(format, below), low | sign) << format.name;
        ASSERT_EQ(Written(format, value), (low % 2 == 0 ? low : low + 1) | sign) << format.name;
        ASSERT_EQ(Written(format, above), (low + 1) | sign) << format.name;
      }
    }
  }
}

TEST(Number, WhatIsTooGreatBecomesInfinityAndInE4m3TheGreatestNumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToFloat16(65519.99F), 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0F), 0x7c00);
  EXPECT_EQ(ToFloat16(-infinity), 0xfc00);
  EXPECT_EQ(ToBfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(ToBfloat16(-infinity), 0xff80);
  EXPECT_EQ(ToE4m3(447.9F), 0x7e);
  EXPECT_EQ(ToE4m3(1e9F), 0x7e);
  EXPECT_EQ(ToE4m3(-infinity), 0xfe);
}

TEST(Number, NotANumberStaysOneWhateverItsBits) {
  for (const std::uint32_t bits : {0x7f800001U, 0x7fffffffU, 0xffc00000U, 0xff800001U}) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(RoundTo(DType::kBfloat16, value))) << bits;
    EXPECT_TRUE(std::isnan(RoundTo(DType::kFloat16, value))) << bits;
    EXPECT_TRUE(std::isnan(RoundTo(DType::kFloat8E4m3, value))) << bits;
  }
}

}  // namespace
}  // namespace ferry::kernels
