// The sending half of a lane: turns slices and messages into frames, and settles them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/lane_staging.h"
#include "ferry/transfer/lane/operation_state.h"
#include "ferry/transfer/lane/send_window.h"

namespace ferry::transfer {

// Measures the throughput of a lane while it has data in flight. Lives on the lane's loop.
class LaneRate {
 public:
  // `grace`: within this time the lane's bytes in flight are to be acknowledged.
  explicit LaneRate(Clock::duration grace) : grace_(std::max<Clock::duration>(grace, kMinGrace)) {}

  // Data is in flight from now on; nothing was before.
  void Restart(Clock::time_point now);
  // Bytes have been acknowledged or received. Returns whether rate() is new.
  bool Add(std::uint64_t bytes, Clock::time_point now);
  // A slice was acknowledged, that was sent at `since` with `ahead` bytes in flight, its own
  // included.
  void AddSlice(std::uint64_t ahead, Clock::time_point since, Clock::time_point now);

  // Recent throughput in bytes per second; 0 if not known yet. Any thread.
  std::uint64_t rate() const noexcept { return rate_.load(std::memory_order_relaxed); }
  // Limit of the bytes in flight that the lane can carry within the grace: a cancelled operation
  // waits for them. At least 1, which allows one slice.
  std::uint64_t drainable() const noexcept { return std::max<std::uint64_t>(drainable_, 1); }

 private:
  static constexpr milliseconds kMinGrace{250};  // longer than any round trip

  const std::chrono::duration<double> grace_;
  std::atomic<std::uint64_t> rate_{0};
  std::uint64_t bytes_ = 0;  // since since_
  Clock::time_point since_;
  std::uint64_t drainable_ = ~std::uint64_t{0};  // unlimited at first
};

// The operations from which a lane pulls slices, in turn. Each operation is in it at most once.
// Each call takes amortized constant time. Not thread-safe.
class WorkQueue {
 public:
  using Op = OperationRef;

  bool empty() const noexcept { return queue_.empty(); }
  std::size_t size() const noexcept { return queue_.size(); }
  const Op& front() const { return queue_.front().operation; }
  // How often the first was rotated since it was added.
  std::uint64_t front_turns() const { return queue_.front().turns; }
  // Appends it; does nothing if it is already in the queue.
  void Add(Op operation);
  // Moves the first to the end.
  void Rotate();
  void Pop();
  void Clear();

 private:
  static constexpr std::size_t kMinSweep = 64;
  struct Entry {
    Op operation;
    std::uint64_t turns = 0;
  };

  void Sweep();

  std::deque<Entry> queue_;
  std::unordered_set<const OperationState*> members_;  // those in queue_
  std::size_t sweep_at_ = kMinSweep;  // size of queue_ at which the next sweep runs
};

// A slice that a lane has taken from its operation's ledger.
struct PulledSlice {
  OperationRef operation;
  std::uint32_t slice = 0;
};

// What a lane has in flight and may still take. In bytes, if nothing else is said.
struct LaneLoad {
  std::uint64_t unsent = 0;          // queued for the socket
  std::uint64_t unacknowledged = 0;  // with those that wait for GPU copies
  std::size_t frames = 0;            // the same in frames
  std::uint64_t drainable = 0;       // limit of what is unacknowledged
  std::uint64_t copying = 0;         // of slices that the peer copies
  std::uint64_t reading = 0;         // requested and not arrived
  bool may_stage = false;            // a slice of GPU memory would be sent soon
  bool may_ask = false;              // the peer can hold the answer to another read
};

// The operations of which a lane may take slices, round robin, one slice each. Lives on the lane's
// loop.
class SlicePuller {
 public:
  enum class Queue { kWrites, kStagedWrites, kReads };

  explicit SlicePuller(const LaneSite& site) : site_(site) {}

  // The operation may be queued already.
  void Add(OperationRef operation);
  // Takes the next slice of the queue, unless the load forbids it.
  std::optional<PulledSlice> Pull(Queue queue, const LaneLoad& load);
  bool empty() const noexcept { return writes_.empty() && staged_.empty() && reads_.empty(); }
  // Nothing is taken any more.
  void Stop();
  bool stopped() const noexcept { return stopped_; }

 private:
  WorkQueue& QueueOf(Queue queue);
  bool May(Queue from, const LaneLoad& load);
  bool MayWrite(const OperationState& operation, std::uint64_t taken, const LaneLoad& load) const;
  bool MayRead(const OperationState& operation, std::uint64_t taken, const LaneLoad& load) const;
  std::uint64_t Share(const OperationState& operation, std::uint64_t taken,
                      std::uint64_t least_slices) const;

  const LaneSite& site_;
  WorkQueue writes_;
  WorkQueue staged_;  // writes that need staging slots
  WorkQueue reads_;
  bool stopped_ = false;
};

// Pulls slices of operations and sends them, sends sequenced frames, and resolves what the peer's
// acknowledgements, refusals and answers concern. Lives on the lane's loop.
class SliceSender {
 public:
  SliceSender(const LaneSite& site, FrameSender* frames, LaneStaging* staging);

  // ---- What is to be sent.
  void AddWork(OperationRef operation);
  // See LaneEngine::SendSequenced.
  void SendSequenced(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                     std::span<const std::byte> payload, OperationRef operation);
  // Sends as much as the limits allow. Call whenever a limit may have moved: new work, an
  // acknowledgement, a sent frame.
  void Pump();
  // Sends the frames whose copies from GPU memory have ended.
  void SendStaged();
  // Resolves slices of stopped operations that still wait for a staging slot.
  void DropStopped();
  // Stops waiting for data of the operation's reads, apart from one that is arriving.
  void AbandonReads(const OperationRef& operation);

  // ---- What has become of it.
  //
  // The lane has sent the frame, which is recycled afterwards unless it is kept.
  void OnSent(LaneFrame* frame);
  Status OnAck(std::uint32_t ack);
  Status OnNack(wire::MetaReader* reader);
  Status OnReadRefused(const wire::MessageHeader& header, wire::MetaReader* reader);
  void OnReadEnd(const ReadEnd& end);
  // A slice of the operation is no longer in flight. With an error the operation fails.
  void Resolve(const OperationRef& operation, const std::optional<Error>& error = std::nullopt);

  // ---- A lane that is lost or closed.
  //
  // The lane is no longer used: what only it could carry returns to the ledgers.
  void OnLaneDown();
  // Settles what the peer has processed. Then the rest is sent again over the new lane, if there is
  // one: messages in order; unfinished slices return to their ledgers.
  Status Settle(const LaneProgress& peer);
  void SendAgain();
  // Nothing new is sent from now on.
  void Stop();
  // Resolves everything with `error`, except reads that the peer may be copying into our memory:
  // returns those.
  std::vector<OperationRef> Close(const Error& error);

  SendWindow& window() noexcept { return window_; }
  const SendWindow& window() const noexcept { return window_; }
  ReadRequests& reads() noexcept { return reads_; }
  const ReadRequests& reads() const noexcept { return reads_; }
  const LaneRate& rate() const noexcept { return rate_; }

 private:
  LaneLoad Load() const;
  bool SendNext(SlicePuller::Queue queue);
  void SendWrite(PulledSlice pulled);
  void SendRead(PulledSlice pulled);
  void SendCopy(PulledSlice pulled);
  void StageWrite(PulledSlice pulled);
  void SendStagedFrame(StagedFrame staged);
  Status SettleFrames();
  void AddToRate(std::uint64_t bytes, Clock::time_point now);
  void ApplyRefusal(SentFrame* frame, const Error& error);
  void GiveBack(const std::vector<PulledSlice>& slices);
  std::vector<PulledSlice> TakeOutbox();

  const LaneSite& site_;
  FrameSender* const frames_;
  StagingOutbox* const outbox_;
  const StagingInbox* const inbox_;
  SendWindow window_;
  ReadRequests reads_;
  LaneRate rate_;
  SlicePuller puller_;
};

}  // namespace ferry::transfer
