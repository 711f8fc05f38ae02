// Decides which slices a lane takes, and when.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/work_queue.h"

namespace ferry::transfer {

// A slice that a lane has taken from its operation's ledger.
struct PulledSlice {
  OperationRef operation;
  std::uint32_t slice = 0;
};

// What a lane has in flight and may still take. In bytes, if nothing else is said.
struct LaneLoad {
  std::uint64_t unsent = 0;          // queued for the socket
  std::uint64_t unacknowledged = 0;  // with those that wait for GPU copies
  std::size_t frames = 0;            // the same in frames
  std::uint64_t drainable = 0;       // limit of what is unacknowledged
  std::uint64_t copying = 0;         // of slices that the peer copies
  std::uint64_t reading = 0;         // requested and not arrived
  bool may_stage = false;            // a slice of GPU memory would be sent soon
  bool may_ask = false;              // the peer can hold the answer to another read
};

// The operations of which a lane may take slices, round robin, one slice each. Lives on the lane's
// loop.
class SlicePuller {
 public:
  enum class Queue { kWrites, kStagedWrites, kReads };

  explicit SlicePuller(const LaneSite& site) : site_(site) {}

  // The operation may be queued already.
  void Add(OperationRef operation);
  // Takes the next slice of the queue, unless the load forbids it.
  std::optional<PulledSlice> Pull(Queue queue, const LaneLoad& load);
  bool empty() const noexcept { return writes_.empty() && staged_.empty() && reads_.empty(); }
  // Nothing is taken any more.
  void Stop();
  bool stopped() const noexcept { return stopped_; }

 private:
  WorkQueue& QueueOf(Queue queue);
  bool May(Queue from, const LaneLoad& load);
  bool MayWrite(const OperationState& operation, std::uint64_t taken, const LaneLoad& load) const;
  bool MayRead(const OperationState& operation, std::uint64_t taken, const LaneLoad& load) const;
  std::uint64_t Share(const OperationState& operation, std::uint64_t taken,
                      std::uint64_t least_slices) const;

  const LaneSite& site_;
  WorkQueue writes_;
  WorkQueue staged_;  // writes that need staging slots
  WorkQueue reads_;
  bool stopped_ = false;
};

}  // namespace ferry::transfer
