// What any thread may know of a connection's lanes: their addresses, paths and whether they are up.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "ferry/net/provider.h"
#include "ferry/transfer/counters.h"

namespace ferry::transfer {

// The latest description of each lane, for snapshots. Any thread; a mutex, because lanes change
// rarely.
class LaneRecords {
 public:
  void Set(std::vector<net::LaneInfo> infos);
  void SetInfo(std::uint32_t lane, net::LaneInfo info);
  void SetPath(std::uint32_t lane, const net::PathStats& path);
  void SetUp(std::uint32_t lane, bool up);

  // Current lanes; for a lost lane its last state.
  std::vector<net::LaneInfo> Infos() const;
  // One for each lane, without traffic and rate. Empty before Set().
  std::vector<LaneCounters> Counters() const;

 private:
  mutable std::mutex mutex_;
  std::vector<LaneCounters> lanes_;  // under mutex_; no traffic
};

}  // namespace ferry::transfer
