// Watches the lanes of a connection from its home loop: heartbeats, silence, losses.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/net/provider.h"
#include "ferry/session/heartbeat.h"
#include "ferry/transfer/connection/connection_state.h"
#include "ferry/transfer/connection/lane_group.h"
#include "ferry/transfer/recovery/lane_health.h"
#include "ferry/transfer/recovery/recovery_host.h"
#include "ferry/transfer/stats/lane_records.h"

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

// Watches the lanes of a connection: sends heartbeats, notices silence and what becomes of lost
// lanes, and lets recovery replace them. Ends the connection when the peer is silent or gone. Home
// loop only, except where any thread is named.
class LaneMonitor final : private RecoveryHost {
 public:
  // Both must outlive the monitor.
  LaneMonitor(ConnectionCommon* common, const LaneGroup* lanes);

  // Lets this side, which dialed, replace lanes over these network paths. Call before Start().
  void SetPaths(const RecoveryContext& context, std::vector<NetworkPath> paths);
  // Whether this side dialed. Any thread.
  bool called() const noexcept { return health_ != nullptr; }
  // What is known of each lane. Any thread.
  LaneRecords& records() noexcept { return records_; }
  const LaneRecords& records() const noexcept { return records_; }
  const LaneLives& lives() const noexcept { return lives_; }

  void Start();
  void Stop();
  // Records which lanes have received data since the previous call, for drains.
  void Notice();

  void SetDown(std::uint32_t lane);
  bool AllDown() const { return !lives_.AnyUp(); }
  // The network dropped the lane, which is down. Sees to a replacement: the dialing side makes one,
  // the accepting side asks for one. Returns false if every lane was reset: the peer's process has
  // ended.
  bool OnLost(std::uint32_t lane, const Error& error, std::optional<net::LaneLoss> loss);
  // The lane, which is down, will be replaced. `was_heard`: the peer has used it.
  void OnFrozen(std::uint32_t lane, bool was_heard) { lives_.SetFrozen(lane, was_heard); }
  void OnReplaced(std::uint32_t lane, const net::LaneInfo& info);
  // A network link of this machine has changed.
  void OnLinkChange(const net::LinkChange& change);
  // The peer requests a replacement, or, where it dials, has found that none is let in. Any thread.
  void OnGivenUp(std::uint32_t lane);

 private:
  // RecoveryHost
  std::shared_ptr<void> KeepAlive() override { return lanes_->KeepAlive(); }
  void Note(const std::string& event) override { common_->stats.Note("{}", event); }
  void Fail(const Error& error) override;
  void FailIfWaitedFor(std::uint32_t lane, const Error& reason) override;
  void Freeze(std::uint32_t lane, std::uint32_t attempt, Frozen then) override;
  void Revive(std::uint32_t lane, std::uint32_t attempt, std::unique_ptr<net::Lane> replacement,
              const LaneProgress& peer) override;

  void OnBeatDue();
  void Beat(Clock::duration missed);
  void BeatLane(std::uint32_t lane, Clock::time_point now, Clock::duration missed);
  void FailIfSilent(Clock::time_point now);
  // Reports a lane that may be dead although it has not ended.
  void Suspect(std::uint32_t lane, const char* why);
  void SayLaneLost(std::uint32_t lane);
  // Ends the connection if operations wait for this lane, which is down.
  void EndWhatWaitsFor(std::uint32_t lane, const Error& reason);
  // Fails the connection if operations have waited too long for one of its lanes.
  void FailIfStuck(std::uint32_t lane, Clock::duration silent);

  ConnectionCommon* const common_;
  const LaneGroup* const lanes_;
  LaneLives lives_;
  session::Heartbeat heartbeat_;
  LaneRecords records_;
  std::vector<std::atomic<bool>> given_up_;  // by lane: OnGivenUp has posted; any thread
  std::unique_ptr<LaneHealth> health_;       // null on the accepting side
  EventLoop::TimerId heartbeat_timer_ = 0;
};

}  // namespace ferry::transfer
