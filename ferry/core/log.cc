// Formats log lines and writes them to stderr, as text or JSON.
#include "ferry/core/log.h"

#include <spdlog/pattern_formatter.h>

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/stderr_line.h"

namespace ferry {
namespace {

// UTC, so that the logs of two machines can be laid side by side.
constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%fZ %v";
// The message supplies the rest of the object.
constexpr const char* kJsonPattern = R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ",%v)";

std::unique_ptr<spdlog::pattern_formatter> MakeFormatter(const char* pattern) {
  return std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc);
}

// Both formats share one lock, which is held for no system call that blocks.
struct Loggers {
  std::mutex mutex;
  // Under mutex.
  std::unique_ptr<spdlog::pattern_formatter> text = MakeFormatter(kTextPattern);
  std::unique_ptr<spdlog::pattern_formatter> json = MakeFormatter(kJsonPattern);
  Clock::time_point second{};  // the first line of the last second with a limited line
  int limited = 0;             // limited lines since then
  std::uint64_t lost = 0;      // lines since the last one that was written
  bool torn = false;           // the last line was written in part
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

// The line without its time.
std::string Body(bool json, LogLevel level, std::string_view subsystem, LogFields fields,
                 std::string_view text) {
  if (json) return JsonRest(level, subsystem, fields, text);
  return fmt::format("[{}] {}: {}", LogLevelName(level), subsystem, EscapeControls(text));
}

std::string WithTime(Loggers* loggers, bool json, std::string_view body) {
  spdlog::memory_buf_t line;
  const spdlog::details::log_msg message("ferry", spdlog::level::info, {body.data(), body.size()});
  (json ? loggers->json : loggers->text)->format(message, line);
  return {line.data(), line.size()};
}

// Whether one more limited line is allowed in this second.
bool TakeLimited(Loggers* loggers) {
  const auto now = Clock::now();
  if (now - loggers->second >= std::chrono::seconds(1)) {
    loggers->second = now;
    loggers->limited = 0;
  }
  return ++loggers->limited <= kMaxLinesPerSecond;
}

// Returns whether stderr took all of the line.
bool Put(Loggers* loggers, std::string line) {
  if (loggers->torn) line.insert(0, "\n");
  const std::size_t taken = internal::WriteStderr(line);
  if (taken > 0) loggers->torn = taken < line.size();
  return taken == line.size();
}

void PutOrCount(Loggers* loggers, bool json, std::string line) {
  if (loggers->lost > 0) {
    const std::string note = fmt::format(
        "{} log lines were lost: stderr was full or closed, or they were more than {} in a second",
        loggers->lost, kMaxLinesPerSecond);
    if (Put(loggers, WithTime(loggers, json, Body(json, LogLevel::kWarn, "log", {}, note)))) {
      loggers->lost = 0;
    }
  }
  if (!Put(loggers, std::move(line))) ++loggers->lost;
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

std::string EscapeControls(std::string_view text) {
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

void WriteStderrLine(std::string_view text, LineLimit limit) noexcept {
  try {
    std::string line = EscapeControls(text) + "\n";
    const bool json = internal::log_format.load(std::memory_order_relaxed) == LogFormat::kJson;
    Loggers& loggers = TheLoggers();
    const std::lock_guard lock(loggers.mutex);
    if (limit == LineLimit::kPerSecond && !TakeLimited(&loggers)) {
      ++loggers.lost;
    } else {
      PutOrCount(&loggers, json, std::move(line));
    }
  } catch (...) {  // without memory there is no other way to report it
    (void)internal::WriteStderr("ferry: out of memory\n");
  }
}

namespace internal {

// Formats before it takes the lock.
void WriteLog(LogLevel level, std::string_view subsystem, LogFields fields, std::string_view text) {
  const bool json = log_format.load(std::memory_order_relaxed) == LogFormat::kJson;
  const std::string body = Body(json, level, subsystem, fields, text);
  Loggers& loggers = TheLoggers();
  const std::lock_guard lock(loggers.mutex);
  // Who asks for lower levels wants all of their lines.
  if (level >= LogLevel::kWarn && !TakeLimited(&loggers)) {
    ++loggers.lost;
  } else {
    PutOrCount(&loggers, json, WithTime(&loggers, json, body));
  }
}

void ResetLineLimit() {
  Loggers& loggers = TheLoggers();
  const std::lock_guard lock(loggers.mutex);
  loggers.second = {};
  loggers.limited = 0;
}

}  // namespace internal
}  // namespace ferry
