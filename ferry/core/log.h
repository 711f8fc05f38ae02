#pragma once
#include <fmt/core.h>

#include <atomic>
#include <string>
#include <string_view>

#include "ferry/core/result.h"

namespace ferry {

enum class LogLevel : unsigned char { kTrace, kDebug, kInfo, kWarn, kError, kOff };

// "trace", "debug", "info", "warn", "error" or "off".
const char* LogLevelName(LogLevel level) noexcept;
// The inverse of LogLevelName. Errors: kInvalidArgument for any other text.
Result<LogLevel> ParseLogLevel(std::string_view text);

namespace internal {
inline std::atomic<LogLevel> log_level{LogLevel::kWarn};
void WriteLog(LogLevel level, std::string_view subsystem, std::string_view text);
}  // namespace internal

// The lowest level that is written, for the whole process; kOff silences everything. Any thread.
inline void SetLogLevel(LogLevel level) noexcept {
  internal::log_level.store(level, std::memory_order_relaxed);
}

// Whether a message of this level is written now. Any thread; one relaxed load.
inline bool LogEnabled(LogLevel level) noexcept {
  return level != LogLevel::kOff && level >= internal::log_level.load(std::memory_order_relaxed);
}

// Writes one line to stderr: "<UTC time> [<level>] <subsystem>: <text>". Lowercase, no full stop,
// values that a double-click selects ("port 4010"). Control characters are written as \xNN, so a
// message is one line whatever a peer put into it. Any thread; lines never interleave. A message
// below the level costs one load and formats nothing.
//   Log(LogLevel::kWarn, "tcp", "lane {} to {} is down", lane, peer);
template <class... Args>
void Log(LogLevel level, std::string_view subsystem, fmt::format_string<Args...> format,
         Args&&... args) {
  if (!LogEnabled(level)) return;
  internal::WriteLog(level, subsystem, fmt::vformat(format, fmt::make_format_args(args...)));
}

}  // namespace ferry
