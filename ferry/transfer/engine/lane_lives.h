// Which lanes of a connection are up, how each was lost, and when each was last heard.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/net/provider.h"

namespace ferry::transfer {

// The lanes as the home loop sees them. Holds what is known, and decides nothing. Home loop only.
//
// Bytes received are recorded twice, because drain checks run between heartbeats, too: Hear() is
// the heartbeat's record, Notice() the drain's.
class LaneLives {
 public:
  explicit LaneLives(std::size_t lanes) : lanes_(lanes) {}

  // Silence counts from here.
  void Start(Clock::time_point now);
  std::size_t size() const noexcept { return lanes_.size(); }

  // ---- Up and down.
  bool up(std::size_t lane) const { return lanes_[lane].up; }
  bool AnyUp(std::size_t from = 0) const;
  void SetDown(std::size_t lane) { lanes_[lane].up = false; }
  // The network dropped it. `loss`: nullopt if it was never used, which says nothing new.
  void SetLost(std::size_t lane, std::optional<net::LaneLoss> loss);
  // It will be replaced. `was_heard`: the peer has used it.
  void SetFrozen(std::size_t lane, bool was_heard);
  void SetUp(std::size_t lane, Clock::time_point now);
  // Whether every lane was reset: a network drops some lanes, a process that exits resets all.
  bool AllReset() const;
  // Whether the lanes look as they do when the peer process exits while some are being replaced.
  bool Abandoned() const;

  // ---- Silence.
  //
  // Records what lane has received in total and returns whether that is more than at the last call.
  // `missed`: how late this call is, if it is late by much.
  bool Hear(std::size_t lane, std::uint64_t bytes, Clock::time_point now, Clock::duration missed);
  Clock::time_point heard_at(std::size_t lane) const { return lanes_[lane].heard_at; }
  // Records whether a lane is silent. Returns true if it was not when last asked.
  bool SetSilent(std::size_t lane, bool silent);

  // ---- What a drain sees.
  void Notice(std::size_t lane, std::uint64_t bytes, Clock::time_point now);
  bool NoticedSince(std::size_t lane, Clock::time_point when) const {
    return lanes_[lane].noticed_at > when;
  }
  bool AnyNoticedSince(Clock::time_point when) const;
  // Whether the lane is up, and was already then.
  bool UpSince(std::size_t lane, Clock::time_point when) const {
    return lanes_[lane].up && lanes_[lane].up_since <= when;
  }

 private:
  struct Life {
    bool up = true;
    bool by_reset = false;  // how the lane was lost
    bool replaced = false;  // frozen while it worked; meaningless once its replacement is used
    bool silent = false;
    bool excused = false;  // there was a gap in which we did not poll, and heard_at was moved
    std::uint64_t heard_bytes = 0;
    std::uint64_t noticed_bytes = 0;
    Clock::time_point up_since{};  // since when the current lane is up
    Clock::time_point heard_at{};  // moved forward over the first gap in which we did not poll
    Clock::time_point noticed_at{};
  };

  std::vector<Life> lanes_;
};

}  // namespace ferry::transfer
