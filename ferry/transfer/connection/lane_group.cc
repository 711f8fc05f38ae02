// Runs work on the loops of a connection's lanes.
#include "ferry/transfer/connection/lane_group.h"

#include <atomic>

namespace ferry::transfer {

LaneGroup::LaneGroup(const LaneContext& context, LaneOwner* owner, MessageSink* messages,
                     const std::vector<EventLoop*>& loops)
    : owner_(owner) {
  for (std::size_t i = 0; i < loops.size(); ++i) {
    lanes_.push_back(std::make_unique<LaneEngine>(context, owner, messages, loops[i],
                                                  static_cast<std::uint32_t>(i)));
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

double LaneGroup::ShareOf(std::size_t index) const {
  const auto lanes = static_cast<double>(lanes_.size() - first_bulk());
  // The first lane, while it replaces all lanes for bulk.
  if (index < first_bulk()) return 1 / lanes;
  std::uint64_t sum = 0;
  std::size_t known = 0;
  for (std::size_t i = first_bulk(); i < lanes_.size(); ++i) {
    const std::uint64_t rate = lanes_[i]->rate();
    sum += rate;
    known += rate > 0 ? 1 : 0;
  }
  const std::uint64_t own = lanes_[index]->rate();
  // Lanes with unknown rates count as the mean of the others.
  if (own == 0 || known == 0) return 1 / lanes;
  return static_cast<double>(own) / static_cast<double>(sum) * static_cast<double>(known) / lanes;
}

LaneTraffic LaneGroup::Traffic() const {
  LaneTraffic traffic;
  for (const auto& lane : lanes_) traffic += lane->Traffic();
  return traffic;
}

}  // namespace ferry::transfer
