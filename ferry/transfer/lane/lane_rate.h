// How fast a lane is, and how much it may have in flight.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "ferry/core/deadline.h"

namespace ferry::transfer {

// Measures the throughput of a lane while it has data in flight. Lives on the lane's loop.
class LaneRate {
 public:
  // `grace`: within this time the lane's bytes in flight are to be acknowledged.
  explicit LaneRate(Clock::duration grace) : grace_(std::max<Clock::duration>(grace, kMinGrace)) {}

  // Data is in flight from now on; nothing was before.
  void Restart(Clock::time_point now);
  // Bytes have been acknowledged or received.
  void Add(std::uint64_t bytes, Clock::time_point now);
  // A slice was acknowledged, that was sent at `since` with `ahead` bytes in flight, its own
  // included.
  void AddSlice(std::uint64_t ahead, Clock::time_point since, Clock::time_point now);

  // Recent throughput in bytes per second; 0 if not known yet. Any thread.
  std::uint64_t rate() const noexcept { return rate_.load(std::memory_order_relaxed); }
  // Limit of the bytes in flight that the lane can carry within the grace: a cancelled operation
  // waits for them. At least 1, which allows one slice.
  std::uint64_t drainable() const noexcept { return std::max<std::uint64_t>(drainable_, 1); }

 private:
  static constexpr milliseconds kMinGrace{250};  // longer than any round trip

  const std::chrono::duration<double> grace_;
  std::atomic<std::uint64_t> rate_{0};
  std::uint64_t bytes_ = 0;  // since since_
  Clock::time_point since_;
  std::uint64_t drainable_ = ~std::uint64_t{0};  // unlimited at first
};

}  // namespace ferry::transfer
