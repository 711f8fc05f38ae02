// Limits what a lane takes, so that lanes of different speed finish together.
#include "ferry/transfer/lane/slice_puller.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ferry/transfer/lane/lane_limits.h"

namespace ferry::transfer {
namespace {

// How many slices a lane keeps queued for the socket. Slices are pulled late so that lanes of
// different speed finish together; two slices keep the socket from running dry between turns of the
// loop.
constexpr std::uint64_t kUnsentSlices = 2;
// GPU memory has smaller slices, and each waits for two more copies. Measured between two H100 with
// writes of 64 MiB over 16 lanes: 4 carried 24 to 27 GB/s, 8 carried 31, 16 carried 30.
constexpr std::uint64_t kStagedWrites = 8;
constexpr std::uint64_t kStagedReads = 6;
// What a lane keeps in flight of an operation of GPU memory of which it has already taken its
// share. Without this limit the first lanes to wake take all slices of an operation with few: reads
// of 1 MiB took 0.35 ms instead of 0.25, and those of 16 MiB 1.06 ms instead of 0.9.
constexpr std::uint64_t kBeyondShare = 2;
// Bytes per lane of slices that the peer copies: copies in flight must end before a cancel can end.
constexpr std::uint64_t kCopyWindow = 2 * wire::kMaxCopyBytes;

bool MayCopy(const OperationState& operation, const LaneLoad& load) {
  return operation.plan->shared_with == 0 || load.copying < kCopyWindow;
}

}  // namespace

void SlicePuller::Add(OperationRef operation) {
  if (stopped_) return;
  const Plan& plan = *operation->plan;
  const Queue queue = plan.direction == Direction::kRead ? Queue::kReads
                      : plan.staged                      ? Queue::kStagedWrites
                                                         : Queue::kWrites;
  QueueOf(queue).Add(std::move(operation));
}

void SlicePuller::Stop() {
  stopped_ = true;
  for (WorkQueue* const queue : {&writes_, &staged_, &reads_}) queue->Clear();
}

WorkQueue& SlicePuller::QueueOf(Queue queue) {
  return queue == Queue::kReads ? reads_ : queue == Queue::kStagedWrites ? staged_ : writes_;
}

std::optional<PulledSlice> SlicePuller::Pull(Queue from, const LaneLoad& load) {
  WorkQueue& queue = QueueOf(from);
  while (!queue.empty()) {
    OperationRef operation = queue.front();
    // Other lanes have taken the rest. Its limits must not hold up the operations behind it.
    if (operation->ledger.left() == 0) {
      queue.Pop();
      continue;
    }
    if (!May(from, load)) break;
    const auto slice = operation->ledger.Pull();
    // Remove it after its last slice; a slice that is returned queues it again.
    operation->ledger.left() == 0 ? queue.Pop() : queue.Rotate();
    if (slice) return PulledSlice{std::move(operation), static_cast<std::uint32_t>(*slice)};
  }
  return std::nullopt;
}

bool SlicePuller::May(Queue from, const LaneLoad& load) {
  const WorkQueue& queue = QueueOf(from);
  const OperationState& operation = *queue.front();
  const std::uint64_t taken = queue.front_turns();
  if (!MayCopy(operation, load)) return false;
  return from == Queue::kReads ? MayRead(operation, taken, load) : MayWrite(operation, taken, load);
}

bool SlicePuller::MayWrite(const OperationState& operation, std::uint64_t taken,
                           const LaneLoad& load) const {
  const bool staged = operation.plan->staged;
  if (staged && !load.may_stage) return false;
  const std::uint64_t least = staged ? kStagedWrites : 2 * kAckSlices;
  return load.unsent < kUnsentSlices * site_.context.config->slice_bytes &&
         load.unacknowledged < std::min(Share(operation, taken, least), load.drainable) &&
         load.frames < kMaxUnacked;
}

bool SlicePuller::MayRead(const OperationState& operation, std::uint64_t taken,
                          const LaneLoad& load) const {
  const std::uint64_t least = operation.plan->staged ? kStagedReads : kUnsentSlices;
  return load.reading < Share(operation, taken, least) && load.may_ask && load.frames < kMaxUnacked;
}

// Limit of an operation's bytes in flight on one lane. Near the end each lane takes less, a slower
// lane less than a fast one, so that all finish together: bytes in flight cannot move to another
// lane. Zero-copy pages fill a socket at once, without a memcpy that would slow the first lane down
// until the others are awake.
std::uint64_t SlicePuller::Share(const OperationState& operation, std::uint64_t taken,
                                 std::uint64_t least_slices) const {
  const std::uint64_t slice = operation.plan->slice_bytes;
  const double part = site_.owner->ShareOf(site_.index);
  const auto lanes = static_cast<double>(site_.context.bulk_lanes);
  const double least = std::clamp(static_cast<double>(least_slices) * part * lanes, 1.0,
                                  static_cast<double>(least_slices));
  const double share = static_cast<double>(operation.ledger.left()) * part / 2;
  auto slices = static_cast<std::uint64_t>(std::llround(std::max(least, share)));
  const double own = std::ceil(static_cast<double>(operation.plan->slice_count) * part);
  if (operation.plan->staged && static_cast<double>(taken) >= own) {
    slices = std::min(slices, kBeyondShare);
  }
  return std::min(site_.context.window_bytes, slices * slice);
}

}  // namespace ferry::transfer
