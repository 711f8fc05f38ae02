// Builds frames and hands them to a lane: headers, acknowledgements, refusals, control frames.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "ferry/core/event_loop.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/lane/ack_schedule.h"
#include "ferry/transfer/lane/control_frames.h"
#include "ferry/transfer/lane/frame_pool.h"
#include "ferry/transfer/lane/lane_memory.h"
#include "ferry/transfer/lane/lane_site.h"

namespace ferry::transfer {

// Hands frames to the lane in use. Acknowledges the peer's frames with each of them, and sends the
// frames that need no acknowledgement themselves. Lives on the lane's loop.
class FrameSender final : private EventLoop::Deferred {
 public:
  explicit FrameSender(const LaneSite& site);

  // The lane to use from now on; null: none, until another replaces it.
  void SetLane(net::Lane* lane);
  // Whether there is a lane to use. It may be lost inside Flush.
  bool up() const noexcept { return lane_ != nullptr; }
  // The new lane has none of the frames that were queued in the old one.
  void ForgetQueued();

  LaneFrame* New(wire::Type type, std::uint64_t operation_id) {
    return pool_.New(type, operation_id, site_.context.checksums);
  }
  // Stores the checksum of the payload, if the frame carries checksums. Call once the payload is
  // complete; a frame that is resent keeps it.
  static void Seal(LaneFrame* frame);
  // Requires a lane. The frame is complete.
  void Send(LaneFrame* frame);
  // Sends a frame without acknowledgement and payload. Does nothing without a lane: such a frame
  // may be lost with its lane, because it is repeated, or requested again.
  void SendPlain(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                 std::string_view text = {});
  // Sends the acknowledgement that is due, if any.
  void SendAck();
  // The same; on return the kernel has it.
  void FlushAck();
  // Whether the lane in use, if any, has no use for memory that it spliced up to this position.
  bool HasDelivered(std::uint64_t spliced_to) const {
    return spliced_to == 0 || lane_ == nullptr || lane_->HasDelivered(spliced_to);
  }
  // A plain frame has left.
  void OnPlainSent(wire::Type type);
  // A plain frame that was built by NewReadRefusal was dropped.
  void DropPlain() { control_.Drop(); }

  // ---- What was done with the peer's frames.
  //
  // The peer's next sequenced frame was processed.
  void CountFinished(std::uint64_t payload_bytes);
  // Refuses a sequenced frame; counts and logs that.
  void Refuse(std::uint32_t sequence, std::uint64_t operation_id, const Error& error);
  // The same without counting it as a refusal.
  void SendNack(std::uint32_t sequence, std::uint64_t operation_id, const Error& error);
  // The answer to a read that is refused; counts and logs that. It is a plain frame: the peer
  // requests a read again if its lane is lost.
  LaneFrame* NewReadRefusal(std::uint64_t operation_id, std::uint32_t slice, const Error& error);

  // Records a span of the trace, if `since` is set.
  void TracePayload(const char* what, std::uint64_t bytes, Clock::time_point since) const;
  // Frees everything. No lane is in use.
  void Close();

  FramePool& pool() noexcept { return pool_; }
  LaneMemory& memory() noexcept { return memory_; }
  AckSchedule& acks() noexcept { return acks_; }
  const AckSchedule& acks() const noexcept { return acks_; }

 private:
  void RunDeferredOnLoop(EventLoop::Defer when) override;
  void SendNackFrame(const wire::RefusalOnWire& refusal, std::uint64_t operation_id,
                     std::string_view text);
  void SendPendingNacks();

  const LaneSite& site_;
  net::Lane* lane_ = nullptr;
  LaneMemory memory_;
  FramePool pool_;
  ControlFrames control_;
  AckSchedule acks_;
};

}  // namespace ferry::transfer
