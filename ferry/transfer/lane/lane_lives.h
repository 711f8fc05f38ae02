// Which lanes of a connection are up, and how each was lost.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/net/provider.h"

namespace ferry::transfer {

// The lanes as the home loop sees them. Holds what is known, and decides nothing. Home loop only.
class LaneLives {
 public:
  explicit LaneLives(std::size_t lanes) : lanes_(lanes) {}

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

  // ---- What a drain sees: drain checks run between heartbeats, too, which have their own record.
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
    std::uint64_t noticed_bytes = 0;
    Clock::time_point up_since{};  // since when the current lane is up
    Clock::time_point noticed_at{};
  };

  std::vector<Life> lanes_;
};

}  // namespace ferry::transfer
