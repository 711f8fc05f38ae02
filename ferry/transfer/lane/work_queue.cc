// Adds operations to a lane's queue and removes stale ones.
#include "ferry/transfer/lane/work_queue.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {

void WorkQueue::Add(Op operation) {
  if (!members_.insert(operation.get()).second) return;
  if (queue_.size() >= sweep_at_) Sweep();
  queue_.push_back({std::move(operation)});
}

void WorkQueue::Rotate() {
  ++queue_.front().turns;
  if (queue_.size() == 1) return;
  queue_.push_back(std::move(queue_.front()));
  queue_.pop_front();
}

void WorkQueue::Pop() {
  members_.erase(queue_.front().operation.get());
  queue_.pop_front();
  if (queue_.empty()) sweep_at_ = kMinSweep;
}

void WorkQueue::Clear() {
  queue_.clear();
  members_.clear();
  sweep_at_ = kMinSweep;
}

// Operations that were cancelled, or whose last slice another lane has pulled, would stay until
// their turn, which may not come while the lane is blocked. A returned slice queues its operation
// again.
void WorkQueue::Sweep() {
  const auto is_over = [this](const Entry& entry) {
    return entry.operation->ledger.left() == 0 && members_.erase(entry.operation.get()) != 0;
  };
  queue_.erase(std::remove_if(queue_.begin(), queue_.end(), is_over), queue_.end());
  sweep_at_ = std::max(kMinSweep, 2 * queue_.size());
}

}  // namespace ferry::transfer
