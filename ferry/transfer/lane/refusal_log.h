// Remembers which of a peer's sequenced frames were refused.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ferry/transfer/handshake/wire.h"

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

}  // namespace ferry::transfer
