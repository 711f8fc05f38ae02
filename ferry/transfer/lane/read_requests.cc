// Keeps requested reads in order until they are answered.
#include "ferry/transfer/lane/read_requests.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {

void ReadRequests::Add(ReadSlice slice) {
  bytes_ += slice.bytes;
  cost_ += slice.cost;
  slices_.push_back(std::move(slice));
}

const ReadSlice* ReadRequests::Find(std::uint64_t operation_id, std::uint32_t slice) const {
  const ReadSlice* const first = oldest();
  const bool is_it =
      first != nullptr && first->operation_id == operation_id && first->slice == slice;
  return is_it ? first : nullptr;
}

ReadSlice ReadRequests::TakeOldest() {
  ReadSlice slice = std::move(slices_.front());
  slices_.pop_front();
  bytes_ -= slice.bytes;
  cost_ -= slice.cost;
  return slice;
}

std::deque<ReadSlice> ReadRequests::TakeAll() {
  bytes_ = cost_ = 0;
  return std::exchange(slices_, {});
}

std::size_t ReadRequests::Abandon(const OperationState* operation) {
  std::size_t count = 0;
  for (ReadSlice& slice : slices_) {
    if (slice.operation.get() != operation) continue;
    slice.operation.reset();
    ++count;
  }
  return count;
}

bool ReadRequests::HoldsWork() const {
  return std::any_of(slices_.begin(), slices_.end(),
                     [](const ReadSlice& slice) { return slice.operation != nullptr; });
}

}  // namespace ferry::transfer
