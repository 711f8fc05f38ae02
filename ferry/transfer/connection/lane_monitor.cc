// Heartbeats of a connection, and what happens to its lanes.
#include "ferry/transfer/connection/lane_monitor.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "ferry/transfer/handshake/parked_lane.h"

namespace ferry::transfer {

// ---- LaneLives ----------------------------------------------------------------------------------

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

// ---- LaneMonitor --------------------------------------------------------------------------------

LaneMonitor::LaneMonitor(ConnectionCommon* common, const LaneGroup* lanes)
    : common_(common),
      lanes_(lanes),
      lives_(common->context.lanes),
      heartbeat_(&common->config, common->context.lanes),
      given_up_(common->context.lanes) {}

void LaneMonitor::SetPaths(const RecoveryContext& context, std::vector<NetworkPath> paths) {
  RecoveryHost* const host = this;
  health_ = std::make_unique<LaneHealth>(context, host, std::move(paths));
}

void LaneMonitor::Start() {
  heartbeat_.Start(Clock::now());
  lanes_->PostToAll([](LaneEngine& lane) { lane.Beat(/*heard=*/false); });
  OnBeatDue();
  if (health_) health_->Start();
}

void LaneMonitor::Stop() {
  if (heartbeat_timer_ != 0) {
    common_->home->CancelTimerOnLoop(std::exchange(heartbeat_timer_, 0));
  }
  if (health_) health_->Stop();
}

// Separate from the heartbeat's record, because drain checks run between heartbeats, too.
void LaneMonitor::Notice() {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    lives_.Notice(i, lanes_->lane(i).BytesReceived(), now);
  }
}

// ---- heartbeats ---------------------------------------------------------------------------------

// After a gap, for example when the process was stopped, the sockets hold what has arrived since.
// So silence is judged only after every lane has read its socket.
void LaneMonitor::OnBeatDue() {
  heartbeat_timer_ = 0;
  if (common_->state.lost()) return;
  const Clock::duration late = heartbeat_.Lateness(Clock::now());
  if (late == Clock::duration::zero()) return Beat(late);
  // A loop polls its sockets between two tasks.
  lanes_->Run(
      kAllLanes, [](LaneEngine& lane) { lane.Look(); },
      [keep = KeepAlive(), this, late] {
        lanes_->Run(
            kAllLanes, [](LaneEngine&) {}, [keep, this, late] { Beat(late); });
      });
}

void LaneMonitor::Beat(Clock::duration missed) {
  if (common_->state.lost()) return;
  const auto now = Clock::now();
  for (std::uint32_t i = 0; i < lives_.size(); ++i) BeatLane(i, now, missed);
  FailIfSilent(now);
  if (common_->state.lost()) return;
  if (health_) health_->Beat();
  heartbeat_timer_ = common_->home->AddTimerOnLoop(heartbeat_.Plan(now), [this] { OnBeatDue(); });
}

// `missed`: how late this call is, if it is late by much.
void LaneMonitor::BeatLane(std::uint32_t lane, Clock::time_point now, Clock::duration missed) {
  const session::Heartbeat::Sign sign =
      heartbeat_.Beat(lane, lanes_->lane(lane).BytesReceived(), now, missed);
  if (sign.quiet >= common_->config.peer_timeout + heartbeat_.lane_timeout()) {
    FailIfStuck(lane, sign.quiet);
  }
  if (!lives_.up(lane)) return;
  if (sign.has_just_begun) common_->stats.CountStall(lane, sign.quiet);
  if (sign.is_suspect) Suspect(lane, "has been silent");
  lanes_->Post(lane, [heard = sign.heard](LaneEngine& at) { at.Beat(heard); });
}

void LaneMonitor::FailIfSilent(Clock::time_point now) {
  const Clock::duration silent = now - heartbeat_.heard_at();
  if (silent >= heartbeat_.lane_timeout() && lives_.Abandoned()) {
    common_->fail_now(Error(
        Code::kPeerLost,
        fmt::format("every lane to {} was reset or was being replaced, and for {:.1f} s none has "
                    "come back (FERRY_LANE_TIMEOUT); reconnect when the peer is back",
                    common_->context.peer_name, Seconds(silent))));
  } else if (heartbeat_.IsPeerLost(now)) {
    common_->fail_now(Error(
        Code::kPeerLost,
        fmt::format("nothing was heard from {} for {:.1f} s (FERRY_PEER_TIMEOUT); it is frozen, "
                    "cut off or gone: reconnect when it is back",
                    common_->context.peer_name, Seconds(silent))));
  }
}

// Limits how long operations wait for a lane that cannot be replaced while the other lanes work.
void LaneMonitor::FailIfStuck(std::uint32_t lane, Clock::duration silent) {
  lanes_->Post(lane, [this, silent](LaneEngine& at) {
    if (!at.HoldsWork()) return;
    Fail(Error(
        Code::kPeerLost,
        fmt::format("lane {} to {} has been unusable for {:.1f} s and could not be replaced, "
                    "so operations in flight on it cannot end (FERRY_PEER_TIMEOUT); check that "
                    "new connections to the peer succeed, and reconnect",
                    at.index(), common_->context.peer_name, Seconds(silent))));
  });
}

// ---- what happens to lanes ----------------------------------------------------------------------

void LaneMonitor::SetDown(std::uint32_t lane) {
  lives_.SetDown(lane);
  records_.SetUp(lane, false);
}

bool LaneMonitor::OnLost(std::uint32_t lane, const Error& error,
                         std::optional<net::LaneLoss> loss) {
  lives_.SetLost(lane, loss);
  common_->stats.CountLaneLost(lane, error);
  if (lives_.AllReset()) return false;
  if (health_) {
    health_->OnLaneLost(lane, loss.value_or(net::LaneLoss::kUnreachable));
  } else {
    Suspect(lane, "was lost");
  }
  return true;
}

void LaneMonitor::OnReplaced(std::uint32_t lane, const net::LaneInfo& info) {
  const auto now = Clock::now();
  lives_.SetUp(lane, now);
  heartbeat_.Restart(lane, now);
  records_.SetUp(lane, true);
  common_->stats.CountLaneReplaced(lane, info);
  records_.SetInfo(lane, info);
}

void LaneMonitor::Suspect(std::uint32_t lane, const char* why) {
  if (common_->state.lost()) return;
  if (health_) return health_->OnSuspect(lane, why);
  // The other side dials; this side can only request a replacement.
  SayLaneLost(lane);
}

// Over every other lane that may still work.
void LaneMonitor::SayLaneLost(std::uint32_t lane) {
  wire::JoinBody body;
  body.lane = static_cast<std::uint16_t>(lane);
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    if (i == lane || !lives_.up(i)) continue;
    lanes_->Post(i, [body](LaneEngine& at) {
      at.SendPlain(wire::Type::kLaneLost, 0, std::as_bytes(std::span(&body, 1)));
    });
  }
}

// A peer may repeat this any number of times: at most one task per lane is posted, however busy the
// loop is.
void LaneMonitor::OnGivenUp(std::uint32_t lane) {
  if (lane >= given_up_.size() || given_up_[lane].exchange(true)) return;
  common_->home->Post([keep = KeepAlive(), this, lane] {
    given_up_[lane] = false;
    if (common_->state.lost()) return;
    if (health_) return health_->OnSuspect(lane, "was given up by the peer");
    // The side that dials says so where one of the sides does not let the other in.
    EndWhatWaitsFor(lane, Error(Code::kPeerLost,
                                "the peer, which dials, reports that authentication fails; check "
                                "the secrets and certificates of both sides, its log has details"));
  });
}

void LaneMonitor::OnLinkChange(const net::LinkChange& change) {
  if (common_->state.lost() || common_->state.starting()) return;
  common_->stats.Note("link {} went {}", change.interface, change.up ? "up" : "down");
  const auto infos = records_.Infos();
  for (std::uint32_t i = 0; !change.up && i < infos.size(); ++i) {
    if (infos[i].interface == change.interface && lives_.up(i)) Suspect(i, "has its link down");
  }
  if (health_) health_->OnLinkChange(change);
}

// ---- replacing a lane ---------------------------------------------------------------------------

void LaneMonitor::Fail(const Error& error) {
  common_->home->Post([keep = KeepAlive(), this, error] { common_->fail_now(error); });
}

// The other side's operations may wait, too, and it does not dial.
void LaneMonitor::FailIfWaitedFor(std::uint32_t lane, const Error& reason) {
  SayLaneLost(lane);
  EndWhatWaitsFor(lane, reason);
}

void LaneMonitor::EndWhatWaitsFor(std::uint32_t lane, const Error& reason) {
  lanes_->Post(lane, [this, reason](LaneEngine& at) {
    if (at.state() != LaneEngine::State::kFrozen || !at.HoldsWork()) return;
    Fail(Error(Code::kPeerLost,
               fmt::format("lane {} to {} was lost and cannot be replaced, so operations in flight "
                           "on it cannot end: {}",
                           at.index(), common_->context.peer_name, reason.message())));
  });
}

void LaneMonitor::Freeze(std::uint32_t lane, std::uint32_t attempt, Frozen then) {
  lanes_->Post(lane,
               [home = common_->home, attempt, then = std::move(then)](LaneEngine& at) mutable {
                 home->Post([progress = at.Freeze(attempt), then = std::move(then)]() mutable {
                   then(std::move(progress));
                 });
               });
}

// The replacement changes loops here: it is parked until the lane's loop attaches it.
void LaneMonitor::Revive(std::uint32_t lane, std::uint32_t attempt,
                         std::unique_ptr<net::Lane> replacement, const LaneProgress& peer) {
  auto parked = std::make_unique<ParkedLane>(std::move(replacement), lanes_->lane(lane).loop());
  lanes_->Post(lane, [attempt, parked = std::move(parked), peer](LaneEngine& at) mutable {
    at.Revive(attempt, std::move(parked), peer);
  });
}

}  // namespace ferry::transfer
