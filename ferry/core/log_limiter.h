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

// Limits log messages that others can trigger: for each `key`, for example an address, `most`
// messages per interval, with the number suppressed since the last one. Remembers the most recent
// kMaxKeys keys; further keys within an interval share one message. Any thread.
class LogLimiter {
 public:
  using Now = std::function<Clock::time_point()>;
  static constexpr std::size_t kMaxKeys = 256;

  explicit LogLimiter(
      Clock::duration interval = std::chrono::seconds(1), Now now = [] { return Clock::now(); },
      int most = 1);

  // If a message of this key may be written now, returns how many were suppressed since its last
  // one. Otherwise returns nothing and counts the message as suppressed.
  std::optional<std::uint64_t> Admit(std::string_view key);

  // Logs "<text>", or "<text> (and N more before)", if Admit() allows it.
  void Write(LogLevel level, std::string_view subsystem, std::string_view key, LogFields fields,
             std::string_view text);

  // Forgets all keys and what was suppressed.
  void Reset();

 private:
  struct Entry {
    std::string key;
    Clock::time_point written;  // the first message of its last interval
    int messages = 0;           // in that interval
    std::uint64_t passed_over = 0;
  };

  Entry* FindOrMake(std::string_view key, Clock::time_point now);

  const Clock::duration interval_;
  const Now now_;
  const int most_;
  std::mutex mutex_;
  // All under mutex_. Ordered by `written`, oldest first.
  std::list<Entry> entries_;
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
  Entry rest_;  // for keys beyond kMaxKeys
};

// Limits all lines of this process that a peer can cause, before it has proven who it is and after:
// kPeerLines a second for each key, the peer's host. Any thread.
constexpr int kPeerLines = 10;
LogLimiter& PeerLogLimiter();

}  // namespace ferry
