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
#include "ferry/transfer/lane_progress.h"
#include "ferry/transfer/operation_state.h"
#include "ferry/transfer/refusal_log.h"
#include "ferry/transfer/region_table.h"
#include "ferry/transfer/staged_copy.h"
#include "ferry/transfer/wire.h"
#include "ferry/transfer/work_queue.h"

namespace ferry::transfer {

class ConnectionCore;
class ParkedLane;

// Of the bytes of all pieces, one after the other.
std::uint32_t Crc32cOf(std::span<const iovec> pieces);

// One lane of a connection: pulls slices of operations and turns them into frames, serves the
// peer's frames from and into registered memory, and keeps the order in which things are
// acknowledged. When the network takes the lane away, another takes its place (channel_rejoin.cc).
// Belongs to its loop; the connection reaches it through Post.
class Channel final : private net::LaneHandler, private EventLoop::Deferred {
 public:
  Channel(ConnectionCore* connection, EventLoop* loop, std::uint32_t index);
  ~Channel();

  EventLoop* loop() const noexcept { return loop_; }
  std::uint32_t index() const noexcept { return index_; }
  // Once, by the thread that has just greeted the peer over it, on the lane's present loop.
  void Adopt(std::unique_ptr<net::Lane> lane);
  // Any thread: over all the lanes that it has had.
  std::uint64_t BytesReceived() const;
  // Any thread: bytes per second that have lately gone through; 0: not known.
  std::uint64_t rate() const noexcept { return rate_.load(std::memory_order_relaxed); }
  // Any thread: what has gone through it so far.
  LaneTraffic Traffic() const;
  // Every heartbeat interval. Tells the connection what the lane knows of its way, looks for bytes
  // that the lane has left in the kernel to save wake-ups, and, unless it was `heard` since the
  // last time, makes the peer say something.
  void BeatOnLoop(bool heard);
  // Reads, in the next turn, what waits in the socket for the rest of a payload.
  void LookOnLoop();

  // Makes the peer say something, unless much that makes it do so is on its way.
  void ProbeOnLoop();

  // Pulls from the operation's ledger until that is empty.
  void AddWorkOnLoop(std::shared_ptr<OperationState> operation);
  // Ends every wait for read data of the operation, and lets go of its memory.
  void AbandonReadsOnLoop(const std::shared_ptr<OperationState>& operation);
  // Stops receiving into the region's memory, and refuses reads of it that are still to be copied.
  void RevokeOnLoop(const RegionState* region);
  // Ends slices of operations that were stopped, as far as they wait for a slot.
  void DropStoppedOnLoop();
  // Whether the region's memory is on its way to the peer, or may still be read for that. A lane
  // that is in use no more is reset, so that it does not.
  bool HoldsOnLoop(const RegionState* region);
  // Whether the operation waits for what the peer says over this lane, or its successor.
  bool HoldsOperationOnLoop(const OperationState* operation) const;
  // Changes whenever the peer, or its kernel, has acknowledged more.
  std::uint64_t AcknowledgedOnLoop() const;
  // Whether something waits for what comes over this lane, or its successor, and no other.
  bool HoldsWorkOnLoop() const;
  // Whether the peer has acknowledged enough of what was sent to it to be offered more: what ends
  // before that would have no other limit.
  bool MayOfferOnLoop() const { return kept_ < MostSequenced(); }
  // Frames of one piece. `operation`, if any, has one slice of its ledger resolved by the peer's
  // acknowledgement, and keeps `payload` alive until then.
  void SendSequencedOnLoop(wire::Type type, std::uint64_t operation_id,
                           std::span<const std::byte> body, std::span<const std::byte> payload,
                           std::shared_ptr<OperationState> operation);
  // Without acknowledgement and payload. An acknowledgement, ping or pong that is still to be sent
  // stands for those that are asked for meanwhile, so that frames for a peer that does not read do
  // not accumulate.
  void SendPlainOnLoop(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                       std::string_view text = {});
  // Stops using the lane that it has: nothing is sent, received or put in place over it any more.
  // Nothing where a later attempt to replace the lane has come first, or the connection has ended.
  std::optional<LaneProgress> FreezeOnLoop(std::uint32_t attempt);
  // Puts `lane` in the place of the one frozen by this attempt, sends again what the peer has not
  // dealt with, and gives slices back for any lane to carry.
  void ReviveOnLoop(std::uint32_t attempt, std::unique_ptr<ParkedLane> lane,
                    const LaneProgress& peer);
  // Acknowledges what an idle moment would have acknowledged; it is with the kernel afterwards.
  void FlushDueAckOnLoop();
  // Stops writing an arriving message into the receive's buffer; the message is dropped.
  void DropMessageOnLoop(const OperationState* receive);
  // Closes the lane and resolves everything that waits on it with `error`; then the connection is
  // told, on its home loop.
  void CloseOnLoop(const Error& error);
  // Why, once the connection has been told.
  const std::optional<Error>& closed_by() const noexcept { return closed_by_; }
  // After CloseOnLoop, outside the lane's callbacks: frees the buffers of a lane in use.
  void FreeOnLoop();

 private:
  struct Frame final : net::OutFrame {
    std::size_t place = 0;  // in frames_
    bool used = false;      // not in free_frames_
    wire::Type type{};
    bool answer = false;              // to a read: counted in answer_bytes_
    bool tried = false;               // `held` is optional memory (held_memory.h)
    std::uint64_t held = 0;           // bytes that are held for the peer, with this frame
    std::uint64_t unsent = 0;         // counted in unsent_bytes_
    bool plain = false;               // counted in plain_
    bool sequenced = false;           // in unacked_
    bool kept = false;                // until acknowledged, to be sent again over another lane
    bool checked = false;             // carries checksums
    Clock::time_point handed_over{};  // to the lane; of payloads that are traced
    // Whose slot is the payload; until it is sent, and if it was given until it is acknowledged.
    std::shared_ptr<StagedCopy> staged;  // with the stager
  };
  // A sequenced frame that the peer has not acknowledged, or that has not left whole: a peer may
  // refuse, and count as dealt with, what it has read only the metadata of.
  struct Unacked {
    std::shared_ptr<OperationState> operation;  // null when nothing waits for it
    std::uint64_t bytes = 0;
    std::uint32_t slice = 0;     // of a kWrite or kCopy
    Frame* frame = nullptr;      // where it is kept
    bool is_send = false;        // a kSend: a kNack of kUnavailable turns it into an offer
    bool becomes_offer = false;  // and this one has
    bool reply = false;          // a kReadData: counts in replies_
    std::uint64_t copied = 0;    // bytes of a kCopy
    Clock::time_point since{};   // of a slice of a write: when it was handed over
    std::uint64_t ahead = 0;     // and how many bytes were unacknowledged then, its own included
    RegionPin pin = {};          // of a kReadData whose payload is the region's memory
    // Whose slot the kernel may still read; with the stager.
    std::shared_ptr<StagedCopy> staged = nullptr;
  };
  struct ReadSlice {
    std::shared_ptr<OperationState> operation;  // null once abandoned: the data is dropped
    std::uint64_t operation_id = 0;
    std::uint32_t slice = 0;
    std::uint64_t bytes = 0;
    std::uint64_t cost = 0;  // to the peer, in memory
  };
  // A frame that leaves when its payload has come from GPU memory, and what leaves after it.
  struct Staged {
    Frame* frame = nullptr;
    Unacked record;                    // as unacked_ will have it, if the frame is sequenced
    Stager* stager = nullptr;          // null: it only waits its turn
    std::vector<Block> blocks;         // until its copy begins
    RegionPin pin;                     // likewise
    bool asked = false;                // for a slot
    std::shared_ptr<StagedCopy> copy;  // once begun; with the stager
  };
  // A sequenced frame of the peer's that is here, but not dealt with: its payload is on its way
  // into GPU memory, or that of one before it.
  struct Landing {
    std::uint64_t bytes = 0;
    std::uint64_t operation = 0;
    std::shared_ptr<OperationState> read;  // whose slice it is, of a kReadData
    std::shared_ptr<StagedCopy> copy;      // null: it waits its turn; with the stager
    std::uint64_t copied = 0;              // bytes of a kCopy
    std::size_t blocks = 0;                // the same
  };
  // Sequenced frames after which an acknowledgement no longer waits for an idle moment: until then
  // the peer keeps a record of each.
  static constexpr std::uint32_t kAckFrames = 64;
  static constexpr std::size_t kMaxUnacked = 4096;
  static constexpr std::size_t kMaxRefusals = 4096;  // told to a successor; fits a frame's metadata

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
  void GiveBack(const std::vector<std::pair<std::shared_ptr<OperationState>, std::uint32_t>>& all);
  void ReplaceLane(std::unique_ptr<net::Lane> lane);
  void ApplyRefusal(Unacked* frame, const Error& error);

  // channel_stage.cc
  bool MayStage() const;
  void StageWrite(const std::shared_ptr<OperationState>& operation, std::uint32_t slice);
  void StageAnswer(Frame* frame, RegionPin pin, std::uint32_t slice);
  static const RegionPin& PinOf(const Staged& staged);
  void RefuseWaiting(const RegionState* region);
  void Stage(Staged staged);
  void FillOutbox();
  bool TakeSlotFor(Staged* staged);
  void BeginGatherFor(Staged* staged, StageSlot slot);
  void OnSlotToSendOnLoop(Stager* stager, StageSlot slot);
  void SendStaged();
  void SendOneStaged(Staged staged);
  template <class Holder>  // a Frame, or an Unacked
  void LetGoOfSlot(Holder* holder);
  Result<net::Placement> PlaceInSlot(Stager* stager, std::uint64_t payload_bytes);
  void OnSlotToLandOnLoop(Stager* stager, StageSlot slot);
  void Land(std::shared_ptr<OperationState> read);
  void AwaitLandingsIn(const RegionState* region);
  void SettleLandings();
  void AwaitCopies();
  void DropOutbox(std::vector<std::pair<std::shared_ptr<OperationState>, std::uint32_t>>* unsent);
  void OnCopiesOverOnLoop();
  UniqueFunction<void()> TellOfCopies();

  // channel_copy.cc
  void SendCopy(const std::shared_ptr<OperationState>& operation, std::uint32_t slice);
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
  std::size_t MostSequenced() const;
  bool MayRead(const OperationState& operation) const;
  bool MayCopy(const OperationState& operation) const;
  void SendWriteSlice(const std::shared_ptr<OperationState>& operation, std::uint32_t slice);
  void SendReadRequest(const std::shared_ptr<OperationState>& operation, std::uint32_t slice);
  ReadSlice TakeReading();
  Frame* NewFrame(wire::Type type, std::uint64_t operation_id);
  void SendFrame(Frame* frame);
  void TracePayload(const char* what, std::uint64_t bytes, Clock::time_point since) const;
  static void Checksum(Frame* frame);
  void SendAck();
  void FinishedFrame(std::uint64_t payload_bytes);
  void EndLate(std::vector<std::shared_ptr<OperationState>> late, const Error& error);
  void CountFinished(std::uint64_t payload_bytes);
  void Resolve(const std::shared_ptr<OperationState>& operation,
               const std::optional<Error>& error = std::nullopt);

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

  ConnectionCore* const connection_;
  EventLoop* const loop_;
  const std::uint32_t index_;
  mutable std::mutex lane_mutex_;    // taken to replace lane_, and to look at it from elsewhere
  std::unique_ptr<net::Lane> lane_;  // written under lane_mutex_
  std::uint64_t bytes_before_ = 0;   // under lane_mutex_: received over earlier lanes
  bool up_ = false;                  // the lane is in use
  bool heard_ = true;                // a frame has come over it: the peer uses it, too
  std::uint32_t attempt_ = 0;        // the latest to replace the lane
  bool closing_ = false;             // nothing is begun any more
  bool closed_ = false;

  // Sending.
  WorkQueue writes_;         // operations with slices to pull
  WorkQueue staged_writes_;  // those that need slots for it
  WorkQueue reads_;
  std::deque<Unacked> unacked_;
  std::uint32_t first_unacked_ = 0;  // sequence number of unacked_.front(), modulo 2^32
  std::size_t acked_ = 0;            // of unacked_, from the front: acknowledged but not sent whole
  std::size_t sent_ = 0;             // likewise: sent whole but not acknowledged
  std::deque<ReadSlice> reading_;    // asked for, in order
  std::uint64_t unacked_bytes_ = 0;
  std::uint64_t unsent_bytes_ = 0;  // of sequenced frames still with the lane
  std::uint64_t reading_bytes_ = 0;
  std::uint64_t copying_bytes_ = 0;  // of our kCopy frames
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_frames_;
  std::uint64_t asked_cost_ = 0;  // of reading_
  std::size_t replies_ = 0;       // answers to the peer's reads, in unacked_
  std::size_t plain_ = 0;         // frames of SendPlainOnLoop, queued in the lane
  std::size_t kept_ = 0;          // frames kept until acknowledged
  bool ack_queued_ = false;       // in the lane
  bool ack_due_ = false;          // another, when that has been sent
  bool ping_queued_ = false;
  bool pong_queued_ = false;
  bool pong_due_ = false;
  std::size_t nacks_queued_ = 0;
  // Memory that the peer makes this lane hold (held_memory.h); the connection counts `charged_`, in
  // larger steps.
  std::uint64_t held_ = 0;
  std::uint64_t charged_ = 0;
  std::uint64_t answer_bytes_ = 0;   // of frames that answer reads, and their records
  std::uint64_t kept_bytes_ = 0;     // of kept frames that the peer has brought about
  std::uint64_t scratch_bytes_ = 0;  // of vectors that the frame being received needs
  std::atomic<std::uint64_t> rate_{0};
  std::uint64_t rate_bytes_ = 0;  // since rate_since_
  Clock::time_point rate_since_;
  std::uint64_t drainable_ = ~std::uint64_t{0};  // MeasureDrain; at first nothing bounds it
  bool paused_ = false;
  std::optional<Error> closed_by_;

  // Counted on the loop, read by any thread; as the fields of LaneTraffic.
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
  std::uint64_t lane_retransmits_ = 0;  // of lane_, counted so far

  // Receiving.
  OpenedRegions opened_;
  std::uint32_t finished_ = 0;  // the peer's sequenced frames dealt with
  std::uint32_t told_ = 0;      // as last acknowledged
  std::uint64_t untold_bytes_ = 0;
  bool ack_deferred_ = false;
  RefusalLog refusals_;
  std::uint32_t incoming_crc_ = 0;
  bool incoming_checked_ = false;
  Incoming incoming_ = Incoming::kNothing;
  std::uint64_t incoming_bytes_ = 0;
  std::uint64_t incoming_operation_ = 0;
  Clock::time_point incoming_since_{};  // of a payload that is traced
  RegionPin incoming_region_;
  std::shared_ptr<OperationState> incoming_receive_;  // kMessage straight into a posted buffer
  std::uint64_t incoming_tag_ = 0;
  std::vector<std::byte> incoming_data_;
  std::vector<iovec> pieces_;

  // Of GPU memory.
  std::deque<Staged> outbox_;  // in the order in which they leave
  std::uint64_t outbox_bytes_ = 0;
  std::size_t slots_out_ = 0;        // held by outbox_ and by frames that are sent
  std::size_t slots_allowed_ = 1;    // at most
  Clock::time_point last_staged_{};  // something
  std::deque<Landing> landings_;
  std::vector<Block> incoming_blocks_;         // the addresses that incoming_copy_ is for
  std::shared_ptr<StagedCopy> incoming_copy_;  // what is received into a slot
  Stager* incoming_stager_ = nullptr;
  StageSlot given_;                          // to receive into
  Stager* given_by_ = nullptr;               // whose that is
  bool asked_to_land_ = false;               // for a slot to receive into
  bool waits_for_copies_ = false;            // paused until some are over
  std::uint64_t copied_here_bytes_ = 0;      // of the peer's kCopy frames, in landings_
  std::size_t copied_here_blocks_ = 0;       // the same
  std::atomic<bool> told_of_copies_{false};  // a task that looks at them is on its way
};

}  // namespace ferry::transfer
