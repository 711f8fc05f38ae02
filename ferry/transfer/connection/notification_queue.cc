// Keeps notifications of the peer within the limits of the config.
#include "ferry/transfer/connection/notification_queue.h"

#include <utility>

#include "ferry/transfer/lane/matcher.h"

namespace ferry::transfer {

bool NotificationQueue::HasRoom(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return bytes_ + bytes <= config_->notification_bytes && queue_.size() < config_->max_operations &&
         memory_->HasRoom(kKeptRecordBytes + bytes);
}

void NotificationQueue::Add(std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes.size();
  memory_->AddTried(kKeptRecordBytes + bytes.size());
  queue_.push_back(std::move(bytes));
  ready_.Set(true);
}

bool NotificationQueue::Take(std::vector<std::byte>* bytes) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return false;
  *bytes = std::move(queue_.front());
  queue_.pop_front();
  bytes_ -= bytes->size();
  memory_->RemoveTried(kKeptRecordBytes + bytes->size());
  if (queue_.empty() && !closed_) ready_.Set(false);
  return true;
}

Result<UniqueFd> NotificationQueue::Descriptor() {
  const std::lock_guard lock(mutex_);
  return ready_.Descriptor(!queue_.empty() || closed_);
}

void NotificationQueue::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  ready_.Set(true);
}

}  // namespace ferry::transfer
