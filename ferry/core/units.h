// Sizes and durations as text.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "ferry/core/result.h"

namespace ferry {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// Bytes from a whole number and an optional unit, in any case, with or without one space between:
// B, KiB, MiB, GiB, TiB and k, m, g, t are powers of 1024; KB, MB, GB, TB are powers of 1000.
// Errors: kInvalidArgument for anything else and for 2^64 bytes or more.
Result<std::uint64_t> ParseSize(std::string_view text);
// In the largest power of 1024 that divides the value: "1 MiB", "1536 B". ParseSize returns the
// same value.
std::string FormatSize(std::uint64_t bytes);

// A whole number with us, ms or s, in any case, with or without one space between; a bare number
// is milliseconds. Errors: kInvalidArgument for anything else and for more than 2^63 us.
Result<std::chrono::microseconds> ParseDuration(std::string_view text);
// In the largest of s, ms and us that divides the value: "10 s", "1500 ms". ParseDuration returns
// the same value if the duration is not negative.
std::string FormatDuration(std::chrono::microseconds duration);

}  // namespace ferry
