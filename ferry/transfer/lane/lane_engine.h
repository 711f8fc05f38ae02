// One lane of a connection: owns the net::Lane, and replaces or closes it.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/loop/event_loop.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/handshake/lane_progress.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/frames/frame_receiver.h"
#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/lane_staging.h"
#include "ferry/transfer/lane/slice_sender.h"

namespace ferry::transfer {

// Owns the net::Lane, also while it is frozen. Lives on the lane's loop, except BytesReceived().
class CurrentLane {
 public:
  net::Lane* get() const noexcept { return lane_.get(); }
  net::Lane* operator->() const noexcept { return lane_.get(); }
  // Resets the lane before, if any, and destroys it. Not inside one of its callbacks.
  void Replace(std::unique_ptr<net::Lane> lane);
  // Destroys the lane, which is closed.
  void Free();
  // Over this lane and all lanes before. Any thread.
  std::uint64_t BytesReceived() const;
  // Reports the statistics of the lane's path to the connection.
  void SamplePath(const LaneSite& site);

 private:
  mutable std::mutex mutex_;         // held to replace lane_, and by other threads to read it
  std::unique_ptr<net::Lane> lane_;  // written under mutex_
  std::uint64_t bytes_before_ = 0;   // under mutex_: received over replaced lanes
  std::uint64_t retransmits_ = 0;    // value of lane_ that is already counted
};

// Checks a frame's metadata, processes its acknowledgement, and hands the rest to the receiving
// half, to the sending half if it concerns what this side has sent, or to the connection. Ends
// frames whose payloads have been copied into GPU memory. Lives on the lane's loop.
class FrameDispatcher {
 public:
  FrameDispatcher(const LaneSite& site, FrameSender* frames, LaneStaging* staging,
                  SliceSender* sender);

  // As in net::LaneHandler.
  Result<net::Placement> OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes);
  void OnPayload();
  // Counts the frames whose copies have ended as processed.
  void SettleLandings();
  // Waits for all copies in flight. Their slots and memory are no longer used afterwards.
  void AwaitCopies();

  // Whether a frame has arrived since the last Restart(), or ever.
  bool heard() const noexcept { return heard_; }
  // Another lane is used from now on.
  void Restart() { heard_ = false; }

  FrameReceiver& receiver() noexcept { return receiver_; }
  ReadAnswers& answers() noexcept { return answers_; }

 private:
  bool MayHoldTooMuch() const;
  Status CheckHeld() const;
  Result<net::Placement> Dispatch(const wire::MessageHeader& header, wire::MetaReader* reader,
                                  std::uint64_t payload_bytes);
  Result<net::Placement> OnPlainFrame(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnLaneLost(wire::MetaReader* reader);
  Status OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnSharing(const wire::MessageHeader& header, wire::MetaReader* reader);
  void EndLanding(const Landing& landing, const Status& landed);

  const LaneSite& site_;
  FrameSender* const frames_;
  LaneStaging* const staging_;
  SliceSender* const sender_;
  ReadAnswers answers_;
  FrameReceiver receiver_;
  bool heard_ = true;  // the first lane carried the handshake
};

class ParkedLane;

// One lane of a connection: its state, and the parts that send and receive over it. If the network
// drops the lane, or a better network path is available, a replacement takes over: both sides
// freeze the old lane, exchange their progress, and resend the rest.
//
// Lives on one event loop: all methods must run on that loop, apart from loop(), index() and those
// marked "Any thread". None of them blocks, except that a lane that freezes or closes waits for GPU
// copies in flight, normally well under 1 ms. The connection calls in by posting to the loop.
class LaneEngine final : private net::LaneHandler {
 public:
  enum class State : std::uint8_t {
    kConnecting,  // the handshake runs; no lane is installed
    kUp,          // the lane is in use
    kFrozen,      // the lane is no longer used, and may be replaced
    kClosing,     // nothing new begins; acknowledgements that are due are sent
    kClosed,
  };

  // Both must outlive the lane.
  LaneEngine(const LaneContext& context, EventLoop* loop, std::uint32_t index);

  EventLoop* loop() const noexcept { return site_.loop; }
  std::uint32_t index() const noexcept { return site_.index; }
  State state() const noexcept { return state_; }
  // Installs the lane after the handshake. Called once, by the thread that ran the handshake, on
  // the lane's current loop.
  void Adopt(std::unique_ptr<net::Lane> lane);
  // Whether the first lane of a connection leads to the process of our user on this machine that
  // the peer says it is.
  bool is_proved() const noexcept { return proved_; }
  // For the error of an operation that is late: net::Lane::Waits(), and which of the operation's
  // data, or of the data before it, the peer has not acknowledged. Empty where the lane is down or
  // waits for nothing.
  std::string Waits(const OperationState* operation) const;
  // Bytes received over this lane and all lanes it replaced. Any thread.
  std::uint64_t BytesReceived() const { return lane_.BytesReceived(); }
  // Recent throughput in bytes per second; 0 if not known yet. Any thread.
  std::uint64_t rate() const noexcept { return sender_.rate().rate(); }
  // Traffic totals so far, over all lanes it replaced as well. Any thread.
  LaneTraffic Traffic() const;
  // Runs once per heartbeat interval. Reports the lane's path statistics to the connection and
  // reads bytes that the lane has left in the kernel to save wake-ups. Unless the lane was `heard`
  // since the last call, sends a ping.
  void Beat(bool heard);
  // In the next turn of the loop, reads the rest of a payload that waits in the socket.
  void Look();
  // Sends a ping, unless frames that the peer must answer are already in flight.
  void Probe() { SendPlain(wire::Type::kPing, 0, {}); }

  // Pulls slices from the operation's ledger until the ledger is empty.
  void AddWork(OperationRef operation) { sender_.AddWork(std::move(operation)); }
  // Stops waiting for read data of the operation that has not arrived, and drops it when it comes.
  // Data that is being copied into GPU memory is in place, and its slice resolved, when the copy is
  // over.
  void AbandonReads(const OperationRef& operation);
  // Stops receiving into the region's memory, and refuses reads of it whose data has not been
  // copied yet.
  void Revoke(const RegionState* region);
  // Resolves slices of stopped operations that still wait for a staging slot.
  void DropStopped() { sender_.DropStopped(); }
  // Whether frames in flight still reference the region's memory. Resets the lane first if it is
  // frozen, so that the kernel stops reading that memory.
  bool Holds(const RegionState* region);
  // Whether the operation waits for an acknowledgement over this lane or its replacement.
  bool HoldsOperation(const OperationState* operation) const {
    return sender_.window().HoldsOperation(operation);
  }
  // A number that changes whenever the peer, or the peer's kernel, acknowledges more bytes.
  std::uint64_t Acknowledged() const;
  // Whether some operation waits for this lane or its replacement and for no other lane.
  bool HoldsWork() const { return sender_.window().HoldsWork() || sender_.reads().HoldsWork(); }
  // Whether a further RTS may be sent: false while the peer leaves too many frames unacknowledged.
  // The limit is needed because nothing else bounds messages whose send has ended before that.
  bool MaySendRts() { return frames_.pool().kept() < site_.max_sequenced(); }
  // Whether a further answer may be sent: false while the peer leaves too many unacknowledged.
  bool MayAnswer() { return frames_.memory().may_keep(); }
  // Sends a sequenced frame with a one-piece payload. If `operation` is set, the acknowledgement
  // resolves one slice of its ledger, and the frame keeps the operation, which owns `payload`,
  // alive until then. Without a lane, the replacement sends it.
  void SendSequenced(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                     std::span<const std::byte> payload, OperationRef operation);
  // Sends a frame without acknowledgement and payload. An ACK, ping or pong that is already queued
  // stands for later ones, so that frames do not pile up for a peer that does not read.
  void SendPlain(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                 std::string_view text = {}) {
    frames_.SendPlain(type, operation_id, body, text);
  }
  // Stops using the current lane: nothing is sent, received or written to memory over it
  // afterwards. Returns nullopt if a later attempt to replace the lane has started, or if the
  // connection has ended. Attempts are numbered, so that a late message of an earlier attempt
  // changes nothing.
  std::optional<LaneProgress> Freeze(std::uint32_t attempt);
  // Replaces the lane frozen by this attempt with `lane`. Resends messages that the peer has not
  // processed, and returns unfinished slices to their ledgers, from where any lane may pull them.
  void Revive(std::uint32_t attempt, std::unique_ptr<ParkedLane> lane, const LaneProgress& peer);
  // Sends a delayed acknowledgement now; on return the kernel has it.
  void FlushDueAck() { frames_.FlushAck(); }
  // Stops writing an arriving message into the receive's buffer; the message is dropped.
  void DropMessage(const OperationState* receive) { dispatcher_.receiver().DropMessage(receive); }
  // Closes the lane and fails everything that waits on it with `error`, then notifies the
  // connection on its home loop. Idempotent.
  void Close(const Error& error);
  // Why the lane closed; set once the connection has been notified.
  const std::optional<Error>& closed_by() const noexcept { return closed_by_; }
  // Frees the buffers of a lane in use. Call after Close, outside the lane's callbacks.
  void Free();

 private:
  // net::LaneHandler
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override;
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(net::LaneLoss loss, const Error& error) override;

  void OnCopiesEnded();
  void MoveTo(State to, const char* why);
  void UseLane(const char* why);
  void GoDown(const char* why);
  void DropAnswers();
  void EndLate(std::vector<OperationRef> late, const Error& error);
  std::string Unacknowledged() const;

  LaneCounts counts_;
  OpenedRegions opened_;
  const LaneSite site_;
  FrameSender frames_;
  LaneStaging staging_;
  SliceSender sender_;
  FrameDispatcher dispatcher_;
  CurrentLane lane_;
  State state_ = State::kConnecting;
  bool proved_ = false;
  std::uint32_t attempt_ = 0;  // number of the latest attempt to replace the lane
  std::optional<Error> closed_by_;
};

}  // namespace ferry::transfer
