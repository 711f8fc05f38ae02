// Parses and formats sizes and durations.
#include "ferry/core/units.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>
#include <system_error>

namespace ferry {
namespace {

struct Unit {
  std::string_view suffix;  // lower case
  std::uint64_t factor;
};

constexpr std::uint64_t kTiB = 1024 * kGiB;
constexpr Unit kSizeUnits[] = {
    {"", 1},
    {"b", 1},
    {"k", kKiB},
    {"kib", kKiB},
    {"kb", 1000},
    {"m", kMiB},
    {"mib", kMiB},
    {"mb", 1000'000},
    {"g", kGiB},
    {"gib", kGiB},
    {"t", kTiB},
    {"tib", kTiB},
    {"gb", 1000'000'000},
    {"tb", 1000'000'000'000},
};
constexpr Unit kDurationUnits[] = {{"", 1000}, {"us", 1}, {"ms", 1000}, {"s", 1000'000}};

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// The kind of value to parse, for messages.
struct Quantity {
  const char* noun;
  const char* remedy;
  std::span<const Unit> units;
  std::uint64_t max;
};

Result<std::uint64_t> Parse(std::string_view text, const Quantity& quantity) {
  const auto refuse = [&](const char* problem) {
    return Error(Code::kInvalidArgument,
                 fmt::format("'{}' is {} {}; {}", text, problem, quantity.noun, quantity.remedy));
  };
  std::uint64_t number = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure == std::errc::result_out_of_range) return refuse("too large for");
  if (failure != std::errc()) return refuse("not");
  std::string_view suffix = text.substr(static_cast<std::size_t>(rest - text.data()));
  if (suffix.size() > 1 && suffix.front() == ' ') suffix.remove_prefix(1);
  const auto unit = std::find_if(
      quantity.units.begin(), quantity.units.end(),
      [lower = LowerCase(suffix)](const Unit& candidate) { return candidate.suffix == lower; });
  if (unit == quantity.units.end()) return refuse("not");
  if (number > quantity.max / unit->factor) return refuse("too large for");
  return number * unit->factor;
}

}  // namespace

Result<std::uint64_t> ParseSize(std::string_view text) {
  return Parse(text, {.noun = "a size",
                      .remedy = "write a whole number of bytes, or one with KiB, MiB, GiB, KB, MB "
                                "or GB, below 2^64 bytes",
                      .units = kSizeUnits,
                      .max = std::numeric_limits<std::uint64_t>::max()});
}

std::string FormatSize(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kNames.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kNames[unit]);
}

Result<std::chrono::microseconds> ParseDuration(std::string_view text) {
  using Rep = std::chrono::microseconds::rep;
  FERRY_TRY_ASSIGN(
      const std::uint64_t count,
      Parse(text, {.noun = "a duration",
                   .remedy = "write a whole number of milliseconds, or one with us, ms or s",
                   .units = kDurationUnits,
                   .max = static_cast<std::uint64_t>(std::numeric_limits<Rep>::max())}));
  return std::chrono::microseconds(static_cast<Rep>(count));
}

std::string FormatDuration(std::chrono::microseconds duration) {
  const auto us = duration.count();
  if (us % 1000'000 == 0) return fmt::format("{} s", us / 1000'000);
  if (us % 1000 == 0) return fmt::format("{} ms", us / 1000);
  return fmt::format("{} us", us);
}

}  // namespace ferry
