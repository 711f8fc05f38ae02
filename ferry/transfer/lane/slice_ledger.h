// Distributes the slices of an operation to lanes and detects when all are resolved.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/result.h"

namespace ferry::transfer {

// Distributes the slices of an operation to lanes, and detects its end. Lanes on several loops pull
// slices, so a faster lane takes more of them. A round is over when every pulled slice is resolved
// and no more may be pulled; exactly one call of Resolve, Return or Stop reports that. Any thread;
// each call takes a mutex for a few instructions.
class SliceLedger {
 public:
  // Starts a round of `slices` > 0; the previous round must be over.
  void Begin(std::uint64_t slices) {
    const std::lock_guard lock(mutex_);
    BeginLocked(slices);
  }
  // Starts a round of one slice that is already pulled: a lane that still knows the operation from
  // the previous round may try to pull at any moment, and must not get this slice.
  void BeginPulled() {
    const std::lock_guard lock(mutex_);
    BeginLocked(1);
    next_ = in_flight_ = 1;
  }

  // Takes the next slice; nullopt if none is left or the ledger was stopped.
  std::optional<std::uint64_t> Pull() {
    const std::lock_guard lock(mutex_);
    if (LeftLocked() == 0) return std::nullopt;
    ++in_flight_;
    if (returned_.empty()) return next_++;
    const std::uint64_t slice = returned_.back();
    returned_.pop_back();
    return slice;
  }

  // The caller no longer touches this pulled slice. Returns true if it was the last one: the round
  // is over.
  [[nodiscard]] bool Resolve() {
    const std::lock_guard lock(mutex_);
    FERRY_CHECK(in_flight_ > 0, next_);
    --in_flight_;
    return CheckOverLocked();
  }

  // Returns a pulled slice that was not transferred and is no longer touched, so that it may be
  // pulled again. Returns true if the ledger was stopped and this was the last one in flight: the
  // round is over.
  [[nodiscard]] bool Return(std::uint64_t slice) {
    const std::lock_guard lock(mutex_);
    FERRY_CHECK(in_flight_ > 0 && slice < next_, slice, next_);
    --in_flight_;
    returned_.push_back(slice);
    return CheckOverLocked();
  }

  // Forbids further pulls; the first error is kept. Returns true if nothing was in flight: the
  // round is over. Does nothing if no round is active.
  [[nodiscard]] bool Stop(Error error) {
    const std::lock_guard lock(mutex_);
    if (over_) return false;
    if (!error_) error_ = std::move(error);
    return CheckOverLocked();
  }

  // Slices that may still be pulled; stale as soon as it returns.
  std::uint64_t left() const {
    const std::lock_guard lock(mutex_);
    return LeftLocked();
  }
  // Whether a round is active.
  bool active() const {
    const std::lock_guard lock(mutex_);
    return !over_;
  }
  std::optional<Error> error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  void BeginLocked(std::uint64_t slices) {
    FERRY_CHECK(slices > 0 && in_flight_ == 0, slices, in_flight_);
    total_ = slices;
    next_ = 0;
    returned_.clear();
    over_ = false;
  }
  std::uint64_t LeftLocked() const { return error_ ? 0 : total_ - next_ + returned_.size(); }
  bool CheckOverLocked() {
    if (over_ || in_flight_ != 0 || LeftLocked() != 0) return false;
    over_ = true;
    return true;
  }

  mutable std::mutex mutex_;
  std::uint64_t total_ = 0;
  std::uint64_t next_ = 0;               // next slice that was never pulled
  std::uint64_t in_flight_ = 0;          // pulled, neither resolved nor returned
  std::vector<std::uint64_t> returned_;  // smaller than next_
  bool over_ = true;
  std::optional<Error> error_;
};

}  // namespace ferry::transfer
