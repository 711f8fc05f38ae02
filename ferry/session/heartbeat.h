// Tells a silent peer from a slow one, lane by lane.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/session/state.h"

namespace ferry::session {

// The silence of a session's lanes: when to send heartbeats, which lanes are suspect, and when the
// peer is lost. Has no timer: the caller passes the time, and what each lane has received. Not
// thread-safe.
class Heartbeat {
 public:
  using Time = Clock::time_point;

  // The result of a beat for one lane.
  struct Sign {
    bool heard = false;           // something has arrived since the beat before
    Clock::duration quiet{};      // since it was last heard
    bool is_suspect = false;      // it is silent for longer than a lane may be
    bool has_just_begun = false;  // it was not suspect at the beat before
  };

  // A lane is suspect after config.lane_timeout, but not before two heartbeats were due; the peer
  // is lost after config.peer_timeout. `config` must outlive this object.
  Heartbeat(const Config* config, std::size_t lanes) : config_(config), lanes_(lanes) {}

  // Silence counts from here.
  void Start(Time now);
  // The lane has been replaced.
  void Restart(std::size_t lane, Time now);
  // How late this beat is, or zero if by less than an interval. Bytes may have arrived meanwhile:
  // read the sockets before Beat().
  Clock::duration Lateness(Time now) const;
  // `bytes`: what the lane has received in total. `missed`: Lateness() of this beat.
  Sign Beat(std::size_t lane, std::uint64_t bytes, Time now, Clock::duration missed);
  // Whether no lane was heard for config.peer_timeout. Call after Beat() for all lanes.
  bool IsPeerLost(Time now);
  // When the next beat is due: after the interval, or when the peer will have been silent for too
  // long. Call after Beat() for all lanes.
  Time Plan(Time now);
  // When the lane that was heard last was heard.
  Time heard_at() const;
  Time heard_at(std::size_t lane) const { return lanes_[lane].heard_at; }
  Clock::duration lane_timeout() const;

 private:
  struct Lane {
    State state = State::kOpen;
    std::uint64_t bytes = 0;
    Time heard_at{};       // moved forward over the first gap in which nobody polled
    bool excused = false;  // there was such a gap
  };

  const Config* const config_;
  std::vector<Lane> lanes_;
  Time next_{};
};

}  // namespace ferry::session
