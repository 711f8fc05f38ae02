// Keeps the latest description of each lane of a connection.
#include "ferry/transfer/stats/lane_records.h"

#include <utility>

namespace ferry::transfer {

void LaneRecords::Set(std::vector<net::LaneInfo> infos) {
  const std::lock_guard lock(mutex_);
  lanes_.clear();
  for (net::LaneInfo& info : infos) {
    lanes_.push_back({.info = std::move(info), .up = true, .traffic = {}, .rate = 0, .path = {}});
  }
}

void LaneRecords::SetInfo(std::uint32_t lane, net::LaneInfo info) {
  const std::lock_guard lock(mutex_);
  lanes_[lane].info = std::move(info);
}

void LaneRecords::SetPath(std::uint32_t lane, const net::PathStats& path) {
  const std::lock_guard lock(mutex_);
  lanes_[lane].path = path;
}

void LaneRecords::SetUp(std::uint32_t lane, bool up) {
  const std::lock_guard lock(mutex_);
  lanes_[lane].up = up;
}

std::vector<net::LaneInfo> LaneRecords::Infos() const {
  const std::lock_guard lock(mutex_);
  std::vector<net::LaneInfo> infos;
  infos.reserve(lanes_.size());
  for (const LaneCounters& lane : lanes_) infos.push_back(lane.info);
  return infos;
}

std::vector<LaneCounters> LaneRecords::Counters() const {
  const std::lock_guard lock(mutex_);
  return lanes_;
}

}  // namespace ferry::transfer
