// Decides how long to wait for the slices of an operation that was cancelled or is late.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/core/deadline.h"

namespace ferry::transfer {

class LaneLives;

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

// The answers of the lanes about one operation; each lane writes its own entries.
struct DrainLook {
  explicit DrainLook(std::size_t lanes) : holds(lanes), acknowledged(lanes) {}

  std::vector<std::atomic<bool>> holds;  // whether the lane holds the operation
  std::vector<std::atomic<std::uint64_t>> acknowledged;
};

// An operation that drains. A default one has not begun.
class OperationDrain {
 public:
  struct Limits {
    Clock::duration grace{};  // since the last progress
    Clock::duration total{};  // while there is progress
  };
  enum class Verdict : std::uint8_t {
    kWait,      // look again
    kAskLanes,  // as before, and ask every lane for a sign of life
    kGiveUp,    // the peer does not acknowledge
  };

  // Lanes are asked now.
  void Begin(Clock::time_point now);
  // Judges the lanes' answers. Call LaneLives::Notice() for each lane before.
  Verdict Judge(const DrainLook& look, const LaneLives& lives, Limits limits,
                Clock::time_point now);
  // When to look next, after kWait or kAskLanes.
  Clock::time_point NextLook(Limits limits, Clock::time_point now) const;
  // The first time that lanes were asked.
  Clock::time_point began() const noexcept { return began_; }

 private:
  bool HasProgressed(const DrainLook& look, const LaneLives& lives, Clock::time_point now);
  bool IsExcused(const DrainLook& look, const LaneLives& lives, Clock::time_point since) const;

  Clock::time_point began_{};
  Clock::time_point since_{};                // the last progress, or began_
  Clock::time_point looked_{};               // the last look for some
  std::vector<std::uint64_t> acknowledged_;  // by lane, as it was then; 0 of those without
};

}  // namespace ferry::transfer
