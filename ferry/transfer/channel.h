#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/event_loop.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/operation.h"
#include "ferry/transfer/region.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

class ConnectionCore;

// One lane of a connection: pulls slices of operations and turns them into frames, serves the
// peer's frames from and into registered memory, and keeps the order in which things are
// acknowledged. Belongs to its loop; the connection reaches it through Post.
class Channel final : private net::LaneHandler, private EventLoop::Deferred {
 public:
  Channel(ConnectionCore* connection, EventLoop* loop, std::uint32_t index);
  ~Channel();

  EventLoop* loop() const noexcept { return loop_; }
  std::uint32_t index() const noexcept { return index_; }
  // Once, by the thread that has just greeted the peer over it, on the lane's present loop.
  void Adopt(std::unique_ptr<net::Lane> lane);
  std::uint64_t BytesReceived() const { return lane_->BytesReceived(); }
  // Looks for bytes that the lane has left in the kernel to save wake-ups.
  void PokeOnLoop() {
    if (!closed_) lane_->Poke();
  }

  // Pulls from the operation's ledger until that is empty.
  void AddWorkOnLoop(std::shared_ptr<OperationState> operation);
  // Ends every wait for read data of the operation, and lets go of its memory.
  void AbandonReadsOnLoop(const std::shared_ptr<OperationState>& operation);
  // Stops receiving into the region's memory.
  void RevokeOnLoop(const RegionState* region);
  // Whether the region's memory is on its way to the peer, or may still be read for that.
  bool HoldsOnLoop(const RegionState* region) const;
  // Frames of one piece. `operation`, if any, has one slice of its ledger resolved by the peer's
  // acknowledgement, and keeps `payload` alive until then.
  void SendSequencedOnLoop(wire::Type type, std::uint64_t operation_id,
                           std::span<const std::byte> body, std::span<const std::byte> payload,
                           std::shared_ptr<OperationState> operation);
  // Without acknowledgement and payload.
  void SendPlainOnLoop(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                       std::string_view text = {});
  // Acknowledges now what an idle moment would have acknowledged.
  void SendDueAckOnLoop();
  // Stops writing an arriving message into the receive's buffer; the message is dropped.
  void DropMessageOnLoop(const OperationState* receive);
  // Closes the lane and resolves everything that waits on it with `error`; then the connection is
  // told, on its home loop.
  void CloseOnLoop(const Error& error);
  // Why, once the connection has been told.
  const std::optional<Error>& closed_by() const noexcept { return closed_by_; }

 private:
  struct Frame final : net::OutFrame {
    std::uint64_t unsent = 0;  // counted in unsent_bytes_
    bool plain = false;        // counted in plain_
    bool sequenced = false;    // in unacked_
  };
  // A sequenced frame that the peer has not acknowledged, or that has not left whole: a peer may
  // refuse, and count as dealt with, what it has read only the metadata of.
  struct Unacked {
    std::shared_ptr<OperationState> operation;  // null when nothing waits for it
    std::uint64_t bytes = 0;
    bool is_send = false;        // a kSend: a kNack of kUnavailable turns it into an offer
    bool becomes_offer = false;  // and this one has
    RegionPin pin = {};          // of a kReadData, which counts in replies_
  };
  struct ReadSlice {
    std::shared_ptr<OperationState> operation;  // null once abandoned: the data is dropped
    std::uint64_t operation_id = 0;
    std::uint32_t slice = 0;
    std::uint64_t bytes = 0;
  };
  // Sequenced frames after which an acknowledgement no longer waits for an idle moment.
  static constexpr std::uint32_t kAckFrames = 256;

  enum class Incoming { kNothing, kDropped, kWrite, kRead, kMessage, kNotification };

  // net::LaneHandler
  Result<net::Placement> OnFrame(std::span<const std::byte> meta,
                                 std::uint64_t payload_bytes) override;
  Status OnPayload() override;
  void OnSent(net::OutFrame* frame) override;
  void OnClosed(const Error& error) override;
  void RunDeferredOnLoop(EventLoop::Defer when) override;

  // channel_send.cc
  void PumpOnLoop();
  bool PumpOne(std::deque<std::shared_ptr<OperationState>>* work);
  std::uint64_t Share(const OperationState& operation, std::uint64_t least_slices) const;
  bool MayWrite(const OperationState& operation) const;
  std::size_t MostPlainFrames() const;
  bool MayRead(const OperationState& operation) const;
  void SendWriteSlice(const std::shared_ptr<OperationState>& operation, std::uint32_t slice);
  void SendReadRequest(const std::shared_ptr<OperationState>& operation, std::uint32_t slice);
  Frame* NewFrame(wire::Type type, std::uint64_t operation_id);
  void SendFrame(Frame* frame);
  void SendAck();
  void FinishedFrame(std::uint64_t payload_bytes);
  void Resolve(const std::shared_ptr<OperationState>& operation,
               const std::optional<Error>& error = std::nullopt);

  // channel_receive.cc
  Result<net::Placement> Dispatch(const wire::MessageHeader& header, wire::MetaReader* reader,
                                  std::uint64_t payload_bytes);
  Result<net::Placement> OnPlainFrame(const wire::MessageHeader& header, wire::MetaReader* reader);
  Result<net::Placement> OnWrite(const wire::MessageHeader& header, wire::MetaReader* reader,
                                 std::uint64_t payload_bytes);
  Result<net::Placement> OnReadRequest(const wire::MessageHeader& header, wire::MetaReader* reader);
  Result<net::Placement> OnReadData(const wire::MessageHeader& header, wire::MetaReader* reader,
                                    std::uint64_t payload_bytes);
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

  ConnectionCore* const connection_;
  EventLoop* const loop_;
  const std::uint32_t index_;
  std::unique_ptr<net::Lane> lane_;
  bool closed_ = false;

  // Sending.
  std::deque<std::shared_ptr<OperationState>> writes_;  // operations with slices to pull
  std::deque<std::shared_ptr<OperationState>> reads_;
  std::deque<Unacked> unacked_;
  std::uint32_t first_unacked_ = 0;  // sequence number of unacked_.front(), modulo 2^32
  std::size_t acked_ = 0;            // of unacked_, from the front: acknowledged but not sent whole
  std::size_t sent_ = 0;             // likewise: sent whole but not acknowledged
  std::deque<ReadSlice> reading_;    // asked for, in order
  std::uint64_t unacked_bytes_ = 0;
  std::uint64_t unsent_bytes_ = 0;  // of sequenced frames still with the lane
  std::uint64_t reading_bytes_ = 0;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_frames_;
  std::size_t replies_ = 0;  // answers to the peer's reads, in unacked_
  std::size_t plain_ = 0;    // frames of SendPlainOnLoop, queued in the lane
  bool paused_ = false;
  std::optional<Error> closed_by_;

  // Receiving.
  std::uint32_t finished_ = 0;  // the peer's sequenced frames dealt with
  std::uint32_t told_ = 0;      // as last acknowledged
  std::uint64_t untold_bytes_ = 0;
  bool ack_deferred_ = false;
  Incoming incoming_ = Incoming::kNothing;
  std::uint64_t incoming_bytes_ = 0;
  std::uint64_t incoming_operation_ = 0;
  RegionPin incoming_region_;
  std::shared_ptr<OperationState> incoming_receive_;  // kMessage straight into a posted buffer
  std::uint64_t incoming_tag_ = 0;
  std::vector<std::byte> incoming_data_;
  std::vector<iovec> pieces_;
};

}  // namespace ferry::transfer
