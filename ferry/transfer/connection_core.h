#pragma once
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
#include "ferry/transfer/channel.h"
#include "ferry/transfer/matcher.h"
#include "ferry/transfer/operation.h"
#include "ferry/transfer/region.h"

namespace ferry::transfer {

// A peer may not have more of its reads under way on one lane than twice this.
inline constexpr std::size_t kMaxReplies = 64;
inline constexpr std::uint64_t kMaxEagerBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxNotificationBytes = 64 * 1024;

// Who is at the other end, agreed in the greeting.
struct Peer {
  Uuid endpoint;
  std::string name;                // its address, for messages
  std::uint64_t window_bytes = 0;  // the smaller of both sides' limits
};

// The engine's side of a connection: its operations, its messages, its life and end. Belongs to its
// home loop, on which the first lane is; the other lanes' loops reach it through Post.
//
// Shared between the endpoint's table (until closed), the user's handles, and tasks under way.
class ConnectionCore final : public std::enable_shared_from_this<ConnectionCore> {
 public:
  // `loops`: one for each lane; the first is the home loop.
  ConnectionCore(const Config& config, RegionTable* regions, Peer peer,
                 std::vector<EventLoop*> loops);
  ~ConnectionCore();

  const Config& config() const noexcept { return config_; }
  RegionTable& regions() const noexcept { return *regions_; }
  const Peer& peer() const noexcept { return peer_; }
  const std::string& peer_name() const noexcept { return peer_.name; }
  std::uint64_t window_bytes() const noexcept { return peer_.window_bytes; }
  std::size_t lanes() const noexcept { return channels_.size(); }
  Channel& channel(std::size_t index) const noexcept { return *channels_[index]; }
  EventLoop* home() const noexcept { return home_; }

  // ---- Any thread.
  // Begins an operation. It will end, whatever happens.
  void Submit(std::shared_ptr<OperationState> operation);
  void Cancel(std::shared_ptr<OperationState> operation);
  std::uint64_t NewOperationId() noexcept { return next_operation_.fetch_add(1) + 1; }
  // Operations begun and not ended; for the limit.
  std::uint32_t in_flight() const noexcept { return in_flight_.load(); }
  bool lost() const noexcept { return lost_.load(); }
  Error LostError() const;
  std::uint64_t refusals() const noexcept { return refusals_.load(); }
  void CountRefusal(const Error& error);
  // Fails everything with `error` and closes the lanes; `closed_callback` follows.
  void Fail(const Error& error);
  // The same by this side's own wish: the peer is told first what has been done for it, so that
  // nothing of its fails that is in place here.
  void Close(const Error& error);
  // True once no lane touches anything any more.
  bool closed() const noexcept { return closed_.load(); }
  bool TakeNotification(std::vector<std::byte>* bytes);
  // As they were when the connection came up.
  const std::vector<net::LaneInfo>& LaneInfos() const noexcept { return lane_infos_; }
  void SetLaneInfos(std::vector<net::LaneInfo> infos) { lane_infos_ = std::move(infos); }
  // Makes every lane stop receiving into the region, then runs `then` on the home loop.
  void Revoke(const std::shared_ptr<RegionState>& region, EventLoop::Task then);
  // Fails the connection if a lane still holds the region's memory for data that the peer has read.
  void FailIfHolding(const std::shared_ptr<RegionState>& region);
  // Before StartOnLoop. Called on the home loop when the last lane is closed.
  void SetClosedCallback(std::function<void()> callback) { closed_callback_ = std::move(callback); }

  // ---- Any lane's loop.
  void RoundIsOver(const std::shared_ptr<OperationState>& operation);
  // The connection goes with any of its lanes, but what has come over the others is heard first: it
  // may say that operations have ended well.
  void LaneFailed(const Error& error);
  void PostChannelClosed(EventLoop* from);

  // ---- Home loop.
  void StartOnLoop();  // all channels have adopted their lanes
  Status OnMessageOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  // Null when no receive waits for the tag; kInvalidArgument when the one that does is too short.
  Result<std::shared_ptr<OperationState>> TakeReceiveOnLoop(std::uint64_t tag, std::uint64_t bytes);
  bool MayKeepOnLoop(std::uint64_t bytes) const;
  void KeepOfferOnLoop(std::uint64_t peer_operation, const wire::TagBody& body);
  void OnWholeMessageOnLoop(const std::shared_ptr<OperationState>& receive,
                            std::uint64_t peer_operation, std::uint64_t tag, std::uint64_t bytes,
                            std::vector<std::byte> data);
  bool MayNotifyOnLoop(std::uint64_t bytes) const;
  void OnNotificationOnLoop(std::vector<std::byte> bytes);
  void BecomesOfferOnLoop(const std::shared_ptr<OperationState>& operation);

 private:
  using Op = std::shared_ptr<OperationState>;

  struct Begin;
  void BeginOnLoop(const Op& operation);
  void BeginSlicesOnLoop(const Op& operation);
  void BeginSendOnLoop(const Op& operation);
  void BeginReceiveOnLoop(const Op& operation);
  void SendNotificationOnLoop(const Op& operation);
  void RoundIsOverOnLoop(const Op& operation);
  void EndOnLoop(const Op& operation, Status status);
  void AbortOnLoop(const Op& operation, const Error& error);
  void AbortReceiveOnLoop(const Op& operation, const Error& error);
  void AbandonReads(const Op& operation);
  // Nothing new is begun from now on. Any thread; the first error stays.
  void MarkLost(const Error& error);
  void FailOnLoop(const Error& cause);
  void ChannelClosedOnLoop();
  // Runs `work` on each lane's loop, then `then` on the home loop.
  void OnEveryLane(const std::function<void(Channel&)>& work, EventLoop::Task then);

  Status OnOfferOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnSolicitOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnDeliveredOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnDeclinedOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  void WriteSolicitedOnLoop(const Op& operation, const wire::KeyBody& key);
  void TakeMessageOnLoop(const Op& receive, ArrivedMessage message);
  void SolicitOnLoop(const Op& receive, const ArrivedMessage& message);
  void SendDeliveredOnLoop(std::uint64_t operation_id, const Status& status);
  void SendDeclinedOnLoop(std::uint64_t operation_id, const Status& status);
  bool DeclineForWantOfRoomOnLoop(std::uint64_t peer_operation);

  void ScheduleOnLoop(Deadline deadline);
  void CheckDeadlinesOnLoop();
  void HeartbeatOnLoop();
  Op FindOnLoop(std::uint64_t id) const;

  const Config config_;
  RegionTable* const regions_;
  const Peer peer_;
  EventLoop* const home_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::function<void()> closed_callback_;
  std::vector<net::LaneInfo> lane_infos_;

  std::atomic<std::uint64_t> next_operation_{0};
  std::atomic<std::uint32_t> in_flight_{0};
  std::atomic<std::uint32_t> sending_{0};  // of in_flight_, those that put bytes on the wire
  std::atomic<std::uint64_t> refusals_{0};
  std::atomic<bool> lost_{false};
  std::atomic<bool> closed_{false};
  mutable std::mutex error_mutex_;
  std::string lost_reason_;  // under error_mutex_
  Code lost_code_ = Code::kPeerLost;

  // Home loop.
  bool started_ = false;
  bool ending_ = false;  // everything was told to end
  std::optional<Error> failed_early_;
  std::unordered_map<std::uint64_t, Op> operations_;
  std::unordered_map<std::uint64_t, Op> landing_;  // receives, by the sender's operation
  Matcher matcher_;
  std::size_t open_channels_ = 0;
  Clock::time_point next_check_ = Clock::time_point::max();
  EventLoop::TimerId check_timer_ = 0;
  EventLoop::TimerId heartbeat_timer_ = 0;
  std::uint64_t heard_bytes_ = 0;
  Clock::time_point heard_at_;  // later by all the time in which we could not have listened
  Clock::time_point next_beat_;

  mutable std::mutex notifications_mutex_;
  std::deque<std::vector<std::byte>> notifications_;  // under notifications_mutex_
  std::uint64_t notification_bytes_ = 0;              // likewise
};

}  // namespace ferry::transfer
