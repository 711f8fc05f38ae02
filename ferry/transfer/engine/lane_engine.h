// One lane of a connection: sends and receives frames, acknowledges them and recovers a lost lane.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/event_loop.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/engine/lane_owner.h"
#include "ferry/transfer/engine/operation_state.h"
#include "ferry/transfer/engine/refusal_log.h"
#include "ferry/transfer/engine/work_queue.h"
#include "ferry/transfer/gpu/staged_copy.h"
#include "ferry/transfer/handshake/lane_progress.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

class ParkedLane;

// The checksum of the bytes of all pieces, one after the other.
std::uint32_t Crc32cOf(std::span<const iovec> pieces);

// One lane of a connection. Pulls slices of operations and turns them into frames, serves the
// peer's frames from and into registered memory, and acknowledges frames in order. If the network
// drops the lane, a replacement takes over (channel_rejoin.cc).
//
// Lives on one event loop: all methods must run on that loop, apart from loop(), index() and those
// marked "Any thread". None of them blocks, except that a lane that freezes or closes waits for GPU
// copies in flight, normally well under 1 ms. The connection calls in by posting to the loop.
class LaneEngine final : private net::LaneHandler, private EventLoop::Deferred {
 public:
  // `messages`: used by the first lane only. All must outlive the lane.
  LaneEngine(const LaneContext& context, LaneOwner* owner, MessageSink* messages, EventLoop* loop,
             std::uint32_t index);
  ~LaneEngine();

  EventLoop* loop() const noexcept { return loop_; }
  std::uint32_t index() const noexcept { return index_; }
  // Installs the lane after the handshake. Called once, by the thread that ran the handshake, on
  // the lane's current loop.
  void Adopt(std::unique_ptr<net::Lane> lane);
  // Bytes received over this lane and all lanes it replaced. Any thread.
  std::uint64_t BytesReceived() const;
  // Recent throughput in bytes per second; 0 if not known yet. Any thread.
  std::uint64_t rate() const noexcept { return rate_.load(std::memory_order_relaxed); }
  // Traffic totals so far, over all lanes it replaced as well. Any thread.
  LaneTraffic Traffic() const;
  // Runs once per heartbeat interval. Reports the lane's path statistics to the connection and
  // reads bytes that the lane has left in the kernel to save wake-ups. Unless the lane was `heard`
  // since the last call, sends a ping.
  void Beat(bool heard);
  // In the next turn of the loop, reads the rest of a payload that waits in the socket.
  void Look();

  // Sends a ping, unless frames that the peer must answer are already in flight.
  void Probe();

  // Pulls slices from the operation's ledger until the ledger is empty.
  void AddWork(OperationRef operation);
  // Stops waiting for read data of the operation and releases the operation's memory. Data that
  // arrives later is dropped.
  void AbandonReads(const OperationRef& operation);
  // Stops receiving into the region's memory, and refuses reads of it whose data has not been
  // copied yet.
  void Revoke(const RegionState* region);
  // Resolves slices of stopped operations that still wait for a staging slot.
  void DropStopped();
  // Whether frames in flight still reference the region's memory. Resets the lane first if it is
  // frozen, so that the kernel stops reading that memory.
  bool Holds(const RegionState* region);
  // Whether the operation waits for an acknowledgement or for data over this lane or its
  // replacement.
  bool HoldsOperation(const OperationState* operation) const;
  // A number that changes whenever the peer, or the peer's kernel, acknowledges more bytes.
  std::uint64_t Acknowledged() const;
  // Whether some operation waits for this lane or its replacement and for no other lane.
  bool HoldsWork() const;
  // Whether a further RTS may be sent: false while the peer leaves too many frames unacknowledged.
  // The limit is needed because nothing else bounds messages whose send has ended before that.
  bool MaySendRts() const { return kept_ < MaxSequenced(); }
  // Sends a sequenced frame with a one-piece payload. If `operation` is set, the acknowledgement
  // resolves one slice of its ledger, and the frame keeps the operation, which owns `payload`,
  // alive until then.
  void SendSequenced(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                     std::span<const std::byte> payload, OperationRef operation);
  // Sends a frame without acknowledgement and payload. An ACK, ping or pong that is already queued
  // stands for later ones, so that frames do not pile up for a peer that does not read.
  void SendPlain(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                 std::string_view text = {});
  // Stops using the current lane: nothing is sent, received or written to memory over it
  // afterwards. Returns nullopt if a later attempt to replace the lane has started, or if the
  // connection has ended.
  std::optional<LaneProgress> Freeze(std::uint32_t attempt);
  // Replaces the lane frozen by this attempt with `lane`. Resends messages that the peer has not
  // processed, and returns unfinished slices to their ledgers, from where any lane may pull them.
  void Revive(std::uint32_t attempt, std::unique_ptr<ParkedLane> lane, const LaneProgress& peer);
  // Sends a delayed acknowledgement now; on return the kernel has it.
  void FlushDueAck();
  // Stops writing an arriving message into the receive's buffer; the message is dropped.
  void DropMessage(const OperationState* receive);
  // Closes the lane and fails everything that waits on it with `error`, then notifies the
  // connection on its home loop. Idempotent.
  void Close(const Error& error);
  // Why the lane closed; set once the connection has been notified.
  const std::optional<Error>& closed_by() const noexcept { return closed_by_; }
  // Frees the buffers of a lane in use. Call after Close, outside the lane's callbacks.
  void Free();

 private:
  struct Frame final : net::OutFrame {
    std::size_t place = 0;  // index in frames_
    bool used = false;      // not in free_frames_
    wire::Type type{};
    bool answer = false;              // answers a read: counted in answer_bytes_
    bool tried = false;               // `held` is optional memory (held_memory.h)
    std::uint64_t held = 0;           // bytes held for the peer with this frame
    std::uint64_t unsent = 0;         // counted in unsent_bytes_
    bool plain = false;               // counted in plain_
    bool sequenced = false;           // in unacked_
    bool kept = false;                // kept until acknowledged, to be resent over another lane
    bool checked = false;             // carries checksums
    Clock::time_point handed_over{};  // to the lane; only if payloads are traced
    // The slot that holds the payload. Kept until the frame is sent, or until it is acknowledged if
    // the frame was sent zero-copy. Shared with the stager.
    std::shared_ptr<StagedCopy> staged;
  };
  // A sequenced frame that the peer has not acknowledged, or that has not been sent completely.
  // Both matter: a peer may refuse a frame, which counts as processed, after it has read only the
  // metadata.
  struct Unacked {
    OperationRef operation;  // null: nothing waits for it
    std::uint64_t bytes = 0;
    std::uint32_t slice = 0;    // of a kWrite or kCopy
    Frame* frame = nullptr;     // where the frame is kept
    bool is_send = false;       // a kSend: a kNack of kUnavailable turns it into an RTS
    bool becomes_rts = false;   // a kSend that was turned into an RTS
    bool reply = false;         // a kReadData: counts in replies_
    std::uint64_t copied = 0;   // bytes of a kCopy
    Clock::time_point since{};  // write slices: when it was handed over
    std::uint64_t ahead = 0;    // bytes unacknowledged at `since`, its own included
    RegionPin pin = {};         // a kReadData whose payload is the region's memory
    // The slot that the kernel may still read. Shared with the stager.
    std::shared_ptr<StagedCopy> staged = nullptr;
  };
  struct ReadSlice {
    OperationRef operation;  // null once abandoned: the data is dropped
    std::uint64_t operation_id = 0;
    std::uint32_t slice = 0;
    std::uint64_t bytes = 0;
    std::uint64_t cost = 0;  // memory it costs the peer, in bytes
  };
  // A frame in the outbox. It is sent once its payload has been copied from GPU memory, or once the
  // frames before it have been sent.
  struct Staged {
    Frame* frame = nullptr;
    Unacked record;                    // moves to unacked_ if the frame is sequenced
    Stager* stager = nullptr;          // null: no copy, it only keeps its place
    std::vector<Block> blocks;         // until its copy begins
    RegionPin pin;                     // until its copy begins
    bool asked = false;                // a slot was requested
    std::shared_ptr<StagedCopy> copy;  // set once begun; shared with the stager
  };
  // A sequenced frame from the peer that has arrived but is not processed yet: its payload, or that
  // of an earlier frame, is still being copied into GPU memory.
  struct Landing {
    std::uint64_t bytes = 0;
    std::uint64_t operation = 0;
    OperationRef read;                 // a kReadData: the read that owns the slice
    std::shared_ptr<StagedCopy> copy;  // null: waits its turn; shared with the stager
    std::uint64_t copied = 0;          // bytes of a kCopy
    std::size_t blocks = 0;            // blocks of a kCopy
  };
  // Once this many sequenced frames are unacknowledged, the acknowledgement is no longer delayed
  // until the loop is idle: the peer keeps a record of each.
  static constexpr std::uint32_t kAckFrames = 64;
  static constexpr std::size_t kMaxUnacked = 4096;
  static constexpr std::size_t kMaxRefusals = 4096;  // sent to a replacement; fits one frame

  enum class Incoming { kNothing, kDropped, kWrite, kRead, kMessage, kNotification };

  // net::LaneHandler
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override;
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(const Error& error) override;
  void RunDeferredOnLoop(EventLoop::Defer when) override;

  // channel_rejoin.cc
  void GoDownOnLoop();
  void DropIncoming();
  void DropAnswers();
  Status ApplyProgress(const LaneProgress& peer);
  void ReclaimFrames(std::deque<Unacked>* unfinished);
  void SendAgainOnLoop(std::deque<Unacked> unfinished);
  void GiveBack(const std::vector<std::pair<OperationRef, std::uint32_t>>& all);
  void ReplaceLane(std::unique_ptr<net::Lane> lane);
  void ApplyRefusal(Unacked* frame, const Error& error);

  // channel_stage.cc
  bool MayStage() const;
  void StageWrite(const OperationRef& operation, std::uint32_t slice);
  void StageAnswer(Frame* frame, RegionPin pin, std::uint32_t slice);
  static const RegionPin& PinOf(const Staged& staged);
  void RefuseWaiting(const RegionState* region);
  void Stage(Staged staged);
  void FillOutbox();
  bool TakeSlotFor(Staged* staged);
  void BeginGatherFor(Staged* staged, StageSlot slot);
  void OnSlotToSend(Stager* stager, StageSlot slot);
  void SendStaged();
  void SendOneStaged(Staged staged);
  template <class Holder>  // a Frame, or an Unacked
  void LetGoOfSlot(Holder* holder);
  Result<net::Placement> PlaceInSlot(Stager* stager, std::uint64_t payload_bytes);
  void OnSlotToLand(Stager* stager, StageSlot slot);
  void Land(OperationRef read);
  void AwaitLandingsIn(const RegionState* region);
  void SettleLandings();
  void AwaitCopies();
  void DropOutbox(std::vector<std::pair<OperationRef, std::uint32_t>>* unsent);
  void OnCopiesOver();
  UniqueFunction<void()> TellOfCopies();

  // channel_copy.cc
  void SendCopy(const OperationRef& operation, std::uint32_t slice);
  Result<net::Placement> OnCopy(const wire::MessageHeader& header, wire::MetaReader* reader);
  Result<net::Placement> OnSharing(const wire::MessageHeader& header, wire::MetaReader* reader);

  // channel_send.cc
  void SamplePathOnLoop();
  void PumpOnLoop();
  bool PumpOne(WorkQueue* work);
  std::uint64_t Share(const OperationState& operation, std::uint64_t least_slices) const;
  void MeasureRate(std::uint64_t bytes);
  void AddSlice(Unacked record);
  void MeasureDrain(const Unacked& slice);
  bool MayWrite(const OperationState& operation) const;
  std::size_t MaxSequenced() const;
  bool MayRead(const OperationState& operation) const;
  bool MayCopy(const OperationState& operation) const;
  void SendWriteSlice(const OperationRef& operation, std::uint32_t slice);
  void SendReadRequest(const OperationRef& operation, std::uint32_t slice);
  ReadSlice TakeReading();
  Frame* NewFrame(wire::Type type, std::uint64_t operation_id);
  void SendFrame(Frame* frame);
  void TracePayload(const char* what, std::uint64_t bytes, Clock::time_point since) const;
  static void Checksum(Frame* frame);
  void SendAck();
  void FinishedFrame(std::uint64_t payload_bytes);
  void EndLate(std::vector<OperationRef> late, const Error& error);
  void CountFinished(std::uint64_t payload_bytes);
  void Resolve(const OperationRef& operation, const std::optional<Error>& error = std::nullopt);

  // channel_hold.cc
  void Hold(std::uint64_t bytes);
  void LetGo(std::uint64_t bytes);
  void HoldFrame(Frame* frame, std::uint64_t bytes);
  std::uint64_t GuaranteedAnswers() const;
  std::optional<bool> ReserveAnswer(std::uint64_t bytes);
  void HoldAnswer(Frame* frame, std::uint64_t bytes, bool tried);
  void AddReplyRecord(Unacked record);
  void DropReplyRecord();
  bool MayAskForMore() const;
  bool MustPause();
  void HoldScratch();
  void Recycle(Frame* frame);
  void Delete(Frame* frame);
  void TrimFrames();
  void DropHeld();
  bool* QueuedFlag(wire::Type type);
  void OnPlainSent(wire::Type type);

  // channel_receive.cc
  Result<net::Placement> Dispatch(const wire::MessageHeader& header, wire::MetaReader* reader,
                                  std::uint64_t payload_bytes);
  Result<net::Placement> OnPlainFrame(const wire::MessageHeader& header, wire::MetaReader* reader);
  Result<net::Placement> OnWrite(const wire::MessageHeader& header, wire::MetaReader* reader,
                                 std::uint64_t payload_bytes);
  Result<net::Placement> OnReadRequest(const wire::MessageHeader& header, wire::MetaReader* reader);
  Result<net::Placement> OnReadData(const wire::MessageHeader& header, wire::MetaReader* reader,
                                    std::uint64_t payload_bytes);
  Frame* NewRefusal(std::uint64_t operation_id, std::uint32_t slice, const Error& error);
  void RefuseRead(std::uint64_t operation_id, std::uint32_t slice, const Error& error);
  Status OnReadRefused(const wire::MessageHeader& header, wire::MetaReader* reader);
  Result<net::Placement> OnSend(const wire::MessageHeader& header, wire::MetaReader* reader,
                                std::uint64_t payload_bytes);
  Result<net::Placement> OnNotify(std::uint64_t payload_bytes);
  Status OnNack(wire::MetaReader* reader);
  Status OnAck(std::uint32_t ack);
  void SettleFrames();
  void DropRest();
  net::Placement Drop(std::uint64_t payload_bytes);
  Result<net::Placement> RefuseSequenced(std::uint64_t operation_id, const Error& error,
                                         std::uint64_t payload_bytes);
  net::Placement PlaceInto(Incoming what, std::span<std::byte> memory);
  Error Malformed(const char* what) const;
  void SendNack(std::uint64_t operation_id, const Error& error);
  void SendNackOf(std::uint32_t sequence, std::uint64_t operation_id, const Error& error);
  void SayNackOf(std::uint32_t sequence, std::uint64_t operation_id, const Error& error);
  void SendNackFrame(const wire::RefusalOnWire& refusal, std::uint64_t operation_id,
                     std::string_view text);
  void SayPendingNacks();
  std::uint32_t IncomingSequence() const;
  Status CheckMetadata(std::span<const std::byte> meta, const wire::MessageHeader& header) const;
  Status CheckPayload(Incoming what) const;
  std::string PlaceName(Incoming what) const;

  Accessor accessor();

  const LaneContext& context_;
  LaneOwner* const owner_;
  MessageSink* const messages_;
  EventLoop* const loop_;
  const std::uint32_t index_;
  mutable std::mutex lane_mutex_;    // held to replace lane_, and by other threads to read it
  std::unique_ptr<net::Lane> lane_;  // written under lane_mutex_
  std::uint64_t bytes_before_ = 0;   // under lane_mutex_: received over replaced lanes
  bool up_ = false;                  // the lane is in use
  bool heard_ = true;                // a frame has arrived over it: the peer uses it too
  std::uint32_t attempt_ = 0;        // number of the latest attempt to replace the lane
  bool closing_ = false;             // nothing new begins
  bool closed_ = false;

  // Sending.
  WorkQueue writes_;         // operations with slices to pull
  WorkQueue staged_writes_;  // those that need staging slots
  WorkQueue reads_;
  std::deque<Unacked> unacked_;
  std::uint32_t first_unacked_ = 0;  // sequence number of unacked_.front(), modulo 2^32
  std::size_t acked_ = 0;            // front of unacked_: acknowledged, not sent completely
  std::size_t sent_ = 0;             // front of unacked_: sent completely, not acknowledged
  std::deque<ReadSlice> reading_;    // requested reads, in order
  std::uint64_t unacked_bytes_ = 0;
  std::uint64_t unsent_bytes_ = 0;  // sequenced frames still queued in the lane
  std::uint64_t reading_bytes_ = 0;
  std::uint64_t copying_bytes_ = 0;  // of kCopy frames that we sent
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_frames_;
  std::uint64_t asked_cost_ = 0;  // cost of reading_ to the peer
  std::size_t replies_ = 0;       // answers to the peer's reads, in unacked_
  std::size_t plain_ = 0;         // SendPlain frames queued in the lane
  std::size_t kept_ = 0;          // frames kept until acknowledged
  bool ack_queued_ = false;       // an ACK is queued in the lane
  bool ack_due_ = false;          // send another ACK after the queued one
  bool ping_queued_ = false;
  bool pong_queued_ = false;
  bool pong_due_ = false;
  std::size_t nacks_queued_ = 0;
  // Memory that the peer makes this lane hold, in bytes (held_memory.h). The connection is charged
  // in larger steps; `charged_` is its current share.
  std::uint64_t held_ = 0;
  std::uint64_t charged_ = 0;
  std::uint64_t answer_bytes_ = 0;   // frames that answer reads, and their records
  std::uint64_t kept_bytes_ = 0;     // kept frames that the peer has caused
  std::uint64_t scratch_bytes_ = 0;  // vectors that the frame being received needs
  std::atomic<std::uint64_t> rate_{0};
  std::uint64_t rate_bytes_ = 0;  // since rate_since_
  Clock::time_point rate_since_;
  std::uint64_t drainable_ = ~std::uint64_t{0};  // MeasureDrain; unlimited at first
  bool paused_ = false;
  std::optional<Error> closed_by_;

  // Incremented on the loop, read by any thread. Fields as in LaneTraffic.
  struct Counts {
    LoopCounter bytes_sent;
    LoopCounter bytes_received;
    LoopCounter frames_sent;
    LoopCounter frames_received;
    LoopCounter payload_bytes_sent;
    LoopCounter payload_bytes_received;
    LoopCounter retries;
    LoopCounter retransmits;
  };
  Counts counts_;
  std::uint64_t lane_retransmits_ = 0;  // value of lane_ that is already counted

  // Receiving.
  OpenedRegions opened_;
  std::uint32_t finished_ = 0;    // sequenced frames of the peer that are processed
  std::uint32_t last_acked_ = 0;  // last acknowledged value of finished_
  std::uint64_t unacked_received_bytes_ = 0;
  bool ack_deferred_ = false;
  RefusalLog refusals_;
  std::uint32_t incoming_crc_ = 0;
  bool incoming_checked_ = false;
  Incoming incoming_ = Incoming::kNothing;
  std::uint64_t incoming_bytes_ = 0;
  std::uint64_t incoming_operation_ = 0;
  Clock::time_point incoming_since_{};  // only if payloads are traced
  RegionPin incoming_region_;
  OperationRef incoming_receive_;  // kMessage into a posted buffer
  std::uint64_t incoming_tag_ = 0;
  std::vector<std::byte> incoming_data_;
  std::vector<iovec> pieces_;

  // GPU memory.
  std::deque<Staged> outbox_;  // in sending order
  std::uint64_t outbox_bytes_ = 0;
  std::size_t slots_out_ = 0;        // held by outbox_ and by frames being sent
  std::size_t slots_allowed_ = 1;    // at most
  Clock::time_point last_staged_{};  // last time that a slice was staged
  std::deque<Landing> landings_;
  std::vector<Block> incoming_blocks_;         // target addresses of incoming_copy_
  std::shared_ptr<StagedCopy> incoming_copy_;  // the frame being received into a slot
  Stager* incoming_stager_ = nullptr;
  StageSlot given_;                         // a slot granted for receiving
  Stager* given_by_ = nullptr;              // the stager that granted it
  bool asked_to_land_ = false;              // a slot for receiving was requested
  bool waits_for_copies_ = false;           // paused until some copies end
  std::uint64_t copied_here_bytes_ = 0;     // kCopy frames of the peer in landings_
  std::size_t copied_here_blocks_ = 0;      // blocks of those
  std::atomic<bool> copies_posted_{false};  // a task that checks them is posted
};

}  // namespace ferry::transfer
