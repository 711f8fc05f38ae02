// Builds frames and hands them to a lane: headers, acknowledgements, refusals, control frames.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/gpu/staged_copy.h"
#include "ferry/transfer/handshake/lane_progress.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/memory/held_memory.h"

namespace ferry::transfer {

// Remembers which sequenced frames of the peer on a lane were refused. It has two readers: the
// lane, which may have to delay the refusal frame, and the lane's replacement, because the peer may
// not have received it. Uses one byte per frame, starting at the oldest refusal kept. Lives on the
// lane's loop. Sequence numbers are modulo 2^32.
class RefusalLog {
 public:
  // `kept`: number of frames, counted back from the last processed one, whose refusals are
  // remembered; a peer has fewer in flight.
  explicit RefusalLog(std::size_t kept) : kept_(kept) {}

  // `said`: the refusal was sent to the peer. Add each frame at most once, and not long after later
  // ones.
  void Add(std::uint32_t sequence, std::uint8_t code, bool said);
  // Returns the oldest refusal that was not sent, and marks it as sent.
  std::optional<wire::RefusalOnWire> NextUnsaid() const;
  void SaidNext();
  // Marks all refusals as sent: the lane's replacement sends them all.
  void MarkAllSaid();
  bool has_unsaid() const noexcept { return unsaid_ > 0; }
  // Number of the `finished` frames that may be acknowledged: a refusal must be sent before the
  // number of its frame.
  std::uint32_t Acknowledgeable(std::uint32_t finished) const noexcept;
  // Frames from the oldest unsent refusal to `finished`; 0 if all were sent.
  std::size_t UnsaidSpan(std::uint32_t finished) const noexcept;
  // Drops entries that are too old, before their sequence numbers repeat.
  void Forget(std::uint32_t finished);
  // The latest `most` refusals, oldest first.
  std::vector<wire::RefusalOnWire> Latest(std::size_t most) const;
  std::size_t bytes() const noexcept { return codes_.size(); }
  void Clear();

 private:
  static constexpr std::uint8_t kUnsaid = 0x80;

  std::size_t kept_;
  std::deque<std::uint8_t> codes_;  // from base_ on; 0: not refused
  std::uint32_t base_ = 0;
  std::size_t unsaid_ = 0;
  std::size_t first_unsaid_ = 0;  // index in codes_, while any are unsent
};

// Counts the peer's sequenced frames that were processed or refused, and decides when that is
// acknowledged. Each frame to the peer carries the latest count; a frame is sent only for the
// acknowledgement if none comes soon. Continues over the lanes that replace each other. Lives on
// the lane's loop.
class AckSchedule {
 public:
  enum class When {
    kNow,
    kWhenIdle,   // call OnIdle once the loop has nothing else to do
    kScheduled,  // OnIdle is already due
  };

  // `most_sequenced`: limit of the sequenced frames that an honest peer has in flight.
  AckSchedule(std::size_t most_sequenced, std::uint64_t window_bytes, std::uint64_t slice_bytes)
      : window_bytes_(window_bytes), slice_bytes_(slice_bytes), refusals_(2 * most_sequenced) {}

  // The next frame, with a payload of this size, was processed. Says when to acknowledge it.
  When CountFinished(std::uint64_t payload_bytes);
  // The same without an acknowledgement: the lane is lost, and its replacement sends the count.
  void CountSkipped() { ++finished_; }
  std::uint32_t finished() const noexcept { return finished_; }
  // Whether more could be acknowledged than the last frame did.
  bool due() const noexcept { return refusals_.Acknowledgeable(finished_) != last_acked_; }
  // The count for a frame that is sent now.
  std::uint32_t Take();
  void OnIdle() { scheduled_ = false; }

  // It knows which frames were refused. While a refusal has not been sent, its frame and all later
  // ones are not acknowledged.
  RefusalLog& refusals() noexcept { return refusals_; }
  const RefusalLog& refusals() const noexcept { return refusals_; }

  // The lane is no longer used: its replacement sends the count and all refusals.
  void OnLaneDown();
  LaneProgress progress() const;

 private:
  const std::uint64_t window_bytes_;
  const std::uint64_t slice_bytes_;
  RefusalLog refusals_;
  std::uint32_t finished_ = 0;    // modulo 2^32
  std::uint32_t last_acked_ = 0;  // last acknowledged value of finished_
  std::uint64_t unacked_bytes_ = 0;
  bool scheduled_ = false;
};

// Counts the frames without acknowledgement that are queued in a lane. A peer that does not read
// must not make them pile up, and a lane cannot pause for them: two sides would wait for each
// other. So at most one acknowledgement, ping and pong is queued at a time, and few refusals.
// Lives on the lane's loop.
class ControlFrames {
 public:
  // What must be sent after a frame has left: it was merged with that frame, or waited for it.
  enum class Next { kNothing, kAck, kPong, kRefusals };

  // Whether a frame of this type is to be sent. If not, one that is queued stands for it, or it is
  // repeated later.
  bool Add(wire::Type type);
  // A frame for which Add returned true has left.
  Next OnSent(wire::Type type);
  // Such a frame was dropped before it reached the lane.
  void Drop() { --queued_; }
  // Whether a refusal may be sent with its text.
  bool may_refuse() const noexcept;
  // The lane was replaced: nothing is queued in the new one.
  void Reset() { *this = ControlFrames(); }

 private:
  // Types of which at most one frame is queued at a time; null for all others.
  bool* QueuedFlag(wire::Type type);

  std::size_t queued_ = 0;
  std::size_t refusals_queued_ = 0;
  bool ack_queued_ = false;
  bool ack_due_ = false;  // send another one after the queued one
  bool ping_queued_ = false;
  bool pong_queued_ = false;
  bool pong_due_ = false;
};

// Where the memory of an answer to a read comes from.
enum class AnswerMemory : std::uint8_t {
  kNone,        // there is no room: the request must wait
  kGuaranteed,  // what the peer may always request
  kOptional,    // beyond that; counted as optional (held_memory.h)
};

// Counts the bytes that the peer makes a lane hold, and charges them to the connection in larger
// steps, because all lanes share the connection's counters. Lives on the lane's loop.
class LaneMemory {
 public:
  // `memory`: the connection's, which has `lanes` lanes; must outlive this.
  LaneMemory(HeldMemory* memory, std::size_t lanes) : memory_(memory), lanes_(lanes) {}

  void Hold(std::uint64_t bytes);
  void Release(std::uint64_t bytes);

  // Reserves memory for an answer, while `answers` are neither acknowledged nor recorded. Hand the
  // result to HoldAnswer, or to CancelAnswer if no answer follows.
  AnswerMemory ReserveAnswer(std::uint64_t bytes, std::size_t answers);
  void HoldAnswer(std::uint64_t bytes, AnswerMemory from);
  void CancelAnswer(std::uint64_t bytes, AnswerMemory from);
  void ReleaseAnswer(std::uint64_t bytes, AnswerMemory from);
  // The record of an answer, which stays until the peer acknowledges the answer.
  void HoldRecord();
  void ReleaseRecord();

  // Frames that the peer has caused and that are kept until it acknowledges them.
  void HoldKept(std::uint64_t bytes);
  void ReleaseKept(std::uint64_t bytes);
  std::uint64_t kept_bytes() const noexcept { return kept_bytes_; }
  // Whether the peer has acknowledged enough of those for another one.
  bool may_keep() const noexcept;

  // Sets the size of what the frame that is arriving, and copies in flight, make the lane hold.
  void SetScratch(std::uint64_t bytes);
  // Sets the size of the buffers that the lane has whatever arrives.
  void SetBuffers(std::uint64_t bytes);
  // Returns everything except optional memory, which whoever holds it must return. Nothing may be
  // held afterwards; SetScratch has no effect then.
  void Close();

  // Without buffers.
  std::uint64_t held() const noexcept { return held_; }

 private:
  std::uint64_t GuaranteedAnswers() const;

  HeldMemory* const memory_;
  const std::size_t lanes_;
  std::uint64_t held_ = 0;
  std::uint64_t charged_ = 0;        // current share of the connection's memory
  std::uint64_t answer_bytes_ = 0;   // frames that answer reads, and their records
  std::uint64_t kept_bytes_ = 0;     // kept frames that the peer has caused
  std::uint64_t scratch_bytes_ = 0;  // in held_
  std::uint64_t buffer_bytes_ = 0;   // as charged
  bool closed_ = false;
};

// The checksum of the bytes of all pieces, one after the other. The bytes may change meanwhile.
std::uint32_t Crc32cOf(std::span<const iovec> pieces);
// The checksum of a frame's metadata, which begins with `header`: counts meta_crc as zero.
std::uint32_t MetadataCrc(std::span<const std::byte> meta, const wire::MessageHeader& header);
// Stores the payload's checksum in the metadata, which SealMetadata must follow.
void SealPayload(std::uint32_t crc, std::vector<std::byte>* meta);
// Marks the metadata as checked, and stores its checksum in it. The metadata must be final.
void SealMetadata(std::vector<std::byte>* meta);

// A frame that a lane sends. Belongs to its FramePool; used by one sender at a time.
struct LaneFrame final : net::OutFrame {
  // How its memory is counted (LaneMemory).
  enum class Cost : std::uint8_t { kNothing, kPlain, kKept, kAnswer };

  std::size_t place = 0;  // index in the pool
  bool used = false;      // not free
  wire::Type type{};
  Cost cost = Cost::kNothing;
  AnswerMemory answer_from = AnswerMemory::kNone;  // kAnswer only
  std::uint64_t held = 0;                          // bytes of `cost`
  std::uint64_t unsent = 0;                        // counted in SendWindow::unsent_bytes()
  bool plain = false;                              // counted in ControlFrames
  bool sequenced = false;                          // recorded in the SendWindow
  bool kept = false;                // kept until acknowledged, to be resent over another lane
  bool checked = false;             // carries checksums
  Clock::time_point handed_over{};  // to the lane; only if payloads are traced
  // The slot that holds the payload. Kept until the frame is sent, or until it is acknowledged if
  // the frame was sent zero-copy.
  StagedCopyRef staged;
};

// Creates and reuses frames. Lives on the lane's loop.
class FramePool {
 public:
  // `memory` must outlive this.
  explicit FramePool(LaneMemory* memory) : memory_(memory) {}

  // A frame whose metadata is the header of this type.
  LaneFrame* New(wire::Type type, std::uint64_t operation_id, bool checked);
  // Count the frame's memory until it is recycled. At most one of them, once.
  void HoldPlain(LaneFrame* frame, std::uint64_t bytes);
  void HoldKept(LaneFrame* frame, std::uint64_t bytes);
  void HoldAnswer(LaneFrame* frame, std::uint64_t bytes, AnswerMemory from);
  // Marks the frame as one that is kept until it is acknowledged.
  void Keep(LaneFrame* frame);
  std::size_t kept() const noexcept { return kept_; }
  // Returns the frame and everything that it holds. Idempotent.
  void Recycle(LaneFrame* frame);
  // Recycles the frames that are not kept: the lane that was to send them is lost.
  void RecycleUnkept();
  // Frees some of the unused frames. Call once per heartbeat interval.
  void Trim();
  // Deletes all frames and returns their optional memory; LaneMemory::Close() returns the rest.
  void Clear();

  const std::vector<std::unique_ptr<LaneFrame>>& all() const noexcept { return frames_; }
  std::size_t unused() const noexcept { return free_.size(); }
  // Largest size of the unused frames since the last Trim(), in bytes.
  std::size_t spare_bytes() const noexcept { return spare_bytes_; }

 private:
  LaneFrame* TakeFree();
  void ReturnMemory(LaneFrame* frame);
  void Delete(LaneFrame* frame);

  LaneMemory* const memory_;
  std::vector<std::unique_ptr<LaneFrame>> frames_;
  std::vector<LaneFrame*> free_;
  std::size_t free_bytes_ = 0;  // of free_
  std::size_t spare_bytes_ = 0;
  std::size_t kept_ = 0;
};

// The operation id in a frame's header.
std::uint64_t OperationIn(const net::OutFrame& frame);

// Frees the list's memory if its capacity is larger.
template <class T>
void FreeIfOver(std::size_t most, std::vector<T>* list) {
  if (list->capacity() > most) std::vector<T>().swap(*list);
}

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
