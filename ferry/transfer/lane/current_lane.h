// The network lane that a lane of a connection uses now, and what was counted on those before it.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>

#include "ferry/net/provider.h"
#include "ferry/transfer/lane/lane_site.h"

namespace ferry::transfer {

// Owns the net::Lane, also while it is frozen. Lives on the lane's loop, except BytesReceived().
class CurrentLane {
 public:
  net::Lane* get() const noexcept { return lane_.get(); }
  net::Lane* operator->() const noexcept { return lane_.get(); }
  // Resets the lane before, if any, and destroys it. Not inside one of its callbacks.
  void Replace(std::unique_ptr<net::Lane> lane);
  // Destroys the lane, which is closed.
  void Free();
  // Over this lane and all lanes before. Any thread.
  std::uint64_t BytesReceived() const;
  // Reports the statistics of the lane's path to the connection.
  void SamplePath(const LaneSite& site);

 private:
  mutable std::mutex mutex_;         // held to replace lane_, and by other threads to read it
  std::unique_ptr<net::Lane> lane_;  // written under mutex_
  std::uint64_t bytes_before_ = 0;   // under mutex_: received over replaced lanes
  std::uint64_t retransmits_ = 0;    // value of lane_ that is already counted
};

}  // namespace ferry::transfer
