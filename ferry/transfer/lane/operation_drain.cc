// Judges the progress of an operation that was cancelled or is late.
#include "ferry/transfer/lane/operation_drain.h"

#include <algorithm>
#include <utility>

#include "ferry/transfer/lane/lane_lives.h"

namespace ferry::transfer {

void OperationDrain::Begin(Clock::time_point now) {
  if (began_ == Clock::time_point{}) began_ = now;
  since_ = looked_ = now;
  acknowledged_.clear();
}

OperationDrain::Verdict OperationDrain::Judge(const DrainLook& look, const LaneLives& lives,
                                              Limits limits, Clock::time_point now) {
  const bool too_long = now - began_ >= std::max(limits.grace, limits.total);
  const bool progressed = HasProgressed(look, lives, now) && !too_long;
  const bool grace_is_over = too_long || now - since_ >= limits.grace;
  if (!progressed && !grace_is_over) return Verdict::kWait;
  if (!progressed && !IsExcused(look, lives, too_long ? began_ : since_)) return Verdict::kGiveUp;
  since_ = now;
  return Verdict::kAskLanes;
}

Clock::time_point OperationDrain::NextLook(Limits limits, Clock::time_point now) const {
  const Clock::duration step = std::max<Clock::duration>(limits.grace / 4, milliseconds(5));
  return std::min(now + step, since_ + limits.grace);
}

// Whether, since the last check, the peer was heard and more was acknowledged over a lane that
// holds the operation. Acknowledgements alone do not suffice: the peer's kernel sends them even if
// the process is stopped.
bool OperationDrain::HasProgressed(const DrainLook& look, const LaneLives& lives,
                                   Clock::time_point now) {
  const auto before = std::exchange(acknowledged_, {});
  const auto looked = std::exchange(looked_, now);
  bool more = false;
  for (std::size_t i = 0; i < look.holds.size(); ++i) {
    acknowledged_.push_back(look.acknowledged[i]);
    more |= look.holds[i] && !before.empty() && before[i] != look.acknowledged[i];
  }
  return more && lives.AnyNoticedSince(looked);
}

// A lane that is down settles its frames when it is replaced, and so does a lane that is silent
// while others are not: the heartbeat limits those.
bool OperationDrain::IsExcused(const DrainLook& look, const LaneLives& lives,
                               Clock::time_point since) const {
  const bool peer_heard = lives.AnyNoticedSince(since);
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const bool in_use = lives.UpSince(i, since_);
    if (look.holds[i] && in_use && (lives.NoticedSince(i, since) || !peer_heard)) return false;
  }
  return true;
}

}  // namespace ferry::transfer
