// Counts the silence of a session's lanes.
#include "ferry/session/heartbeat.h"

#include <algorithm>
#include <utility>

namespace ferry::session {

void Heartbeat::Start(Time now) {
  next_ = now;
  for (Lane& lane : lanes_) lane.heard_at = now;
}

void Heartbeat::Restart(std::size_t lane, Time now) {
  lanes_[lane].heard_at = now;
  lanes_[lane].state = State::kOpen;
  lanes_[lane].excused = false;
}

Clock::duration Heartbeat::Lateness(Time now) const {
  const Clock::duration late = now - next_;
  return late < config_->heartbeat_interval ? Clock::duration::zero() : late;
}

Clock::duration Heartbeat::lane_timeout() const {
  return std::max(config_->lane_timeout, 2 * config_->heartbeat_interval);
}

// While this process was stopped, or its machine suspended, the peer may have been, too, and
// answers as soon as it can: the gap does not count as silence. But only the first gap since the
// lane was last heard is excused; otherwise a loop that is late again and again would detect a
// silent peer only after many timeouts.
Heartbeat::Sign Heartbeat::Beat(std::size_t lane, std::uint64_t bytes, Time now,
                                Clock::duration missed) {
  Lane& life = lanes_[lane];
  if (missed > Clock::duration::zero() && !std::exchange(life.excused, true)) {
    // Less than the gap has passed where the lane was replaced in it.
    life.heard_at = std::min<Time>(life.heard_at + missed, now);
  }
  const bool heard = std::exchange(life.bytes, bytes) != bytes;
  if (heard) {
    life.heard_at = now;
    life.excused = false;
  }
  const Clock::duration quiet = now - life.heard_at;
  const State before = life.state;
  const Edge* const edge = Advance(before, heard ? Event::kHeard : Event::kSilence);
  if (edge != nullptr && (heard || quiet >= lane_timeout())) life.state = edge->to;
  const bool is_suspect = life.state != State::kOpen;
  return {heard, quiet, is_suspect, is_suspect && before == State::kOpen};
}

bool Heartbeat::IsPeerLost(Time now) {
  if (now - heard_at() < config_->peer_timeout) return false;
  for (Lane& lane : lanes_) {
    if (const Edge* const edge = Advance(lane.state, Event::kTimeout)) lane.state = edge->to;
  }
  return true;
}

Heartbeat::Time Heartbeat::Plan(Time now) {
  next_ = std::min<Time>(now + config_->heartbeat_interval, heard_at() + config_->peer_timeout);
  return next_;
}

Heartbeat::Time Heartbeat::heard_at() const {
  return std::max_element(lanes_.begin(), lanes_.end(),
                          [](const Lane& a, const Lane& b) { return a.heard_at < b.heard_at; })
      ->heard_at;
}

}  // namespace ferry::session
