#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

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
    FERRY_CHECK(slices > 0 && pulled_ == resolved_, slices, pulled_, resolved_);
    total_ = slices;
    pulled_ = resolved_ = 0;
    over_ = false;
  }

  // The next slice, until there is none left or the ledger was stopped.
  std::optional<std::uint64_t> Pull() {
    const std::lock_guard lock(mutex_);
    if (pulled_ == total_ || error_) return std::nullopt;
    return pulled_++;
  }

  // One pulled slice will not be touched any more. True if that was the last: the round is over.
  [[nodiscard]] bool Resolve() {
    const std::lock_guard lock(mutex_);
    FERRY_CHECK(resolved_ < pulled_, resolved_, pulled_);
    ++resolved_;
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

  // Slices not pulled yet; stale at once.
  std::uint64_t left() const {
    const std::lock_guard lock(mutex_);
    return error_ ? 0 : total_ - pulled_;
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
  bool CheckOverLocked() {
    if (over_ || resolved_ != pulled_ || (pulled_ != total_ && !error_)) return false;
    over_ = true;
    return true;
  }

  mutable std::mutex mutex_;
  std::uint64_t total_ = 0;
  std::uint64_t pulled_ = 0;
  std::uint64_t resolved_ = 0;
  bool over_ = true;
  std::optional<Error> error_;
};

}  // namespace ferry::transfer
