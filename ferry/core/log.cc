#include "ferry/core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <memory>

namespace ferry {
namespace {

constexpr std::array kLevels = {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo,
                                LogLevel::kWarn,  LogLevel::kError, LogLevel::kOff};

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return spdlog::level::trace;
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: break;
  }
  return spdlog::level::off;
}

spdlog::logger* MakeLogger() {
  auto* logger = new spdlog::logger("ferry", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::trace);
  // UTC, so that the logs of two machines can be laid side by side.
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%fZ %v", spdlog::pattern_time_type::utc);
  return logger;
}

// Never destroyed: destructors of other static objects may still log.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = MakeLogger();
  return *logger;
}

std::string OneLine(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace

const char* LogLevelName(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kTrace: return "trace";
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarn: return "warn";
    case LogLevel::kError: return "error";
    case LogLevel::kOff: return "off";
  }
  return "unknown";
}

Result<LogLevel> ParseLogLevel(std::string_view text) {
  for (const LogLevel level : kLevels) {
    if (text == LogLevelName(level)) return level;
  }
  return Error(
      Code::kInvalidArgument,
      fmt::format("'{}' is not a log level; write trace, debug, info, warn, error or off", text));
}

namespace internal {

void WriteLog(LogLevel level, std::string_view subsystem, std::string_view text) {
  const std::string line = OneLine(text);
  Logger().log(SpdlogLevel(level), "[{}] {}: {}", LogLevelName(level), subsystem, line);
}

}  // namespace internal
}  // namespace ferry
