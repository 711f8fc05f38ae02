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
#include "ferry/transfer/channel.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/event_ring.h"
#include "ferry/transfer/gpu_sharing.h"
#include "ferry/transfer/held_memory.h"
#include "ferry/transfer/matcher.h"
#include "ferry/transfer/operation_state.h"
#include "ferry/transfer/operation_table.h"
#include "ferry/transfer/ready_flag.h"
#include "ferry/transfer/region_table.h"
#include "ferry/transfer/sharing_host.h"

namespace ferry::transfer {

// A peer may not have more of its reads under way on one lane than twice this.
inline constexpr std::size_t kMaxReplies = 64;
inline constexpr std::uint64_t kMaxEagerBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxNotificationBytes = 64 * 1024;
// A write or read of host memory of at most so many bytes goes with the messages, over the first
// lane, unless so many of them are in flight already: those of a deep queue are bulk.
inline constexpr std::uint64_t kMaxSmallBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxSmallDepth = 4;
// Then so many of the next ones are bulk, too.
inline constexpr std::uint64_t kSmallAsBulk = 64;
// The first lane for bulk. With two lanes both carry bulk: one alone would be much slower.
constexpr std::size_t FirstBulkLaneOf(std::size_t lanes) { return lanes > 2 ? 1 : 0; }

// Who is at the other end, and what was agreed in the greeting.
struct Peer {
  Uuid endpoint;
  std::string name;                // its address, for messages
  std::uint64_t window_bytes = 0;  // the smaller of both sides' limits
  bool checksums = false;
  // By which the listening side knows the connection when a lane is joined anew.
  std::uint32_t connection = 0;
  Uuid token;
};

inline bool PutsBytesOnTheWire(OperationKind kind) { return kind != OperationKind::kRecv; }

// The engine's side of a connection: its operations, its messages, its life and end. Belongs to its
// home loop, on which the first lane is; the other lanes' loops reach it through Post.
//
// Shared between the endpoint's table (until closed), the user's handles, and tasks under way.
class LaneKeeper;

class ConnectionCore final : public SharingHost,
                             public std::enable_shared_from_this<ConnectionCore> {
 public:
  // `loops`: one for each lane; the first is the home loop.
  ConnectionCore(const Config& config, RegionTable* regions, Peer peer,
                 std::vector<EventLoop*> loops);
  ~ConnectionCore() override;

  const Config& config() const noexcept override { return config_; }
  RegionTable& regions() const noexcept override { return *regions_; }
  const Peer& peer() const noexcept { return peer_; }
  // Before the lanes are given to it: its number in the endpoint (region_openers.h).
  void SetNumber(std::uint32_t number) noexcept { number_ = number; }
  std::uint32_t number() const noexcept override { return number_; }
  const std::string& peer_name() const noexcept override { return peer_.name; }
  std::uint64_t window_bytes() const noexcept { return peer_.window_bytes; }
  bool checksums() const noexcept { return peer_.checksums; }
  std::size_t lanes() const noexcept { return channels_.size(); }
  // The first lane is for messages, notifications and small operations, where at least two others
  // carry the rest: those from FirstBulkLane() on.
  std::size_t FirstBulkLane() const noexcept { return FirstBulkLaneOf(channels_.size()); }
  std::size_t bulk_lanes() const noexcept { return channels_.size() - FirstBulkLane(); }
  Channel& channel(std::size_t index) const noexcept { return *channels_[index]; }
  EventLoop* home() const noexcept override { return home_; }
  GpuSharing& sharing() noexcept { return sharing_; }
  HeldMemory& memory() noexcept override { return memory_; }
  std::weak_ptr<SharingHost> weak() noexcept override { return weak_from_this(); }
  void SendControlOnLoop(wire::Type type, std::span<const std::byte> body) override;

  // ---- Any thread.
  // Begins an operation. It will end, whatever happens.
  void Submit(std::shared_ptr<OperationState> operation);
  void Cancel(std::shared_ptr<OperationState> operation);
  // After Submit(): the stream that it waits for has come so far, or why it will not.
  void StreamReached(std::shared_ptr<OperationState> operation, const Status& reached);
  std::uint64_t NewOperationId() noexcept { return next_operation_.fetch_add(1) + 1; }
  // Operations begun and not ended; for the limit.
  std::uint32_t in_flight() const noexcept { return in_flight_.load(); }
  bool lost() const noexcept override { return lost_.load(); }
  // Otherwise than by this side's wish.
  bool was_lost() const { return lost() && LostError().code() != Code::kCancelled; }
  Error LostError() const;
  std::uint64_t refusals() const noexcept { return refusals_.load(); }
  void CountRefusal(const Error& error);
  // Logs what a peer can bring about at will: so much of it in a second.
  void LogLimited(LogFields fields, const std::string& sentence);
  // Fails everything with `error` and closes the lanes; `closed_callback` follows.
  void Fail(const Error& error) override;
  // The same by this side's own wish: the peer is told first what has been done for it, so that
  // nothing of its fails that is in place here.
  void Close(const Error& error);
  // True once no lane touches anything any more.
  bool closed() const noexcept { return closed_.load(); }
  bool TakeNotification(std::vector<std::byte>* bytes);
  // Any thread. See Connection::NotificationReadiness().
  Result<UniqueFd> NotificationDescriptor();
  void CountMismatch() { mismatches_.fetch_add(1, std::memory_order_relaxed); }
  ConnectionCounters Counters() const;
  TrafficCounters Traffic() const;
  // Keeps it among the last events.
  template <class... Args>
  void Note(fmt::format_string<Args...> format, Args&&... args) {
    events_.Add(fmt::vformat(format, fmt::make_format_args(args...)));
  }
  const EventRing& events() const noexcept { return events_; }
  // As they are now; of a lane that is lost, as it was.
  std::vector<net::LaneInfo> LaneInfos() const;
  // Before StartOnLoop.
  void SetLaneInfos(std::vector<net::LaneInfo> infos);
  // Before StartOnLoop: on the connecting side, who replaces lanes.
  void SetKeeper(std::unique_ptr<LaneKeeper> keeper);
  // Whether this side has connected to the other.
  bool called() const noexcept { return keeper_ != nullptr; }
  // By the lane's loop.
  void SetLanePath(std::uint32_t index, const net::PathStats& path);
  // A link of this machine has changed.
  void OnLinkChange(const net::LinkChange& change);
  // After the region was removed: makes the lanes that have opened it stop receiving into it, then
  // runs `then` on the home loop.
  void Revoke(const std::shared_ptr<RegionState>& region, EventLoop::Task then);
  // After the region was removed: makes the peer let go of GPU memory that was shared with it.
  void TakeBack(const std::shared_ptr<RegionState>& region);
  // Fails the connection if one of these lanes still holds the region's memory for data that the
  // peer has read.
  void FailIfHolding(const std::shared_ptr<RegionState>& region, std::uint64_t lanes);
  // Before StartOnLoop. Outlives this side's loops.
  void SetRefusalLog(LogLimiter* log) { refusal_log_ = log; }
  // Before StartOnLoop. Called on the home loop when the last lane is closed.
  void SetClosedCallback(std::function<void()> callback) { closed_callback_ = std::move(callback); }

  // ---- Any lane's loop.
  void RoundIsOver(const std::shared_ptr<OperationState>& operation);
  // The connection goes with any of its lanes, but what has come over the others is heard first: it
  // may say that operations have ended well.
  void LaneFailed(const Error& error);
  // The same by the peer's wish: what is still to come over the others is heard, too, up to their
  // ends or for drain_grace.
  void PeerClosedLane(std::uint32_t index, const Error& error);
  // The network has taken a lane away; another may take its place. Nothing for `loss`: it was
  // given up before anything had come over it, which says no more than was known before.
  void LaneLost(std::uint32_t index, const Error& error, std::optional<net::LaneLoss> loss);
  void LaneIsUp(std::uint32_t index, net::LaneInfo info);
  // The lane is in use no more, and another is to take its place. `was_heard`: the peer has used
  // it.
  void LaneFrozen(std::uint32_t index, bool was_heard);
  // The peer, which cannot do so itself, asks for another lane in the place of this one.
  void PeerGaveUpLane(std::uint32_t index);
  // Gives the operation's slices, of which some were given back, to all lanes that may carry them.
  void DealAgain(const std::shared_ptr<OperationState>& operation);
  // The share of all bulk that goes through this lane: of 1, by the measured rates.
  double ShareOf(const Channel& channel) const;
  void PostChannelClosed(Channel* channel);

  // ---- Home loop.
  void StartOnLoop();  // all channels have adopted their lanes
  Status OnMessageOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  // Null when no receive waits for the tag; kInvalidArgument when the one that does is too short.
  Result<std::shared_ptr<OperationState>> TakeReceiveOnLoop(std::uint64_t tag, std::uint64_t bytes);
  bool MayKeepOnLoop(std::uint64_t bytes) const;
  // A message that waits at the peer.
  void TakeOfferOnLoop(std::uint64_t peer_operation, const wire::TagBody& body);
  // `receive`: whose buffer it has come into; null for a message with its data.
  void OnWholeMessageOnLoop(const std::shared_ptr<OperationState>& receive, ArrivedMessage message,
                            const Status& intact);
  // Its message did not come whole, and comes again.
  void PutBackReceiveOnLoop(const std::shared_ptr<OperationState>& receive);
  bool MayNotifyOnLoop(std::uint64_t bytes) const;
  void OnNotificationOnLoop(std::vector<std::byte> bytes);
  void BecomesOfferOnLoop(const std::shared_ptr<OperationState>& operation);

 private:
  using Op = std::shared_ptr<OperationState>;

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
  void RoundIsOverOnLoop(const Op& operation);
  void EndOnLoop(const Op& operation, Status status);
  void AbortOnLoop(const Op& operation, const Error& error);
  void AbortReceiveOnLoop(const Op& operation, const Error& error);
  void AbandonReads(const Op& operation);
  // connection_drain.cc: waits for the peer to acknowledge the slices in flight of an operation
  // that is aborting, for drain_grace since the last progress.
  struct DrainLook;
  void DrainOnLoop(const Op& operation);
  void AskLanesOnLoop();
  void ScheduleDrainLookOnLoop(const Op& operation);
  void LookAtDrainOnLoop(const Op& operation);
  void JudgeDrainOnLoop(const Op& operation, const DrainLook& look);
  bool DrainHasProgressedOnLoop(const Op& operation, const DrainLook& look);
  bool DrainIsExcusedOnLoop(const Op& operation, const DrainLook& look,
                            Clock::time_point since) const;
  // Nothing new is begun from now on. Any thread; the first error stays.
  void MarkLost(const Error& error, bool peer_closed = false);
  // `before`: the events until then.
  void LogLoss(const Error& error, bool everyday, const std::string& before) const;
  // Where the peer has closed the connection, once every operation has ended.
  void LogPeerClose() const;
  std::string EventsInALine() const;
  void CountEndOnLoop(const OperationState& operation, const Status& status);
  void FailOnLoop(const Error& cause);
  void FailIfAllDownOnLoop(const Error& error);
  void ChannelClosedOnLoop();
  // Runs `work` on the loop of each lane whose bit is set, then `then` on the home loop.
  void OnLanes(std::uint64_t lanes, const std::function<void(Channel&)>& work,
               EventLoop::Task then);
  void OnEveryLane(const std::function<void(Channel&)>& work, EventLoop::Task then) {
    OnLanes(~std::uint64_t{0}, work, std::move(then));
  }

  Status OnOfferOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnSolicitOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnDeliveredOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnDeclinedOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  void WriteSolicitedOnLoop(const Op& operation, const wire::SolicitBody& asked);
  void LandMessageOnLoop(const Op& receive, std::shared_ptr<std::vector<std::byte>> data,
                         std::uint64_t at);
  void LandPartOnLoop(const Op& receive, std::shared_ptr<std::vector<std::byte>> data,
                      std::uint64_t at, StageSlot slot);
  void TakeMessageOnLoop(const Op& receive, ArrivedMessage message);
  void SolicitOnLoop(const Op& receive, const ArrivedMessage& message);
  void SendDeliveredOnLoop(std::uint64_t operation_id, const Status& status);
  void SendDeclinedOnLoop(std::uint64_t operation_id, const Status& status);
  bool DeclineForWantOfRoomOnLoop(std::uint64_t peer_operation);
  // After each change of the matcher.
  void CountKeptOnLoop();

  // What the home loop knows of a lane.
  struct LaneLife {
    bool up = true;
    bool by_reset = false;  // how it was lost
    bool replaced = false;  // was well until it was; of no meaning once its successor is used
    bool stalled = false;   // and that was counted
    std::uint64_t heard_bytes = 0;
    Clock::time_point up_since{};  // of the lane that it has
    std::uint64_t noticed_bytes = 0;
    Clock::time_point noticed_at{};  // like heard_*, by NoticeLanesOnLoop
    Clock::time_point heard_at;      // later by the first gap since in which we did not listen
    bool excused = false;            // there was one
  };
  void LaneLostOnLoop(std::uint32_t index, const Error& error, std::optional<net::LaneLoss> loss);
  // A lane that may be of no use any more, though nothing has ended it.
  void SuspectOnLoop(std::uint32_t index, const char* why);
  void CountStallOnLoop(std::uint32_t index, Clock::duration silent);
  // Gives up a peer on one of whose lanes work has waited for too long.
  void FailIfStuckOnLoop(std::uint32_t index, Clock::duration silent);
  void SetLaneUpOnLoop(std::uint32_t index, bool up);
  // Looks which lanes have been heard since the last time, whenever that was.
  void NoticeLanesOnLoop();
  // Whether the lanes are as a process leaves them that ends while some are being replaced.
  bool IsAbandonedOnLoop() const;
  // Returns when the peer was last heard of.
  Clock::time_point BeatLanesOnLoop(Clock::time_point now, Clock::duration missed);
  friend class LaneKeeper;

  // Sets the timer for the operation that is due first.
  void ScheduleOnLoop();
  void CheckDeadlinesOnLoop();
  void HeartbeatOnLoop();
  void BeatOnLoop(Clock::duration missed);
  Op FindOnLoop(std::uint64_t id) const;

  const Config config_;
  RegionTable* const regions_;
  const Peer peer_;
  EventLoop* const home_;
  std::uint32_t number_ = kNoConnection;
  HeldMemory memory_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::function<void()> closed_callback_;
  LogLimiter* refusal_log_ = nullptr;
  GpuSharing sharing_{this};
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
  std::atomic<std::uint32_t> sending_{0};  // of in_flight_, those that put bytes on the wire
  std::atomic<std::uint64_t> refusals_{0};
  std::atomic<std::uint64_t> mismatches_{0};
  std::atomic<std::uint64_t> lanes_lost_{0};
  std::atomic<std::uint64_t> lanes_replaced_{0};
  std::atomic<std::uint64_t> lane_stalls_{0};
  struct OperationCounters {
    LoopCounter begun;
    std::array<LoopCounter, kOutcomes> ended;
  };
  std::array<OperationCounters, kOperationKinds> operation_counts_;  // counted on the home loop
  std::atomic<bool> lost_{false};
  std::atomic<bool> closed_{false};
  mutable std::mutex error_mutex_;
  std::string lost_reason_;  // under error_mutex_
  Code lost_code_ = Code::kPeerLost;
  std::optional<std::string> unlogged_close_;  // under error_mutex_; the events before it

  // Home loop.
  bool started_ = false;
  bool ending_ = false;          // everything was told to end
  bool failed_by_loss_ = false;  // of operations that had begun to put bytes on the wire
  std::optional<Error> failed_early_;
  OperationTable operations_;
  // Receives, by the sender's operation.
  std::unordered_map<std::uint64_t, Op, SeededHash> landing_;
  std::uint64_t small_in_flight_ = 0;  // operations that are `small`
  std::uint64_t small_as_bulk_ = 0;    // so many of the next ones go with bulk
  bool deal_rest_due_ = false;         // a task that deals again is on its way
  Matcher matcher_;
  std::uint64_t kept_bytes_ = 0;  // by the matcher, as memory_ has it
  std::size_t open_channels_ = 0;
  Clock::time_point next_check_ = Clock::time_point::max();
  EventLoop::TimerId check_timer_ = 0;
  EventLoop::TimerId heartbeat_timer_ = 0;
  EventLoop::TimerId last_words_timer_ = 0;  // since the peer has closed a lane
  std::vector<LaneLife> lives_;
  std::vector<std::atomic<bool>> given_up_;  // by lane: PeerGaveUpLane has posted; any thread
  Clock::time_point next_beat_;
  std::unique_ptr<LaneKeeper> keeper_;  // null on the side that listened

  mutable std::mutex notifications_mutex_;
  std::deque<std::vector<std::byte>> notifications_;  // under notifications_mutex_
  std::uint64_t notification_bytes_ = 0;              // likewise
  ReadyFlag notification_ready_;                      // likewise; set once it is closed
};

}  // namespace ferry::transfer
