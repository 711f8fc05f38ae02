// Runs work on the loops of a connection's lanes.
#include "ferry/transfer/connection/lane_group.h"

#include <atomic>

namespace ferry::transfer {

LaneGroup::LaneGroup(const LaneContext& context, const std::vector<EventLoop*>& loops)
    : owner_(context.owner) {
  for (std::size_t i = 0; i < loops.size(); ++i) {
    lanes_.push_back(
        std::make_unique<LaneEngine>(context, loops[i], static_cast<std::uint32_t>(i)));
  }
}

void LaneGroup::Run(LaneSet lanes, const std::function<void(LaneEngine&)>& work,
                    EventLoop::Task then) const {
  struct Round {
    std::atomic<std::size_t> left{0};
    EventLoop* home;
    EventLoop::Task then;
  };
  auto round = std::make_shared<Round>();  // shared by the lanes' tasks; the last one uses it
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if ((lanes & LaneBit(i)) != 0) ++round->left;
  }
  EventLoop* const home = front().loop();
  if (round->left == 0) return home->Post(std::move(then));
  round->home = home;
  round->then = std::move(then);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if ((lanes & LaneBit(i)) == 0) continue;
    Post(i, [work, round](LaneEngine& lane) {
      work(lane);
      if (round->left.fetch_sub(1) == 1) round->home->Post(std::move(round->then));
    });
  }
}

void LaneGroup::AddWork(LaneSet lanes, const OperationRef& operation) const {
  EventLoop* const home = front().loop();
  for (std::size_t i = lanes_.size(); i-- > 0;) {
    if ((lanes & LaneBit(i)) == 0) continue;
    if (lanes_[i]->loop() == home) {
      lanes_[i]->AddWork(operation);
    } else {
      Post(i, [operation](LaneEngine& lane) { lane.AddWork(operation); });
    }
  }
}

LaneTraffic LaneGroup::Traffic() const {
  LaneTraffic traffic;
  for (const auto& lane : lanes_) traffic += lane->Traffic();
  return traffic;
}

}  // namespace ferry::transfer
