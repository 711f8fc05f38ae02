// The sending half of a lane: turns slices and messages into frames, and settles them.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/transfer/lane/frame_sender.h"
#include "ferry/transfer/lane/lane_rate.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/lane_staging.h"
#include "ferry/transfer/lane/read_requests.h"
#include "ferry/transfer/lane/send_window.h"
#include "ferry/transfer/lane/slice_puller.h"

namespace ferry::transfer {

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
