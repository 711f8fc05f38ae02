// Records which lanes are up and how each was lost.
#include "ferry/transfer/lane/lane_lives.h"

#include <algorithm>
#include <utility>

namespace ferry::transfer {

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
  life.up_since = now;
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

void LaneLives::Notice(std::size_t lane, std::uint64_t bytes, Clock::time_point now) {
  Life& life = lanes_[lane];
  if (std::exchange(life.noticed_bytes, bytes) != bytes) life.noticed_at = now;
}

bool LaneLives::AnyNoticedSince(Clock::time_point when) const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [&](const Life& life) { return life.noticed_at > when; });
}

}  // namespace ferry::transfer
