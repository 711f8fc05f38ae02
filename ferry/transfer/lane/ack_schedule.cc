// Delays acknowledgements a moment, but not for long.
#include "ferry/transfer/lane/ack_schedule.h"

#include <algorithm>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/transfer/lane/lane_limits.h"

namespace ferry::transfer {
namespace {

// After this many slices, or bytes, an acknowledgement is no longer delayed until the loop is idle.
constexpr std::uint64_t kMinAckBytes = 512 * kKiB;
// Nor with this many frames unacknowledged: the peer keeps a record of each.
constexpr std::uint32_t kAckFrames = 64;

}  // namespace

AckSchedule::When AckSchedule::CountFinished(std::uint64_t payload_bytes) {
  ++finished_;
  refusals_.Forget(finished_);
  unacked_bytes_ += payload_bytes;
  const std::uint64_t slices =
      std::min(std::max(kAckSlices * payload_bytes, kMinAckBytes), kAckSlices * slice_bytes_);
  const std::uint64_t many = std::min(window_bytes_ / 4, slices);
  if (unacked_bytes_ >= many || finished_ - last_acked_ >= kAckFrames) return When::kNow;
  // It may be carried by another frame, or cover more frames.
  return std::exchange(scheduled_, true) ? When::kScheduled : When::kWhenIdle;
}

std::uint32_t AckSchedule::Take() {
  last_acked_ = refusals_.Acknowledgeable(finished_);
  unacked_bytes_ = 0;
  return last_acked_;
}

void AckSchedule::OnLaneDown() {
  refusals_.MarkAllSaid();
  scheduled_ = false;
}

LaneProgress AckSchedule::progress() const { return {finished_, refusals_.Latest(kMaxRefusals)}; }

}  // namespace ferry::transfer
