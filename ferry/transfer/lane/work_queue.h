// The queue of operations from which a lane pulls slices.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_set>

#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

// The operations from which a lane pulls slices, in turn. Each operation is in it at most once.
// Each call takes amortized constant time. Not thread-safe.
class WorkQueue {
 public:
  using Op = OperationRef;

  bool empty() const noexcept { return queue_.empty(); }
  std::size_t size() const noexcept { return queue_.size(); }
  const Op& front() const { return queue_.front().operation; }
  // How often the first was rotated since it was added.
  std::uint64_t front_turns() const { return queue_.front().turns; }
  // Appends it; does nothing if it is already in the queue.
  void Add(Op operation);
  // Moves the first to the end.
  void Rotate();
  void Pop();
  void Clear();

 private:
  static constexpr std::size_t kMinSweep = 64;
  struct Entry {
    Op operation;
    std::uint64_t turns = 0;
  };

  void Sweep();

  std::deque<Entry> queue_;
  std::unordered_set<const OperationState*> members_;  // those in queue_
  std::size_t sweep_at_ = kMinSweep;  // size of queue_ at which the next sweep runs
};

}  // namespace ferry::transfer
