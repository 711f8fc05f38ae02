// Logging to stderr, as text or JSON.
#pragma once
#include <fmt/core.h>

#include <atomic>
#include <initializer_list>
#include <string>
#include <string_view>

#include "ferry/core/log_level.h"

namespace ferry {

// "trace", "debug", "info", "warn", "error" or "off".
const char* LogLevelName(LogLevel level) noexcept;

// A machine-readable value of a log line, shown in JSON only. The name is a literal; the value may
// contain any bytes.
struct LogField {
  const char* name;
  std::string value;
};
using LogFields = std::initializer_list<LogField>;

namespace internal {
inline std::atomic<LogLevel> log_level{LogLevel::kWarn};
inline std::atomic<LogFormat> log_format{LogFormat::kText};
void WriteLog(LogLevel level, std::string_view subsystem, LogFields fields, std::string_view text);
}  // namespace internal

// Sets the format of lines for the whole process. Any thread.
inline void SetLogFormat(LogFormat format) noexcept {
  internal::log_format.store(format, std::memory_order_relaxed);
}

// The lowest level that is written, for the whole process; kOff silences everything. Any thread.
inline void SetLogLevel(LogLevel level) noexcept {
  internal::log_level.store(level, std::memory_order_relaxed);
}

// Whether a message of this level is written now. Any thread; one relaxed load.
inline bool LogEnabled(LogLevel level) noexcept {
  return level != LogLevel::kOff && level >= internal::log_level.load(std::memory_order_relaxed);
}

// Writes one line to stderr: "<UTC time> [<level>] <subsystem>: <text>". Use lowercase, no full
// stop, and values that a double-click selects ("port 4010"). Control characters are written as
// \xNN, so a message is one line whatever a peer put into it. In JSON a line is one object (RFC
// 8259) with the strings "time", "level", "subsystem" and "message", and the fields; bytes that are
// not UTF-8 become U+FFFD. Any thread; lines never interleave. A message below the level costs one
// load and formats nothing. A process that closes descriptor 2 after it has loaded this library
// must put another file in its place: the next file that it opens gets the number, and the lines.
//
// Log(LogLevel::kWarn, "tcp", "lane {} to {} is down", lane, peer);
template <class... Args>
void Log(LogLevel level, std::string_view subsystem, fmt::format_string<Args...> format,
         Args&&... args) {
  if (!LogEnabled(level)) return;
  internal::WriteLog(level, subsystem, {}, fmt::vformat(format, fmt::make_format_args(args...)));
}

// As Log, whatever the level is, except kOff: for lines that another setting has asked for.
template <class... Args>
void LogAsked(LogLevel level, std::string_view subsystem, fmt::format_string<Args...> format,
              Args&&... args) {
  if (internal::log_level.load(std::memory_order_relaxed) == LogLevel::kOff) return;
  internal::WriteLog(level, subsystem, {}, fmt::vformat(format, fmt::make_format_args(args...)));
}

// As Log, with fields. Text lines do not show the fields, so the message must contain the values
// too.
template <class... Args>
void LogWith(LogLevel level, std::string_view subsystem, LogFields fields,
             fmt::format_string<Args...> format, Args&&... args) {
  if (!LogEnabled(level)) return;
  internal::WriteLog(level, subsystem, fields,
                     fmt::vformat(format, fmt::make_format_args(args...)));
}

}  // namespace ferry
