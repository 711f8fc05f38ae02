// Ends operations that were cancelled or are late while slices are in flight.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/transfer/engine/connection_core.h"

// The end of an operation that was cancelled, or is late, while some of its slices are in flight.
// They still arrive at the peer; only their acknowledgement, or a closed connection, proves that
// they have.
//
// The peer is pinged over every lane, so that answers on other lanes tell a stopped peer from a
// network that has dropped one lane of several. A slow link is neither: as long as the peer is
// heard, and acknowledges more over a lane that the operation waits for, drain_grace starts again.
// Acknowledgements of the lane's TCP count, too: a slice may take longer than the grace. The limit
// for all of that is peer_timeout, after which a completely silent peer is given up anyway. A lane
// has at most as many bytes in flight as it carried within the last drain_grace
// (LaneRate::drainable), or one slice; only a new lane, whose rate is unknown, has more.
namespace ferry::transfer {

// The answers of the lanes; each lane writes its own entries.
struct ConnectionCore::DrainLook {
  explicit DrainLook(std::size_t lanes) : holds(lanes), acknowledged(lanes) {}

  std::vector<std::atomic<bool>> holds;  // whether the lane holds the operation
  std::vector<std::atomic<std::uint64_t>> acknowledged;
};

void ConnectionCore::DrainOnLoop(const Op& operation) {
  NoticeLanesOnLoop();
  const auto now = Clock::now();
  if (operation->drain_began == Clock::time_point{}) operation->drain_began = now;
  operation->drain_since = operation->drain_looked = now;
  operation->drain_acknowledged.clear();
  AskLanesOnLoop();
  LookAtDrainOnLoop(operation);
}

void ConnectionCore::AskLanesOnLoop() {
  for (const auto& lane : lanes_) {
    lane->loop()->Post([self = shared_from_this(), at = lane.get()] {
      at->DropStopped();
      at->Probe();
    });
  }
}

void ConnectionCore::ScheduleDrainLookOnLoop(const Op& operation) {
  const Clock::duration grace = config_.drain_grace;
  const Clock::duration step = std::max<Clock::duration>(grace / 4, milliseconds(5));
  operations_.SetDue(operation->id,
                     Deadline::At(std::min(Clock::now() + step, operation->drain_since + grace)));
  ScheduleOnLoop();
}

void ConnectionCore::LookAtDrainOnLoop(const Op& operation) {
  operations_.SetDue(operation->id, Deadline::Never());    // until the lanes have answered
  auto look = std::make_shared<DrainLook>(lanes_.size());  // shared by the lanes' tasks
  OnEveryLane(
      [operation, look](LaneEngine& lane) {
        const bool holds = lane.HoldsOperation(operation.get());
        look->holds[lane.index()] = holds;
        look->acknowledged[lane.index()] = holds ? lane.Acknowledged() : 0;
      },
      [self = shared_from_this(), operation, look] { self->JudgeDrainOnLoop(operation, *look); });
}

void ConnectionCore::JudgeDrainOnLoop(const Op& operation, const DrainLook& look) {
  if (ending_ || !operations_.Contains(operation->id)) return;
  NoticeLanesOnLoop();
  const auto now = Clock::now();
  const Clock::duration longest = std::max(config_.drain_grace, config_.peer_timeout);
  const bool too_long = now - operation->drain_began >= longest;
  const bool progressed = DrainHasProgressedOnLoop(operation, look) && !too_long;
  const bool grace_is_over = too_long || now - operation->drain_since >= config_.drain_grace;
  if (!progressed && !grace_is_over) return ScheduleDrainLookOnLoop(operation);
  const auto since = too_long ? operation->drain_began : operation->drain_since;
  if (progressed || DrainIsExcusedOnLoop(operation, look, since)) {
    operation->drain_since = now;
    AskLanesOnLoop();
    return ScheduleDrainLookOnLoop(operation);
  }
  FailOnLoop(Error(
      Code::kPeerLost,
      fmt::format(
          "{} did not acknowledge a cancelled or late {} within {:.1f} s "
          "(FERRY_DRAIN_GRACE, FERRY_PEER_TIMEOUT), so the connection was closed; reconnect",
          peer_name(), OperationName(operation->kind), Seconds(now - operation->drain_began))));
}

// Whether, since the last check, the peer was heard and more was acknowledged over a lane that
// holds the operation. Acknowledgements alone do not suffice: the peer's kernel sends them even if
// the process is stopped.
bool ConnectionCore::DrainHasProgressedOnLoop(const Op& operation, const DrainLook& look) {
  const auto before = std::exchange(operation->drain_acknowledged, {});
  const auto looked = std::exchange(operation->drain_looked, Clock::now());
  bool more = false;
  for (std::size_t i = 0; i < look.holds.size(); ++i) {
    operation->drain_acknowledged.push_back(look.acknowledged[i]);
    more |= look.holds[i] && !before.empty() && before[i] != look.acknowledged[i];
  }
  return more && std::any_of(lives_.begin(), lives_.end(),
                             [&](const LaneLife& life) { return life.noticed_at > looked; });
}

// A lane that is down settles its frames when it is replaced, and so does a lane that is silent
// while others are not: FailIfStuckOnLoop limits those.
bool ConnectionCore::DrainIsExcusedOnLoop(const Op& operation, const DrainLook& look,
                                          Clock::time_point since) const {
  const auto heard = [&](const LaneLife& life) { return life.noticed_at > since; };
  const bool peer_heard = std::any_of(lives_.begin(), lives_.end(), heard);
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    const bool in_use = lives_[i].up && lives_[i].up_since <= operation->drain_since;
    if (look.holds[i] && in_use && (heard(lives_[i]) || !peer_heard)) return false;
  }
  return true;
}

}  // namespace ferry::transfer
