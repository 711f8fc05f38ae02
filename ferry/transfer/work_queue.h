#pragma once
#include <cstddef>
#include <deque>
#include <memory>
#include <unordered_set>

#include "ferry/transfer/operation_state.h"

namespace ferry::transfer {

// The operations that a lane pulls slices of, in turn. Each is in it once at most, and each call
// takes constant time, averaged over many, however many there are. One thread.
class WorkQueue {
 public:
  using Op = std::shared_ptr<OperationState>;

  bool empty() const noexcept { return queue_.empty(); }
  std::size_t size() const noexcept { return queue_.size(); }
  const Op& front() const { return queue_.front(); }
  // Puts it last; nothing where it is in the queue already.
  void Add(Op operation);
  // The first becomes the last.
  void Rotate();
  void Pop();
  void Clear();

 private:
  static constexpr std::size_t kLeastSweep = 64;

  void Sweep();

  std::deque<Op> queue_;
  std::unordered_set<const OperationState*> members_;  // those in queue_
  std::size_t sweep_at_ = kLeastSweep;                 // a size of queue_
};

}  // namespace ferry::transfer
