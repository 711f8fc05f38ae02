// Formats log lines and writes them to stderr, as text or JSON.
#include "ferry/core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "ferry/core/fork.h"

namespace ferry {
namespace {

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

// UTC, so that the logs of two machines can be laid side by side.
constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%fZ %v";
// The message supplies the rest of the object.
constexpr const char* kJsonPattern = R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ",%v)";

std::unique_ptr<spdlog::logger> MakeLogger(const char* pattern) {
  // The sink without a lock ("_st"): Loggers::mutex is the only one.
  auto logger =
      std::make_unique<spdlog::logger>("ferry", std::make_shared<spdlog::sinks::stderr_sink_st>());
  logger->set_level(spdlog::level::trace);
  logger->set_pattern(pattern, spdlog::pattern_time_type::utc);
  return logger;
}

// Both loggers share one lock; spdlog's own could stay locked in a forked child.
struct Loggers {
  std::mutex mutex;
  // Under mutex.
  std::unique_ptr<spdlog::logger> text = MakeLogger(kTextPattern);
  std::unique_ptr<spdlog::logger> json = MakeLogger(kJsonPattern);
};

// Never destroyed: destructors of other static objects may still log.
Loggers& TheLoggers() {
  static PerProcess<Loggers> loggers;
  return loggers.Get();
}

// The JSON object without its opening brace.
std::string JsonRest(LogLevel level, std::string_view subsystem, LogFields fields,
                     std::string_view text) {
  nlohmann::ordered_json line{
      {"level", LogLevelName(level)}, {"subsystem", subsystem}, {"message", text}};
  for (const LogField& field : fields) line[field.name] = field.value;
  // Invalid UTF-8 is replaced, since dump() would throw.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).substr(1);
}

// A peer's text must not forge further lines, or reach the terminal as control codes.
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

namespace internal {

// Formats before it takes the lock.
void WriteLog(LogLevel level, std::string_view subsystem, LogFields fields, std::string_view text) {
  if (log_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    const std::string rest = JsonRest(level, subsystem, fields, text);
    Loggers& loggers = TheLoggers();
    const std::lock_guard lock(loggers.mutex);
    return loggers.json->log(SpdlogLevel(level), "{}", rest);
  }
  const std::string line = OneLine(text);
  Loggers& loggers = TheLoggers();
  const std::lock_guard lock(loggers.mutex);
  loggers.text->log(SpdlogLevel(level), "[{}] {}: {}", LogLevelName(level), subsystem, line);
}

}  // namespace internal
}  // namespace ferry
