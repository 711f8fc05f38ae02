// Where the ends of operations go that one descriptor tells of.
#pragma once
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"

namespace ferry::transfer {

// Any thread.
class CompletionSink {
 public:
  explicit CompletionSink(UniqueFd event) : event_(std::move(event)) {}

  int fd() const noexcept { return event_.get(); }
  void Add(std::uint64_t cookie) {
    const std::lock_guard lock(mutex_);
    // The descriptor stays readable until all have been taken.
    if (ended_.empty()) SignalEventFd(event_.get());
    ended_.push_back(cookie);
  }
  std::vector<std::uint64_t> Take() {
    const std::lock_guard lock(mutex_);
    DrainEventFd(event_.get());
    return std::exchange(ended_, {});
  }

 private:
  const UniqueFd event_;
  std::mutex mutex_;
  std::vector<std::uint64_t> ended_;  // under mutex_
};

}  // namespace ferry::transfer
