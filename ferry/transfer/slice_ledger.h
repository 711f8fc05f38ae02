#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/result.h"

namespace ferry::transfer {

// Who does which slice of an operation, and when it is over. Lanes on several loops pull slices, so
// a faster lane does more of them; the operation is over when every pulled slice has been resolved
// and no more may be pulled. Exactly one call, of Resolve or Stop, is told so. Any thread.
class SliceLedger {
 public:
  // Starts a round of `slices` > 0; the round before must be over.
  void Begin(std::uint64_t slices) {
    const std::lock_guard lock(mutex_);
    BeginLocked(slices);
  }
  // Likewise, of one slice that is pulled already: a lane that the round before has left with the
  // operation may look for more at any moment, and this one is not for it.
  void BeginPulled() {
    const std::lock_guard lock(mutex_);
    BeginLocked(1);
    next_ = under_way_ = 1;
  }

  // The next slice, until there is none left or the ledger was stopped.
  std::optional<std::uint64_t> Pull() {
    const std::lock_guard lock(mutex_);
    if (LeftLocked() == 0) return std::nullopt;
    ++under_way_;
    if (returned_.empty()) return next_++;
    const std::uint64_t slice = returned_.back();
    returned_.pop_back();
    return slice;
  }

  // One pulled slice will not be touched any more. True if that was the last: the round is over.
  [[nodiscard]] bool Resolve() {
    const std::lock_guard lock(mutex_);
    FERRY_CHECK(under_way_ > 0, next_);
    --under_way_;
    return CheckOverLocked();
  }

  // A pulled slice that was not done, and is not touched any more, may be pulled again. True if the
  // ledger was stopped and this was the last under way: the round is over.
  [[nodiscard]] bool Return(std::uint64_t slice) {
    const std::lock_guard lock(mutex_);
    FERRY_CHECK(under_way_ > 0 && slice < next_, slice, next_);
    --under_way_;
    returned_.push_back(slice);
    return CheckOverLocked();
  }

  // No more slices may be pulled; the first error is kept. True if nothing was under way: the round
  // is over. Without a round (none begun, or over) nothing happens.
  [[nodiscard]] bool Stop(Error error) {
    const std::lock_guard lock(mutex_);
    if (over_) return false;
    if (!error_) error_ = std::move(error);
    return CheckOverLocked();
  }

  // Slices that may be pulled; stale at once.
  std::uint64_t left() const {
    const std::lock_guard lock(mutex_);
    return LeftLocked();
  }
  // Is a round under way?
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
    FERRY_CHECK(slices > 0 && under_way_ == 0, slices, under_way_);
    total_ = slices;
    next_ = 0;
    returned_.clear();
    over_ = false;
  }
  std::uint64_t LeftLocked() const { return error_ ? 0 : total_ - next_ + returned_.size(); }
  bool CheckOverLocked() {
    if (over_ || under_way_ != 0 || LeftLocked() != 0) return false;
    over_ = true;
    return true;
  }

  mutable std::mutex mutex_;
  std::uint64_t total_ = 0;
  std::uint64_t next_ = 0;               // never pulled before
  std::uint64_t under_way_ = 0;          // pulled, neither resolved nor returned
  std::vector<std::uint64_t> returned_;  // of those before next_
  bool over_ = true;
  std::optional<Error> error_;
};

}  // namespace ferry::transfer
