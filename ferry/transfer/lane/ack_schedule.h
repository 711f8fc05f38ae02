// Which of the peer's frames were processed, and when the peer is told.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ferry/transfer/handshake/lane_progress.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/refusal_log.h"

namespace ferry::transfer {

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

  // A frame was refused. `said`: the refusal was sent. Otherwise the frame and all later ones are
  // not acknowledged until it is.
  void AddRefusal(std::uint32_t sequence, std::uint8_t code, bool said) {
    refusals_.Add(sequence, code, said);
  }
  bool has_unsaid() const noexcept { return refusals_.has_unsaid(); }
  std::optional<wire::RefusalOnWire> NextUnsaid() const { return refusals_.NextUnsaid(); }
  void SaidNext() { refusals_.SaidNext(); }
  // Processed frames that wait for refusals to be sent.
  std::size_t waiting() const noexcept { return refusals_.UnsaidSpan(finished_); }
  std::size_t refusal_bytes() const noexcept { return refusals_.bytes(); }

  // The lane is no longer used: its replacement sends the count and all refusals.
  void OnLaneDown();
  LaneProgress progress() const;
  // Frees the memory of the refusals.
  void ForgetRefusals() { refusals_.Clear(); }

 private:
  const std::uint64_t window_bytes_;
  const std::uint64_t slice_bytes_;
  RefusalLog refusals_;
  std::uint32_t finished_ = 0;    // modulo 2^32
  std::uint32_t last_acked_ = 0;  // last acknowledged value of finished_
  std::uint64_t unacked_bytes_ = 0;
  bool scheduled_ = false;
};

}  // namespace ferry::transfer
