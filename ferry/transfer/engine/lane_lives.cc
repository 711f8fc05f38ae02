// Records which lanes are up and when each was last heard.
#include "ferry/transfer/engine/lane_lives.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {

void LaneLives::Start(Clock::time_point now) {
  for (Life& life : lanes_) life.heard_at = now;
}

bool LaneLives::AnyUp(std::size_t from) const {
  return std::any_of(lanes_.begin() + static_cast<std::ptrdiff_t>(from), lanes_.end(),
                     [](const Life& life) { return life.up; });
}

void LaneLives::SetLost(std::size_t lane, std::optional<net::LaneLoss> loss) {
  SetDown(lane);
  if (!loss) return;
  lanes_[lane].by_reset = *loss == net::LaneLoss::kReset;
  lanes_[lane].replaced = false;
}

void LaneLives::SetFrozen(std::size_t lane, bool was_heard) {
  SetDown(lane);
  if (!was_heard) return;
  lanes_[lane].by_reset = false;
  lanes_[lane].replaced = true;
}

void LaneLives::SetUp(std::size_t lane, Clock::time_point now) {
  Life& life = lanes_[lane];
  life.up = true;
  life.heard_at = life.up_since = now;
  life.excused = false;
}

bool LaneLives::AllReset() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Life& life) { return !life.up && life.by_reset; });
}

// A lane that was frozen for its replacement cannot be seen to be reset.
bool LaneLives::Abandoned() const {
  const auto is_gone = [](const Life& life) {
    return !life.up && (life.by_reset || life.replaced);
  };
  const auto is_reset = [](const Life& life) { return life.by_reset; };
  return std::all_of(lanes_.begin(), lanes_.end(), is_gone) &&
         std::any_of(lanes_.begin(), lanes_.end(), is_reset);
}

// While this process was stopped, or its machine suspended, the peer may have been, too, and
// answers as soon as it can: the gap does not count as silence. But only the first gap since the
// lane was last heard is excused; otherwise a loop that is late again and again would detect a
// silent peer only after many timeouts.
bool LaneLives::Hear(std::size_t lane, std::uint64_t bytes, Clock::time_point now,
                     Clock::duration missed) {
  Life& life = lanes_[lane];
  if (missed > Clock::duration::zero() && !std::exchange(life.excused, true)) {
    life.heard_at += missed;
  }
  const bool heard = std::exchange(life.heard_bytes, bytes) != bytes;
  if (heard) {
    life.heard_at = now;
    life.excused = false;
  }
  return heard;
}

bool LaneLives::SetSilent(std::size_t lane, bool silent) {
  return !std::exchange(lanes_[lane].silent, silent) && silent;
}

void LaneLives::Notice(std::size_t lane, std::uint64_t bytes, Clock::time_point now) {
  Life& life = lanes_[lane];
  if (std::exchange(life.noticed_bytes, bytes) != bytes) life.noticed_at = now;
}

bool LaneLives::AnyNoticedSince(Clock::time_point when) const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [&](const Life& life) { return life.noticed_at > when; });
}

}  // namespace ferry::transfer
