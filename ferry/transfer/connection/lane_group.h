// The lanes of a connection, and how work gets to their loops.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ferry/core/loop/event_loop.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/lane/lane_engine.h"
#include "ferry/transfer/lane/lane_site.h"

namespace ferry::transfer {

// Index of the first lane for bulk data. With two lanes both carry bulk: one alone is much slower.
constexpr std::size_t FirstBulkLaneOf(std::size_t lanes) { return lanes > 2 ? 1 : 0; }

// Sets of lanes have a bit for each; a connection has at most 64.
using LaneSet = std::uint64_t;
inline constexpr LaneSet kAllLanes = ~LaneSet{0};
constexpr LaneSet LaneBit(std::size_t lane) { return LaneSet{1} << lane; }

// Owns the lanes of a connection and runs work on their loops; a task that it posts keeps the
// connection alive. Any thread, except where a loop is named.
class LaneGroup {
 public:
  // `loops`: one for each lane; the first is the home loop. All must outlive the group.
  LaneGroup(const LaneContext& context, const std::vector<EventLoop*>& loops);

  std::size_t size() const noexcept { return lanes_.size(); }
  // With at least three lanes the first one carries messages, notifications and small operations,
  // and lanes from first_bulk() on carry the rest.
  std::size_t first_bulk() const noexcept { return FirstBulkLaneOf(lanes_.size()); }
  LaneEngine& lane(std::size_t index) const noexcept { return *lanes_[index]; }
  // The lane for messages. It lives on the home loop.
  LaneEngine& front() const noexcept { return *lanes_.front(); }
  std::shared_ptr<void> KeepAlive() const { return owner_->KeepAlive(); }

  // Runs `work(lane)` on the lane's loop.
  template <class Work>
  void Post(std::size_t index, Work work) const {
    LaneEngine* const lane = lanes_[index].get();
    lane->loop()->Post(
        [keep = KeepAlive(), lane, work = std::move(work)]() mutable { work(*lane); });
  }
  template <class Work>
  void PostToAll(const Work& work) const {
    for (std::size_t i = 0; i < lanes_.size(); ++i) Post(i, work);
  }
  // Runs `work` on the loop of each of these lanes, then `then` on the home loop.
  void Run(LaneSet lanes, const std::function<void(LaneEngine&)>& work, EventLoop::Task then) const;
  // Lets these lanes pull slices of the operation. Home loop: lanes that live there begin at once,
  // after the threads of the others were woken.
  void AddWork(LaneSet lanes, const OperationRef& operation) const;

  LaneTraffic Traffic() const;

 private:
  LaneOwner* const owner_;
  std::vector<std::unique_ptr<LaneEngine>> lanes_;
};

}  // namespace ferry::transfer
