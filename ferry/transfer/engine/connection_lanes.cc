// Lane state as the home loop sees it: liveness, slice distribution and lost lanes.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/transfer/engine/connection_core.h"
#include "ferry/transfer/recovery/lane_health.h"

// A connection's lanes as its home loop sees them: which are up, how long each has been silent, and
// how lost lanes are handled.
namespace ferry::transfer {

std::vector<net::LaneInfo> ConnectionCore::LaneInfos() const {
  const std::lock_guard lock(infos_mutex_);
  std::vector<net::LaneInfo> infos;
  infos.reserve(lane_records_.size());
  for (const LaneRecord& lane : lane_records_) infos.push_back(lane.info);
  return infos;
}

void ConnectionCore::SetLaneInfos(std::vector<net::LaneInfo> infos) {
  const std::lock_guard lock(infos_mutex_);
  lane_records_.clear();
  for (net::LaneInfo& info : infos) lane_records_.push_back({std::move(info), {}, true});
}

void ConnectionCore::SetLanePath(std::uint32_t index, const net::PathStats& path) {
  const std::lock_guard lock(infos_mutex_);
  lane_records_[index].path = path;
}

void ConnectionCore::SetLaneUpOnLoop(std::uint32_t index, bool up) {
  lives_[index].up = up;
  {
    const std::lock_guard lock(infos_mutex_);
    lane_records_[index].up = up;
  }
  // Also done when a lane comes up: operations may have begun while there was none. One pass serves
  // all lanes that a lost link has dropped.
  if (lost_.load() || std::exchange(deal_rest_due_, true)) return;
  home_->Post([self = shared_from_this()] {
    self->deal_rest_due_ = false;
    if (!self->lost_.load()) self->DealRestOnLoop();
  });
}

void ConnectionCore::SetLaneHealth(std::unique_ptr<LaneHealth> lane_health) {
  lane_health_ = std::move(lane_health);
}

// ---- which lanes carry what ---------------------------------------------------------------------

double ConnectionCore::ShareOf(std::uint32_t index) const {
  const auto lanes = static_cast<double>(bulk_lanes());
  // The first lane, while it replaces all lanes for bulk.
  if (index < FirstBulkLane()) return 1 / lanes;
  std::uint64_t sum = 0;
  std::size_t known = 0;
  for (std::size_t i = FirstBulkLane(); i < lanes_.size(); ++i) {
    const std::uint64_t rate = lanes_[i]->rate();
    sum += rate;
    known += rate > 0 ? 1 : 0;
  }
  const std::uint64_t own = lanes_[index]->rate();
  // Lanes with unknown rates count as the mean of the others.
  if (own == 0 || known == 0) return 1 / lanes;
  return static_cast<double>(own) / static_cast<double>(sum) * static_cast<double>(known) / lanes;
}

// Excludes operations that need staging slots or GPU copies: a lane waits for those.
bool ConnectionCore::MayGoWithMessagesOnLoop(const Op& operation) const {
  const Plan& plan = *operation->plan;
  return FirstBulkLane() > 0 && plan.slices.size() == 1 && plan.bytes <= kMaxSmallBytes &&
         !plan.staged && plan.shared_with == 0;
}

bool ConnectionCore::BulkIsDownOnLoop() const {
  const auto is_up = [](const LaneLife& life) { return life.up; };
  return std::none_of(lives_.begin() + static_cast<std::ptrdiff_t>(FirstBulkLane()), lives_.end(),
                      is_up);
}

// Hands it to as many lanes in use as it has slices, first to lanes whose threads must be woken.
void ConnectionCore::DealOnLoop(const Op& operation) {
  const bool none_is_up = BulkIsDownOnLoop();
  const std::size_t slices = operation->plan->slices.size();
  std::vector<LaneEngine*> chosen;
  for (std::size_t i = FirstBulkLane(); i < lanes_.size() && chosen.size() < slices; ++i) {
    if (lives_[i].up || none_is_up) chosen.push_back(lanes_[i].get());
  }
  for (std::size_t i = chosen.size(); i-- > 0;) {
    EventLoop* const loop = chosen[i]->loop();
    auto add = [self = shared_from_this(), operation, at = chosen[i]] { at->AddWork(operation); };
    loop == home_ ? add() : loop->Post(std::move(add));
  }
  if (none_is_up && FirstBulkLane() > 0) lanes_.front()->AddWork(operation);
}

// Handed to all lanes: any of them may be the first to have room.
void ConnectionCore::DealAgain(const Op& operation) {
  home_->Post([self = shared_from_this(), operation] {
    if (operation->small || self->BulkIsDownOnLoop()) {
      self->lanes_.front()->AddWork(operation);
    }
  });
  for (std::size_t i = FirstBulkLane(); i < lanes_.size(); ++i) {
    lanes_[i]->loop()->Post(
        [self = shared_from_this(), operation, at = lanes_[i].get()] { at->AddWork(operation); });
  }
}

// A lane has been lost, and may not come back: operations that waited for it alone are offered to
// others. If no lane for bulk is up the first lane carries everything.
void ConnectionCore::DealRestOnLoop() {
  for (const Op& operation : operations_.All()) {
    const bool has_slices = operation->phase == OperationState::Phase::kSlices;
    if (has_slices && operation->ledger.left() > 0) DealOnLoop(operation);
  }
}

// ---- what happens to lanes ----------------------------------------------------------------------

void ConnectionCore::LaneLost(std::uint32_t index, const Error& error,
                              std::optional<net::LaneLoss> loss) {
  home_->Post([self = shared_from_this(), index, error, loss] {
    self->LaneLostOnLoop(index, error, loss);
  });
}

// The dialing side replaces the lane; the accepting side asks for a replacement.
void ConnectionCore::LaneLostOnLoop(std::uint32_t index, const Error& error,
                                    std::optional<net::LaneLoss> loss) {
  LaneLife& life = lives_[index];
  SetLaneUpOnLoop(index, false);
  if (lost_.load()) return FailIfAllDownOnLoop(error);
  // The loss of a lane that was never used says nothing new about the network.
  if (loss) {
    life.by_reset = *loss == net::LaneLoss::kReset;
    life.replaced = false;
  }
  lanes_lost_.fetch_add(1, std::memory_order_relaxed);
  Note("lane {} was lost: {}", index, error.message());
  LogLimited({{"peer", peer_name()}, {"lane", std::to_string(index)}},
             fmt::format("lane {} to {} was lost: {}", index, peer_name(), error.message()));
  // A network drops some lanes; a reset of all lanes is the sign of a process that has exited.
  const bool all_reset = std::all_of(
      lives_.begin(), lives_.end(), [](const LaneLife& each) { return !each.up && each.by_reset; });
  if (all_reset) return LaneFailed(error);
  if (lane_health_) {
    return lane_health_->OnLaneLost(index, loss.value_or(net::LaneLoss::kUnreachable));
  }
  SuspectOnLoop(index, "was lost");
}

// Lanes of a closing peer end one after another; the last of them ends the connection, or the timer
// does.
void ConnectionCore::PeerClosedLane(std::uint32_t index, const Error& error) {
  MarkLost(error, /*peer_closed=*/true);
  home_->Post([self = shared_from_this(), index, error] {
    if (self->ending_) return;
    self->SetLaneUpOnLoop(index, false);
    if (!self->started_) return self->FailOnLoop(error);
    self->FailIfAllDownOnLoop(error);
    if (self->ending_ || self->last_words_timer_ != 0) return;
    self->last_words_timer_ = self->home_->AddTimerOnLoop(Clock::now() + self->config_.drain_grace,
                                                          [at = self.get(), error] {
                                                            at->last_words_timer_ = 0;
                                                            at->FailOnLoop(error);
                                                          });
  });
}

void ConnectionCore::FailIfAllDownOnLoop(const Error& error) {
  const auto is_down = [](const LaneLife& life) { return !life.up; };
  if (std::all_of(lives_.begin(), lives_.end(), is_down)) FailOnLoop(error);
}

void ConnectionCore::LaneFrozen(std::uint32_t index, bool was_heard) {
  home_->Post([self = shared_from_this(), index, was_heard] {
    self->SetLaneUpOnLoop(index, false);
    if (was_heard) {
      self->lives_[index].by_reset = false;
      self->lives_[index].replaced = true;
    }
    if (self->lost_.load()) self->FailIfAllDownOnLoop(self->LostError());
  });
}

void ConnectionCore::OnLaneUp(std::uint32_t index, net::LaneInfo info) {
  home_->Post([self = shared_from_this(), index, info = std::move(info)] {
    self->SetLaneUpOnLoop(index, true);
    self->lives_[index].heard_at = self->lives_[index].up_since = Clock::now();
    self->lives_[index].excused = false;
    self->lanes_replaced_.fetch_add(1, std::memory_order_relaxed);
    self->Note("lane {} resumed on {} ({} to {})", index, info.interface, info.local, info.remote);
    LogWith(LogLevel::kInfo, "transfer",
            {{"peer", self->peer_name()}, {"lane", std::to_string(index)}},
            "lane {} to {} resumed on {} ({} to {})", index, self->peer_name(), info.interface,
            info.local, info.remote);
    const std::lock_guard lock(self->infos_mutex_);
    self->lane_records_[index].info = info;
  });
}

void ConnectionCore::SuspectOnLoop(std::uint32_t index, const char* why) {
  if (lost_.load()) return;
  if (lane_health_) return lane_health_->OnSuspect(index, why);
  // The other side dials; this side can only request a replacement, over a lane that may still
  // work.
  wire::JoinBody body;
  body.lane = static_cast<std::uint16_t>(index);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (i == index || !lives_[i].up) continue;
    lanes_[i]->loop()->Post([self = shared_from_this(), body, at = lanes_[i].get()] {
      at->SendPlain(wire::Type::kLaneLost, 0, std::as_bytes(std::span(&body, 1)));
    });
  }
}

// A peer may repeat this any number of times: at most one task per lane is posted, however busy the
// loop is.
void ConnectionCore::PeerGaveUpLane(std::uint32_t index) {
  if (index >= given_up_.size() || given_up_[index].exchange(true)) return;
  home_->Post([self = shared_from_this(), index] {
    self->given_up_[index] = false;
    if (self->lost_.load() || !self->lane_health_) return;
    self->lane_health_->OnSuspect(index, "was given up by the peer");
  });
}

void ConnectionCore::OnLinkChange(const net::LinkChange& change) {
  home_->Post([self = shared_from_this(), change] {
    if (self->lost_.load() || !self->started_) return;
    self->Note("link {} went {}", change.interface, change.up ? "up" : "down");
    const auto infos = self->LaneInfos();
    for (std::uint32_t i = 0; !change.up && i < infos.size(); ++i) {
      if (infos[i].interface == change.interface && self->lives_[i].up) {
        self->SuspectOnLoop(i, "has its link down");
      }
    }
    if (self->lane_health_) self->lane_health_->OnLinkChange(change);
  });
}

void ConnectionCore::CountStallOnLoop(std::uint32_t index, Clock::duration silent) {
  lane_stalls_.fetch_add(1, std::memory_order_relaxed);
  Note("lane {} has been silent for {:.1f} s", index, Seconds(silent));
}

// Limits how long operations wait for a lane that cannot be replaced while the other lanes work.
void ConnectionCore::FailIfStuckOnLoop(std::uint32_t index, Clock::duration silent) {
  lanes_[index]->loop()->Post([self = shared_from_this(), index, silent, at = lanes_[index].get()] {
    if (!at->HoldsWork()) return;
    self->Fail(Error(
        Code::kPeerLost,
        fmt::format("lane {} to {} has been unusable for {:.1f} s and could not be replaced, "
                    "so operations in flight on it cannot end (FERRY_PEER_TIMEOUT); check that "
                    "new connections to the peer succeed, and reconnect",
                    index, self->peer_name(), Seconds(silent))));
  });
}

// Separate from the heartbeat's record, because drain checks run between heartbeats, too.
void ConnectionCore::NoticeLanesOnLoop() {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    const std::uint64_t bytes = lanes_[i]->BytesReceived();
    if (std::exchange(lives_[i].noticed_bytes, bytes) != bytes) lives_[i].noticed_at = now;
  }
}

// A lane that was frozen for its replacement cannot be seen to be reset.
bool ConnectionCore::IsAbandonedOnLoop() const {
  const auto is_gone = [](const LaneLife& life) {
    return !life.up && (life.by_reset || life.replaced);
  };
  const auto is_reset = [](const LaneLife& life) { return life.by_reset; };
  return std::all_of(lives_.begin(), lives_.end(), is_gone) &&
         std::any_of(lives_.begin(), lives_.end(), is_reset);
}

// `missed`: how late this call is, if it is late by much. While this process was stopped, or its
// machine suspended, the peer may have been, too, and answers as soon as it can: the gap does not
// count as silence. But only the first gap since the lane was last heard is excused; otherwise a
// loop that is late again and again would detect a silent peer only after many timeouts.
Clock::time_point ConnectionCore::BeatLanesOnLoop(Clock::time_point now, Clock::duration missed) {
  const Clock::duration lane_timeout =
      std::max(config_.lane_timeout, 2 * config_.heartbeat_interval);
  auto latest = Clock::time_point::min();
  for (std::uint32_t i = 0; i < lives_.size(); ++i) {
    LaneLife& life = lives_[i];
    if (missed > Clock::duration::zero() && !std::exchange(life.excused, true)) {
      life.heard_at += missed;
    }
    const std::uint64_t bytes = lanes_[i]->BytesReceived();
    const bool heard = std::exchange(life.heard_bytes, bytes) != bytes;
    if (heard) {
      life.heard_at = now;
      life.excused = false;
    }
    latest = std::max(latest, life.heard_at);
    if (now - life.heard_at >= config_.peer_timeout + lane_timeout) {
      FailIfStuckOnLoop(i, now - life.heard_at);
    }
    if (!life.up) continue;
    const bool silent = !heard && now - life.heard_at >= lane_timeout;
    if (silent && !life.stalled) CountStallOnLoop(i, now - life.heard_at);
    life.stalled = silent;
    if (silent) SuspectOnLoop(i, "has been silent");
    lanes_[i]->loop()->Post(
        [self = shared_from_this(), at = lanes_[i].get(), heard] { at->Beat(heard); });
  }
  if (now - latest >= lane_timeout && IsAbandonedOnLoop()) {
    FailOnLoop(Error(
        Code::kPeerLost,
        fmt::format("every lane to {} was reset or was being replaced, and for {:.1f} s none has "
                    "come back (FERRY_LANE_TIMEOUT); reconnect when the peer is back",
                    peer_name(), Seconds(now - latest))));
    return latest;
  }
  if (now - latest >= config_.peer_timeout) {
    FailOnLoop(Error(
        Code::kPeerLost,
        fmt::format("nothing was heard from {} for {:.1f} s (FERRY_PEER_TIMEOUT); it is frozen, "
                    "cut off or gone: reconnect when it is back",
                    peer_name(), Seconds(now - latest))));
    return latest;
  }
  if (lane_health_) lane_health_->BeatOnLoop(now);
  return latest;
}

}  // namespace ferry::transfer
