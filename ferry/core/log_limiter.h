// Rate limits for log messages that peers can trigger.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ferry/core/deadline.h"
#include "ferry/core/log.h"

namespace ferry {

// Keeps what others cause from filling the log: for each of them (`key`, an address say) one
// message an interval, with the number of those that were passed over since the last. Remembers a
// bounded number of keys, the latest; where more than that speak up within an interval, the rest
// share one message. Any thread.
class LogLimiter {
 public:
  using Now = std::function<Clock::time_point()>;
  static constexpr std::size_t kMaxKeys = 256;

  explicit LogLimiter(
      Clock::duration interval = std::chrono::seconds(1), Now now = [] { return Clock::now(); });

  // How many messages were passed over since the key's last one, where this one may be written;
  // nothing where it may not, and counts as passed over.
  std::optional<std::uint64_t> Admit(std::string_view key);

  // LogWith() of "<text>", or "<text> (and N more before)", where Admit() lets it.
  void Write(LogLevel level, std::string_view subsystem, std::string_view key, LogFields fields,
             std::string_view text);

 private:
  struct Entry {
    std::string key;
    Clock::time_point written;
    std::uint64_t passed_over = 0;
  };

  Entry* FindOrMake(std::string_view key, Clock::time_point now);

  const Clock::duration interval_;
  const Now now_;
  std::mutex mutex_;
  // All under mutex_. Those written longest ago first.
  std::list<Entry> entries_;
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
  Entry rest_;  // of those for whom there is no room
};

}  // namespace ferry
