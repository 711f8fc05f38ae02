// The event loops of an endpoint, and their distribution to lanes.
#include "ferry/transfer/endpoint/loop_set.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/transfer/connection/lane_group.h"

namespace ferry::transfer {

Status LoopSet::Create(int count) {
  for (int i = 0; i < count; ++i) {
    FERRY_TRY_ASSIGN(auto loop, EventLoop::Create());
    loops_.push_back(std::move(loop));
  }
  return Ok();
}

Status LoopSet::StartWorkers() {
  for (std::size_t i = loops_.size(); i-- > 0;) {
    FERRY_TRY(loops_[i]->StartWorker(fmt::format("ferry-{}", i).c_str()));
  }
  return Ok();
}

void LoopSet::Stop() {
  for (const auto& loop : loops_) loop->Stop();
}

// Round robin, so that connections spread over the loops.
std::vector<EventLoop*> LoopSet::Choose(std::size_t lanes) {
  const std::size_t first = next_.fetch_add(1);
  std::vector<EventLoop*> chosen;
  chosen.reserve(lanes);
  // The first lane for bulk is on the home loop, too: an operation on one lane needs no other
  // thread.
  const std::size_t bulk = FirstBulkLaneOf(lanes);
  for (std::size_t i = 0; i < lanes; ++i) {
    chosen.push_back(loops_[(first + (i > bulk ? i - bulk : 0)) % loops_.size()].get());
  }
  return chosen;
}

}  // namespace ferry::transfer
