// Rate limits for log messages that peers can trigger.
#include "ferry/core/log_limiter.h"

#include <utility>

#include "ferry/core/fork.h"

namespace ferry {

LogLimiter::LogLimiter(Clock::duration interval, Now now, int most)
    : interval_(interval), now_(std::move(now)), most_(most) {
  rest_.written = Clock::time_point::min();
}

std::optional<std::uint64_t> LogLimiter::Admit(std::string_view key) {
  const auto now = now_();
  const std::lock_guard lock(mutex_);
  // Entries are kept in the order in which they were last written, so the front is the one to
  // forget.
  Entry* const entry = FindOrMake(key, now);
  const bool first = entry->written == Clock::time_point::min();
  if (!first && now - entry->written < interval_) {
    if (entry->messages == most_) {
      ++entry->passed_over;
      return std::nullopt;
    }
    ++entry->messages;
    return std::exchange(entry->passed_over, 0);
  }
  entry->written = now;
  entry->messages = 1;
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    entries_.splice(entries_.end(), entries_, it->second);
  }
  return std::exchange(entry->passed_over, 0);
}

LogLimiter::Entry* LogLimiter::FindOrMake(std::string_view key, Clock::time_point now) {
  if (const auto it = by_key_.find(key); it != by_key_.end()) return &*it->second;
  if (entries_.size() == kMaxKeys) {
    // A key within its interval must be remembered, or it could log again at once.
    // All further keys then share one entry, so that neither memory nor the log grows with their
    // number.
    if (now - entries_.front().written < interval_) return &rest_;
    by_key_.erase(entries_.front().key);
    entries_.pop_front();
  }
  entries_.push_back({.key = std::string(key), .written = Clock::time_point::min()});
  const auto made = std::prev(entries_.end());
  by_key_.emplace(made->key, made);
  return &*made;
}

void LogLimiter::Write(LogLevel level, std::string_view subsystem, std::string_view key,
                       LogFields fields, std::string_view text) {
  if (!LogEnabled(level)) return;
  const auto passed_over = Admit(key);
  if (!passed_over) return;
  if (*passed_over == 0) return LogWith(level, subsystem, fields, "{}", text);
  LogWith(level, subsystem, fields, "{} (and {} more before)", text, *passed_over);
}

void LogLimiter::Reset() {
  const std::lock_guard lock(mutex_);
  by_key_.clear();
  entries_.clear();
  rest_ = {.key = {}, .written = Clock::time_point::min()};
}

LogLimiter& PeerLogLimiter() {
  struct ForPeers : LogLimiter {
    ForPeers()
        : LogLimiter(
              std::chrono::seconds(1), [] { return Clock::now(); }, kPeerLines) {}
  };
  static PerProcess<ForPeers> limiter;
  return limiter.Get();
}

}  // namespace ferry
