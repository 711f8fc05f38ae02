// Engine side of a connection: its parts, and how it starts and ends.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/transfer/connection/connection_state.h"
#include "ferry/transfer/connection/lane_group.h"
#include "ferry/transfer/connection/lane_monitor.h"
#include "ferry/transfer/connection/operation_runner.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/gpu/sharing_host.h"
#include "ferry/transfer/lane/lane_engine.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/message_queue.h"
#include "ferry/transfer/memory/held_memory.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

// The peer and the parameters agreed in the handshake.
struct Peer {
  Uuid endpoint;
  std::string name;                // its address, for messages
  std::uint64_t window_bytes = 0;  // the smaller of both sides' limits, in bytes
  bool checksums = false;
  net::ProcessHint process = {};    // that it says it is
  std::vector<std::byte> identity;  // by the program that dialed
  // Number by which the accepting side finds the connection when a lane is replaced.
  std::uint32_t connection = 0;
  Uuid token;
};

// A connection: owns its lanes and the parts that run its operations and messages and watch its
// lanes, and starts and ends them all. Its parts know each other in this order, each only those
// before it: MessageQueue, state and statistics (ConnectionCommon), lanes (LaneGroup), LaneMonitor,
// OperationRunner. Calls up go by LaneOwner and OperationHost.
class ConnectionCore final : public SharingHost,
                             public LaneOwner,
                             public std::enable_shared_from_this<ConnectionCore> {
 public:
  // `loops`: one for each lane; the first is the home loop.
  ConnectionCore(const Config& config, RegionTable* regions, Peer peer,
                 const std::vector<EventLoop*>& loops);
  ~ConnectionCore() override;

  // ---- Call before Start().
  //
  // Sets its number in the endpoint (region_openers.h). Call before the lanes are adopted, too.
  void SetNumber(std::uint32_t number) noexcept { common_.context.number = number; }
  // `log` must outlive this side's loops.
  void SetRefusalLog(LogLimiter* log) noexcept { common_.stats.SetRefusalLog(log); }
  // Runs on the home loop when the last lane is closed.
  void SetClosedCallback(std::function<void()> callback) { closed_callback_ = std::move(callback); }

  // ---- What it is made of. Each says which threads may call it.
  const Peer& peer() const noexcept { return peer_; }
  OperationRunner& operations() noexcept { return operations_; }
  NotificationQueue& notifications() noexcept { return messages_.notifications(); }
  LaneMonitor& monitor() noexcept { return monitor_; }
  const LaneMonitor& monitor() const noexcept { return monitor_; }
  const ConnectionStats& stats() const noexcept { return common_.stats; }
  GpuSharing& sharing() noexcept { return sharing_; }
  const LaneGroup& lanes() const noexcept { return lanes_; }
  std::size_t bulk_lanes() const noexcept { return common_.context.bulk_lanes; }
  const ConnectionState& state() const noexcept { return common_.state; }

  // ---- Any thread.
  bool checksums() const noexcept { return peer_.checksums; }
  // Otherwise than by this side's wish.
  bool was_lost() const { return lost() && state().error().code() != Code::kCancelled; }
  // As Fail(), by this side's own wish: the peer is told first what has been done for it, so that
  // nothing of its fails that is in place here.
  void Close(const Error& error);
  ConnectionCounters Counters() const;
  // A network link of this machine has changed.
  void OnLinkChange(const net::LinkChange& change);
  // Called after the region was removed. Makes the lanes that have opened it stop receiving into
  // it.
  void Revoke(const std::shared_ptr<RegionState>& region);
  // Called after the region was removed. Makes the peer unmap GPU memory that was shared with it.
  void TakeBack(const std::shared_ptr<RegionState>& region);
  // Fails the connection if one of these lanes still references the region's memory for data that
  // the peer has requested.
  void FailIfHolding(const std::shared_ptr<RegionState>& region, LaneSet lanes);

  // ---- Home loop.
  //
  // Requires that all lanes are adopted.
  void Start();

  // SharingHost
  std::weak_ptr<SharingHost> weak() noexcept override { return weak_from_this(); }
  const Config& config() const noexcept override { return common_.config; }
  RegionTable& regions() const noexcept override { return *common_.context.regions; }
  EventLoop* home() const noexcept override { return common_.home; }
  HeldMemory& memory() noexcept override { return memory_; }
  std::uint32_t number() const noexcept override { return common_.context.number; }
  const std::string& peer_name() const noexcept override { return peer_.name; }
  const Uuid& token() const noexcept override { return peer_.token; }
  std::int32_t PeerProcessOnLoop() const override {
    return lanes_.front().is_proved() ? peer_.process.pid : 0;
  }
  bool lost() const noexcept override { return common_.state.lost(); }
  // `closed_callback` follows.
  void Fail(const Error& error) override;
  void SendControlOnLoop(wire::Type type, std::span<const std::byte> body) override;

  // LaneOwner
  std::shared_ptr<void> KeepAlive() override { return shared_from_this(); }
  void OnLaneUp(std::uint32_t index, net::LaneInfo info) override;
  void LaneLost(std::uint32_t index, const Error& error,
                std::optional<net::LaneLoss> loss) override;
  void LaneFrozen(std::uint32_t index, bool was_heard) override;
  void LaneFailed(const Error& error) override;
  void PeerClosedLane(std::uint32_t index, const Error& error) override;
  void PeerGaveUpLane(std::uint32_t index) override { monitor_.OnGivenUp(index); }
  void PostLaneClosed(std::uint32_t index) override;
  void SetLanePath(std::uint32_t index, const net::PathStats& path) override {
    monitor_.records().SetPath(index, path);
  }
  void CountRefusal(const Error& error) override { common_.stats.CountRefusal(error); }
  void CountMismatch() override { common_.stats.CountMismatch(); }

 private:
  LaneContext ContextFor(RegionTable* regions, std::size_t lanes);
  // Fails everything with `error` and closes the lanes. Home loop.
  void FailNow(const Error& error);
  // Nothing new begins. `by_peer`: the peer has closed it. Any thread.
  void MarkLost(const Error& error, bool by_peer = false);
  void OnLaneLost(std::uint32_t index, const Error& error, std::optional<net::LaneLoss> loss);
  void OnPeerClosedLane(std::uint32_t index, const Error& error);
  void SetLaneDown(std::uint32_t index);
  void FailIfAllDown(const Error& error);
  void OnLaneClosed();
  // Every lane is closed.
  void OnClosed();

  const Peer peer_;
  HeldMemory memory_;
  LaneShares shares_;
  ConnectionCommon common_;
  GpuSharing sharing_{this};
  LaneMonitor monitor_;
  OperationRunner operations_;
  MessageQueue messages_;
  LaneGroup lanes_;  // first to go: the lanes refer to the others
  std::function<void()> closed_callback_;

  // Home loop only.
  std::size_t open_lanes_ = 0;
  EventLoop::TimerId last_words_timer_ = 0;  // started when the peer closes a lane
};

}  // namespace ferry::transfer
