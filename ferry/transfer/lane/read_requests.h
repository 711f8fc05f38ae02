// The reads that a lane has requested and whose data has not arrived.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "ferry/core/result.h"
#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

// A slice of a read that was requested.
struct ReadSlice {
  OperationRef operation;  // null once abandoned: the data is dropped
  std::uint64_t operation_id = 0;
  std::uint32_t slice = 0;
  std::uint64_t bytes = 0;
  std::uint64_t cost = 0;  // memory that the answer costs the peer, in bytes
};

// The end of a slice of a read, as the receiving half reports it.
struct ReadEnd {
  OperationRef operation;  // null: its copy into GPU memory has begun, and ends it
  std::uint64_t bytes = 0;
  std::optional<Error> error;
};

// Requests in the order in which the peer answers them, so the oldest is always the one concerned.
// Lives on the lane's loop.
class ReadRequests {
 public:
  void Add(ReadSlice slice);
  // Null if there is none.
  const ReadSlice* oldest() const { return slices_.empty() ? nullptr : &slices_.front(); }
  // The oldest, if that is this slice of the peer's answer; null otherwise.
  const ReadSlice* Find(std::uint64_t operation_id, std::uint32_t slice) const;
  ReadSlice TakeOldest();
  // The lane is lost: no answer follows.
  std::deque<ReadSlice> TakeAll();
  // Drops the operation from its requests; returns how many that were. Their data is dropped when
  // it arrives.
  std::size_t Abandon(const OperationState* operation);

  std::size_t size() const noexcept { return slices_.size(); }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t cost() const noexcept { return cost_; }
  // Whether an operation waits for an answer.
  bool HoldsWork() const;

 private:
  std::deque<ReadSlice> slices_;
  std::uint64_t bytes_ = 0;
  std::uint64_t cost_ = 0;
};

}  // namespace ferry::transfer
