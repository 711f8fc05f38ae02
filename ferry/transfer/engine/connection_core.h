// Engine side of a connection: operations, messages, lanes, liveness and shutdown.
#pragma once
#include <fmt/core.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/log_limiter.h"
#include "ferry/core/seeded_hash.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/engine/lane_engine.h"
#include "ferry/transfer/engine/lane_owner.h"
#include "ferry/transfer/engine/matcher.h"
#include "ferry/transfer/engine/operation_state.h"
#include "ferry/transfer/engine/operation_table.h"
#include "ferry/transfer/engine/ready_flag.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/gpu/sharing_host.h"
#include "ferry/transfer/memory/held_memory.h"
#include "ferry/transfer/memory/region_table.h"
#include "ferry/transfer/stats/event_ring.h"

namespace ferry::transfer {

// A write or read of host memory up to kMaxSmallBytes uses the first lane, with the messages,
// unless kMaxSmallDepth of them are already in flight: those of a deep queue count as bulk.
inline constexpr std::uint64_t kMaxSmallBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxSmallDepth = 4;
// Once that limit is reached, this many of the next small operations count as bulk, too.
inline constexpr std::uint64_t kSmallAsBulk = 64;
// Index of the first lane for bulk data. With two lanes both carry bulk: one alone is much slower.
constexpr std::size_t FirstBulkLaneOf(std::size_t lanes) { return lanes > 2 ? 1 : 0; }

// The peer and the parameters agreed in the handshake.
struct Peer {
  Uuid endpoint;
  std::string name;                // its address, for messages
  std::uint64_t window_bytes = 0;  // the smaller of both sides' limits, in bytes
  bool checksums = false;
  // Number by which the accepting side finds the connection when a lane is replaced.
  std::uint32_t connection = 0;
  Uuid token;
};

inline bool PutsBytesOnTheWire(OperationKind kind) { return kind != OperationKind::kRecv; }

class LaneHealth;

class ConnectionCore final : public SharingHost,
                             public LaneOwner,
                             public MessageSink,
                             public std::enable_shared_from_this<ConnectionCore> {
 public:
  // `loops`: one for each lane; the first is the home loop.
  ConnectionCore(const Config& config, RegionTable* regions, Peer peer,
                 std::vector<EventLoop*> loops);
  ~ConnectionCore() override;

  const Config& config() const noexcept override { return config_; }
  RegionTable& regions() const noexcept override { return *regions_; }
  const Peer& peer() const noexcept { return peer_; }
  // Sets its number in the endpoint (region_openers.h). Call before the lanes are adopted.
  void SetNumber(std::uint32_t number) noexcept { lane_context_.number = number; }
  std::uint32_t number() const noexcept override { return lane_context_.number; }
  const std::string& peer_name() const noexcept override { return peer_.name; }
  std::uint64_t window_bytes() const noexcept { return peer_.window_bytes; }
  bool checksums() const noexcept { return peer_.checksums; }
  std::size_t lanes() const noexcept { return lanes_.size(); }
  // With at least three lanes the first one carries messages, notifications and small operations,
  // and lanes from FirstBulkLane() on carry the rest.
  std::size_t FirstBulkLane() const noexcept { return FirstBulkLaneOf(lanes_.size()); }
  std::size_t bulk_lanes() const noexcept { return lanes_.size() - FirstBulkLane(); }
  LaneEngine& lane(std::size_t index) const noexcept { return *lanes_[index]; }
  EventLoop* home() const noexcept override { return home_; }
  GpuSharing& sharing() noexcept { return sharing_; }
  HeldMemory& memory() noexcept override { return memory_; }
  std::weak_ptr<SharingHost> weak() noexcept override { return weak_from_this(); }
  void SendControlOnLoop(wire::Type type, std::span<const std::byte> body) override;

  // ---- Any thread.
  //
  // Begins an operation, which from then on ends exactly once, also if the connection fails.
  void Submit(OperationRef operation);
  void Cancel(OperationRef operation);
  // Called after Submit() once the stream that the operation waits for has reached its mark, or
  // with the error that prevents it.
  void StreamReached(OperationRef operation, const Status& reached);
  std::uint64_t NewOperationId() noexcept { return next_operation_.fetch_add(1) + 1; }
  // Operations that have begun and not ended; compared with config.max_operations.
  std::uint32_t in_flight() const noexcept { return in_flight_.load(); }
  bool lost() const noexcept override { return lost_.load(); }
  // Otherwise than by this side's wish.
  bool was_lost() const { return lost() && LostError().code() != Code::kCancelled; }
  Error LostError() const;
  std::uint64_t refusals() const noexcept { return refusals_.load(); }
  // Logs an event that a peer can cause at will; rate-limited.
  void LogLimited(LogFields fields, const std::string& sentence);
  // Fails everything with `error` and closes the lanes; `closed_callback` follows.
  void Fail(const Error& error) override;
  // The same by this side's own wish: the peer is told first what has been done for it, so that
  // nothing of its fails that is in place here.
  void Close(const Error& error);
  // True once no lane touches memory any more.
  bool closed() const noexcept { return closed_.load(); }
  bool TakeNotification(std::vector<std::byte>* bytes);
  // See Connection::NotificationReadiness(). Any thread.
  Result<UniqueFd> NotificationDescriptor();
  ConnectionCounters Counters() const;
  TrafficCounters Traffic() const;
  // Appends to the event ring.
  template <class... Args>
  void Note(fmt::format_string<Args...> format, Args&&... args) {
    events_.Add(fmt::vformat(format, fmt::make_format_args(args...)));
  }
  const EventRing& events() const noexcept { return events_; }
  // Current lanes; for a lost lane its last state.
  std::vector<net::LaneInfo> LaneInfos() const;
  // Call before StartOnLoop.
  void SetLaneInfos(std::vector<net::LaneInfo> infos);
  // Sets the object that replaces lanes; connecting side only. Call before StartOnLoop.
  void SetLaneHealth(std::unique_ptr<LaneHealth> lane_health);
  // Whether this side dialed.
  bool called() const noexcept { return lane_health_ != nullptr; }
  // Called when a network link of this machine changes.
  void OnLinkChange(const net::LinkChange& change);
  // Called after the region was removed. Makes the lanes that have opened it stop receiving into
  // it, then runs `then` on the home loop.
  void Revoke(const std::shared_ptr<RegionState>& region, EventLoop::Task then);
  // Called after the region was removed. Makes the peer unmap GPU memory that was shared with it.
  void TakeBack(const std::shared_ptr<RegionState>& region);
  // Fails the connection if one of these lanes still references the region's memory for data that
  // the peer has requested.
  void FailIfHolding(const std::shared_ptr<RegionState>& region, std::uint64_t lanes);
  // Call before StartOnLoop. `log` must outlive this side's loops.
  void SetRefusalLog(LogLimiter* log) { refusal_log_ = log; }
  // Call before StartOnLoop. Runs on the home loop when the last lane is closed.
  void SetClosedCallback(std::function<void()> callback) { closed_callback_ = std::move(callback); }

  // ---- LaneOwner. Any lane's loop.
  std::shared_ptr<void> KeepAlive() override { return shared_from_this(); }
  void OnLaneUp(std::uint32_t index, net::LaneInfo info) override;
  void LaneLost(std::uint32_t index, const Error& error,
                std::optional<net::LaneLoss> loss) override;
  void LaneFrozen(std::uint32_t index, bool was_heard) override;
  void LaneFailed(const Error& error) override;
  void PeerClosedLane(std::uint32_t index, const Error& error) override;
  void PeerGaveUpLane(std::uint32_t index) override;
  void PostLaneClosed(std::uint32_t index) override;
  void SetLanePath(std::uint32_t index, const net::PathStats& path) override;
  void PostRoundDone(const OperationRef& operation) override;
  void DealAgain(const OperationRef& operation) override;
  double ShareOf(std::uint32_t index) const override;
  void CountRefusal(const Error& error) override;
  void CountMismatch() override { mismatches_.fetch_add(1, std::memory_order_relaxed); }

  // ---- Home loop.
  void StartOnLoop();  // requires that all channels have adopted their lanes
  // MessageSink.
  Status OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader) override;
  Result<OperationRef> TakeReceive(std::uint64_t tag, std::uint64_t bytes) override;
  void PutBackReceive(const OperationRef& receive) override;
  bool MayKeep(std::uint64_t bytes) const override;
  void TakeRts(std::uint64_t peer_operation, const wire::TagBody& body) override;
  void OnWholeMessage(const OperationRef& receive, ArrivedMessage message,
                      const Status& intact) override;
  bool MayNotify(std::uint64_t bytes) const override;
  void OnNotification(std::vector<std::byte> bytes) override;
  void BecomesRts(const OperationRef& operation) override;

 private:
  using Op = OperationRef;

  LaneContext ContextFor(std::size_t lanes);
  struct Begin;
  void BeginOnLoop(const Op& operation);
  void BeginNowOnLoop(const Op& operation);
  void BeginSlicesOnLoop(const Op& operation);
  bool GoesWithMessagesOnLoop();
  bool MayGoWithMessagesOnLoop(const Op& operation) const;
  bool BulkIsDownOnLoop() const;
  void DealOnLoop(const Op& operation);
  void DealRestOnLoop();
  void BeginSendOnLoop(const Op& operation);
  void BeginReceiveOnLoop(const Op& operation);
  void SendNotificationOnLoop(const Op& operation);
  void OnRoundDone(const Op& operation);
  void EndOnLoop(const Op& operation, Status status);
  void AbortOnLoop(const Op& operation, const Error& error);
  void AbortReceiveOnLoop(const Op& operation, const Error& error);
  void AbandonReads(const Op& operation);
  // For an operation that is being aborted: waits until the peer has acknowledged its slices in
  // flight, for at most drain_grace since the last progress (connection_drain.cc).
  struct DrainLook;
  void DrainOnLoop(const Op& operation);
  void AskLanesOnLoop();
  void ScheduleDrainLookOnLoop(const Op& operation);
  void LookAtDrainOnLoop(const Op& operation);
  void JudgeDrainOnLoop(const Op& operation, const DrainLook& look);
  bool DrainHasProgressedOnLoop(const Op& operation, const DrainLook& look);
  bool DrainIsExcusedOnLoop(const Op& operation, const DrainLook& look,
                            Clock::time_point since) const;
  // Marks the connection as lost: nothing new begins. Any thread; the first error is kept.
  void MarkLost(const Error& error, bool peer_closed = false);
  // `before`: text of the events up to now.
  void LogLoss(const Error& error, bool everyday, const std::string& before) const;
  // Logs that the peer closed the connection, once every operation has ended.
  void LogPeerClose() const;
  std::string EventsInALine() const;
  void CountEndOnLoop(const OperationState& operation, const Status& status);
  void FailOnLoop(const Error& cause);
  void FailIfAllDownOnLoop(const Error& error);
  void LaneClosedOnLoop();
  // Runs `work` on the loop of each lane whose bit is set, then `then` on the home loop.
  void OnLanes(std::uint64_t lanes, const std::function<void(LaneEngine&)>& work,
               EventLoop::Task then);
  void OnEveryLane(const std::function<void(LaneEngine&)>& work, EventLoop::Task then) {
    OnLanes(~std::uint64_t{0}, work, std::move(then));
  }

  Status OnRts(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnCts(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnFin(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnDeclined(const wire::MessageHeader& header, wire::MetaReader* reader);
  void WriteRequestedOnLoop(const Op& operation, const wire::CtsBody& asked);
  void LandMessageOnLoop(const Op& receive, std::shared_ptr<std::vector<std::byte>> data,
                         std::uint64_t at);
  void LandPartOnLoop(const Op& receive, std::shared_ptr<std::vector<std::byte>> data,
                      std::uint64_t at, StageSlot slot);
  void TakeMessageOnLoop(const Op& receive, ArrivedMessage message);
  void SendCtsOnLoop(const Op& receive, const ArrivedMessage& message);
  void SendFinOnLoop(std::uint64_t operation_id, const Status& status);
  void SendDeclinedOnLoop(std::uint64_t operation_id, const Status& status);
  bool DeclineForWantOfRoomOnLoop(std::uint64_t peer_operation);
  // Call after each change of the matcher.
  void CountKeptOnLoop();

  // State of one lane as the home loop sees it.
  struct LaneLife {
    bool up = true;
    bool by_reset = false;  // how the lane was lost
    bool replaced = false;  // frozen while it worked; meaningless once its replacement is used
    bool stalled = false;   // a stall was counted
    std::uint64_t heard_bytes = 0;
    Clock::time_point up_since{};  // since when the current lane is up
    std::uint64_t noticed_bytes = 0;
    Clock::time_point noticed_at{};  // like heard_*, set by NoticeLanesOnLoop
    Clock::time_point heard_at;      // moved forward over the first gap in which we did not poll
    bool excused = false;            // there was such a gap
  };
  void LaneLostOnLoop(std::uint32_t index, const Error& error, std::optional<net::LaneLoss> loss);
  // Reports a lane that may be dead although it has not ended.
  void SuspectOnLoop(std::uint32_t index, const char* why);
  void CountStallOnLoop(std::uint32_t index, Clock::duration silent);
  // Fails the connection if operations have waited too long for one of its lanes.
  void FailIfStuckOnLoop(std::uint32_t index, Clock::duration silent);
  void SetLaneUpOnLoop(std::uint32_t index, bool up);
  // Records which lanes have received data since the previous call.
  void NoticeLanesOnLoop();
  // Whether the lanes look as they do when the peer process exits while some are being replaced.
  bool IsAbandonedOnLoop() const;
  // Returns when the peer was last heard.
  Clock::time_point BeatLanesOnLoop(Clock::time_point now, Clock::duration missed);
  friend class LaneHealth;

  // Sets the timer for the earliest due operation.
  void ScheduleOnLoop();
  void CheckDeadlinesOnLoop();
  void HeartbeatOnLoop();
  void BeatOnLoop(Clock::duration missed);
  Op FindOnLoop(std::uint64_t id) const;

  const Config config_;
  RegionTable* const regions_;
  const Peer peer_;
  EventLoop* const home_;
  HeldMemory memory_;
  GpuSharing sharing_{this};
  LaneContext lane_context_;
  std::vector<std::unique_ptr<LaneEngine>> lanes_;
  std::function<void()> closed_callback_;
  LogLimiter* refusal_log_ = nullptr;
  mutable std::mutex infos_mutex_;
  struct LaneRecord {
    net::LaneInfo info;
    net::PathStats path;
    bool up = true;
  };
  std::vector<LaneRecord> lane_records_;  // under infos_mutex_
  EventRing events_;

  std::atomic<std::uint64_t> next_operation_{0};
  std::atomic<std::uint32_t> in_flight_{0};
  std::atomic<std::uint32_t> sending_{0};  // those of in_flight_ that send data
  std::atomic<std::uint64_t> refusals_{0};
  std::atomic<std::uint64_t> mismatches_{0};
  std::atomic<std::uint64_t> lanes_lost_{0};
  std::atomic<std::uint64_t> lanes_replaced_{0};
  std::atomic<std::uint64_t> lane_stalls_{0};
  struct OperationCounters {
    LoopCounter begun;
    std::array<LoopCounter, kOutcomes> ended;
  };
  std::array<OperationCounters, kOperationKinds> operation_counts_;  // written on the home loop
  std::atomic<bool> lost_{false};
  std::atomic<bool> closed_{false};
  mutable std::mutex error_mutex_;
  std::string lost_reason_;  // under error_mutex_
  Code lost_code_ = Code::kPeerLost;
  std::optional<std::string> unlogged_close_;  // under error_mutex_; earlier events

  // Home loop only.
  bool started_ = false;
  bool ending_ = false;          // everything was told to end
  bool failed_by_loss_ = false;  // of operations that had begun to send
  std::optional<Error> failed_early_;
  OperationTable operations_;
  // Receives in progress, by the sender's operation id.
  std::unordered_map<std::uint64_t, Op, SeededHash> landing_;
  std::uint64_t small_in_flight_ = 0;  // operations marked `small`
  std::uint64_t small_as_bulk_ = 0;    // number of next small operations that count as bulk
  bool deal_rest_due_ = false;         // a task that redistributes slices is posted
  Matcher matcher_;
  std::uint64_t kept_bytes_ = 0;  // bytes kept by the matcher, as charged to memory_
  std::size_t open_lanes_ = 0;
  Clock::time_point next_check_ = Clock::time_point::max();
  EventLoop::TimerId check_timer_ = 0;
  EventLoop::TimerId heartbeat_timer_ = 0;
  EventLoop::TimerId last_words_timer_ = 0;  // started when the peer closes a lane
  std::vector<LaneLife> lives_;
  std::vector<std::atomic<bool>> given_up_;  // by lane: PeerGaveUpLane has posted; any thread
  Clock::time_point next_beat_;
  std::unique_ptr<LaneHealth> lane_health_;  // null on the accepting side

  mutable std::mutex notifications_mutex_;
  std::deque<std::vector<std::byte>> notifications_;  // under notifications_mutex_
  std::uint64_t notification_bytes_ = 0;              // under notifications_mutex_
  ReadyFlag notification_ready_;  // under notifications_mutex_; set for good once closed
};

}  // namespace ferry::transfer
