// Replaces the network lane and carries its counters on.
#include "ferry/transfer/lane/current_lane.h"

#include <utility>

namespace ferry::transfer {

// The mutex is held only to swap the pointer: BytesReceived() may read it on another thread.
void CurrentLane::Replace(std::unique_ptr<net::Lane> lane) {
  if (lane_) lane_->Close(net::Closing::kAbort);
  const std::lock_guard lock(mutex_);
  if (lane_) bytes_before_ += lane_->BytesReceived();
  lane_ = std::move(lane);
  retransmits_ = 0;
}

void CurrentLane::Free() {
  const std::lock_guard lock(mutex_);
  if (!lane_) return;
  bytes_before_ += lane_->BytesReceived();
  lane_.reset();
}

std::uint64_t CurrentLane::BytesReceived() const {
  const std::lock_guard lock(mutex_);
  return bytes_before_ + (lane_ ? lane_->BytesReceived() : 0);
}

void CurrentLane::SamplePath(const LaneSite& site) {
  const net::PathStats path = lane_->Path();
  if (path.retransmitted_segments > retransmits_) {
    site.counts->retransmits.Add(path.retransmitted_segments - retransmits_);
    retransmits_ = path.retransmitted_segments;
  }
  site.owner->SetLanePath(site.index, path);
}

}  // namespace ferry::transfer
