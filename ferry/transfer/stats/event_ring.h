// A ring of the latest events of a connection.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/transfer/counters.h"

namespace ferry::transfer {

// The last things that happened to a connection, to be told with its errors. Any thread; a mutex,
// because events are rare. What repeats without end is the caller's to thin out: WorthKeeping.
class EventRing {
 public:
  static constexpr std::size_t kEvents = 64;
  static constexpr std::size_t kTextBytes = 160;

  void Add(std::string_view text);
  // Oldest first.
  std::vector<ConnectionEvent> Events() const;
  // The last `most` events as "3.2 s ago: lane 1 was lost; 0.1 s ago: ..."; "" if there are none.
  std::string Describe(std::size_t most) const;

 private:
  struct Slot {
    std::chrono::system_clock::time_point at;
    Clock::time_point when;
    std::size_t bytes = 0;
    std::array<char, kTextBytes> text;
  };
  mutable std::mutex mutex_;
  std::array<Slot, kEvents> slots_;  // under mutex_
  std::uint64_t added_ = 0;          // under mutex_
};

// Whether the `nth` occurrence (from 1) of a repeated event is kept: the 1st, 2nd, 4th, 8th ...
// are. Bounds what a peer can write into the ring.
constexpr bool WorthKeeping(std::uint64_t nth) noexcept { return (nth & (nth - 1)) == 0; }

}  // namespace ferry::transfer
