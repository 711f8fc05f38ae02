// What a lane has in flight: frames that the peer has not acknowledged, and reads that it has not
// answered.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/transfer/gpu/staged_copy.h"
#include "ferry/transfer/lane/operation_state.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

struct LaneFrame;

// The record of a sequenced frame that the peer has not acknowledged, or that has not been sent
// completely. Both matter: a peer may refuse a frame, which counts as processed, after it has read
// only the metadata.
struct SentFrame {
  OperationRef operation;  // null: nothing waits for it
  std::uint64_t bytes = 0;
  std::uint32_t slice = 0;         // of a kWrite or kCopy
  LaneFrame* frame = nullptr;      // the frame itself, if it is kept
  bool is_send = false;            // a kSend: a kNack of kUnavailable turns it into an RTS
  bool becomes_rts = false;        // a kSend that was turned into an RTS
  bool reply = false;              // a kReadData
  std::uint64_t copied = 0;        // bytes of a kCopy
  Clock::time_point since = {};    // write slices: when it was handed over
  std::uint64_t ahead = 0;         // bytes unacknowledged at `since`, its own included
  std::uint64_t spliced_to = 0;    // OutFrame::spliced_to, once it is sent
  std::uint64_t payload = 0;       // OutFrame::payload_number, once it is sent
  Clock::time_point sent_at = {};  // with a `payload` only
  RegionPin pin = {};              // a kReadData whose payload is the region's memory
  StagedCopyRef staged = nullptr;  // its slot, which the kernel may still read
};

// The frames in flight, in the order of their sequence numbers. A frame is settled once it is both
// sent and acknowledged. Numbers continue over the lanes that replace each other. Lives on the
// lane's loop.
class SendWindow {
 public:
  enum class Ack {
    kInvalid,  // acknowledges frames that were never sent
    kStale,
    kProgress,  // some frames may be settled
  };

  void Add(SentFrame frame);
  // A slice of a write, sent now: its time in flight is measured.
  void AddSlice(SentFrame frame, Clock::time_point now);
  // Bytes of a frame that is queued in the lane, until it is sent.
  void AddUnsent(std::uint64_t bytes) { unsent_bytes_ += bytes; }
  void RemoveUnsent(std::uint64_t bytes) { unsent_bytes_ -= bytes; }

  // The frame that is sent next.
  SentFrame& next_sent() { return frames_[sent_]; }
  void MarkSent() { ++sent_; }
  // The peer has processed the frames before this number (MessageHeader::ack).
  Ack Acknowledge(std::uint32_t ack);
  // The oldest frame, if it is settled; else null.
  const SentFrame* settled() const noexcept {
    return acked_ == 0 || sent_ == 0 ? nullptr : &frames_.front();
  }
  // Takes the oldest frame if it is settled.
  std::optional<SentFrame> TakeSettled();
  // The frame with this number; null if there is none. Valid until the window changes.
  SentFrame* Find(std::uint32_t sequence);
  // The oldest frame that the lane can name, has sent, and the peer has not acknowledged; null if
  // there is none.
  const SentFrame* OldestNamed() const;

  // The first `count` frames, at most size(), were processed by the end of a lane, and thus sent.
  void Resume(std::uint32_t count) { acked_ = sent_ = count; }
  // Takes all frames: those to be resent are added again, in order.
  std::deque<SentFrame> TakeAll();
  // The old lane no longer reads the memory of answers.
  void ReleasePins();

  // ---- What is in flight.
  std::size_t size() const noexcept { return frames_.size(); }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t unsent_bytes() const noexcept { return unsent_bytes_; }
  std::uint64_t copying_bytes() const noexcept { return copying_bytes_; }
  std::size_t replies() const noexcept { return replies_; }
  // Frames that the peer has processed, modulo 2^32.
  std::uint32_t acknowledged() const noexcept {
    return first_ + static_cast<std::uint32_t>(acked_);
  }
  std::uint32_t first() const noexcept { return first_; }
  bool HoldsOperation(const OperationState* operation) const;
  bool HoldsRegion(const RegionState* region) const;
  // Whether an operation, or a frame that is kept, waits for an acknowledgement.
  bool HoldsWork() const;
  // Whether data of an operation, or an answer, is in flight.
  bool OwesData() const;

 private:
  std::deque<SentFrame> frames_;
  std::uint32_t first_ = 0;  // number of frames_.front(), modulo 2^32
  std::size_t acked_ = 0;    // at the front: acknowledged, not sent completely
  std::size_t sent_ = 0;     // at the front: sent completely, not acknowledged
  std::uint64_t bytes_ = 0;
  std::uint64_t unsent_bytes_ = 0;   // still queued in the lane
  std::uint64_t copying_bytes_ = 0;  // of kCopy frames
  std::size_t replies_ = 0;          // answers to the peer's reads
};

// A slice of a read that was requested.
struct ReadSlice {
  OperationRef operation;  // null once abandoned: the data is dropped
  std::uint64_t operation_id = 0;
  std::uint32_t slice = 0;
  std::uint64_t bytes = 0;
  std::uint64_t cost = 0;  // memory that the answer costs the peer, in bytes
};

// The end of a slice of a read, as the receiving half reports it.
struct ReadEnd {
  OperationRef operation;  // null: its copy into GPU memory has begun, and ends it
  std::uint64_t bytes = 0;
  std::optional<Error> error;
};

// Requests in the order in which the peer answers them, so the oldest is always the one concerned.
// Lives on the lane's loop.
class ReadRequests {
 public:
  void Add(ReadSlice slice);
  // Null if there is none.
  const ReadSlice* oldest() const { return slices_.empty() ? nullptr : &slices_.front(); }
  // The oldest, if that is this slice of the peer's answer; null otherwise.
  const ReadSlice* Find(std::uint64_t operation_id, std::uint32_t slice) const;
  ReadSlice TakeOldest();
  // The lane is lost: no answer follows.
  std::deque<ReadSlice> TakeAll();
  // Drops the operation from its requests; returns how many that were. Their data is dropped when
  // it arrives.
  std::size_t Abandon(const OperationState* operation);

  std::size_t size() const noexcept { return slices_.size(); }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t cost() const noexcept { return cost_; }
  // Whether an operation waits for an answer.
  bool HoldsWork() const;

 private:
  std::deque<ReadSlice> slices_;
  std::uint64_t bytes_ = 0;
  std::uint64_t cost_ = 0;
};

}  // namespace ferry::transfer
