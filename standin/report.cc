// Implements log lines and the count of misuses.

#include "standin/report.h"

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>

#include "standin/standin.h"

#define FERRY_STANDIN_EXPORT __attribute__((visibility("default")))

namespace ferry::standin {
namespace {

// Those of all hosts, from the first on; null: free.
std::array<std::atomic<abi::Logger>, kMaxHosts> loggers_of_hosts{};
std::atomic<bool> abort_on_misuse_is_on{false};

struct Misuses {
  std::mutex mutex;
  unsigned long count = 0;
  const char* last = "";
  std::deque<std::string> texts;  // all of them: the host may keep what `last` was
};

Misuses& AllMisuses() {
  static auto* const misuses = new Misuses;  // for good: threads outlive static objects
  return *misuses;
}

std::string Formatted(const char* format, std::va_list arguments) {
  char text[512];
  (void)std::vsnprintf(text, sizeof(text), format, arguments);
  return text;
}

void Hand(abi::LogLevel level, const std::string& text) {
  constexpr unsigned long kNet = 16;
  for (const auto& one : loggers_of_hosts) {
    const abi::Logger logger = one.load(std::memory_order_acquire);
    if (logger != nullptr) logger(level, kNet, "standin", 0, "%s", text.c_str());
  }
}

}  // namespace

void BeginReporting(abi::Logger logger, bool abort_on_misuse) {
  loggers_of_hosts.front().store(logger, std::memory_order_release);
  abort_on_misuse_is_on.store(abort_on_misuse, std::memory_order_relaxed);
}

NewHost AddLogger(abi::Logger logger) {
  for (auto& one : loggers_of_hosts) {
    abi::Logger present = nullptr;
    if (one.compare_exchange_strong(present, logger, std::memory_order_acq_rel)) {
      return NewHost::kAdded;
    }
    if (present == logger) return NewHost::kKnown;
  }
  return NewHost::kTooMany;
}

void Log(abi::LogLevel level, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  const std::string text = Formatted(format, arguments);
  va_end(arguments);
  Hand(level, text);
}

int Misuse(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  const std::string text = Formatted(format, arguments);
  va_end(arguments);
  {
    Misuses& misuses = AllMisuses();
    const std::lock_guard lock(misuses.mutex);
    misuses.last = misuses.texts.emplace_back(text).c_str();
    ++misuses.count;
  }
  // Without the mutex: the logger is the host's code.
  Hand(abi::kLogWarn, "standin: misuse: " + text);
  if (abort_on_misuse_is_on.load(std::memory_order_relaxed)) std::abort();
  return abi::kInternalError;
}

}  // namespace ferry::standin

extern "C" {

// NOLINTBEGIN(readability-identifier-naming): C names
FERRY_STANDIN_EXPORT unsigned long ferry_standin_misuses() {
  auto& misuses = ferry::standin::AllMisuses();
  const std::lock_guard lock(misuses.mutex);
  return misuses.count;
}

FERRY_STANDIN_EXPORT const char* ferry_standin_last_misuse() {
  auto& misuses = ferry::standin::AllMisuses();
  const std::lock_guard lock(misuses.mutex);
  return misuses.last;
}

FERRY_STANDIN_EXPORT void ferry_standin_reset() {
  auto& misuses = ferry::standin::AllMisuses();
  const std::lock_guard lock(misuses.mutex);
  misuses.count = 0;
  misuses.last = "";
}
// NOLINTEND(readability-identifier-naming)
}
