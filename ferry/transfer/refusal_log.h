#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ferry/transfer/wire.h"

namespace ferry::transfer {

// Which of the peer's sequenced frames on a lane were refused, for two readers: the lane, which may
// have to wait before it can say so, and the lane's successor, as the peer may not have heard. One
// byte for each frame from the oldest refusal kept on, however many are refused. Belongs to the
// lane's loop. Sequence numbers are modulo 2^32.
class RefusalLog {
 public:
  // `kept`: frames behind the last one that is processed of which refusals are remembered; a peer
  // has fewer in flight.
  explicit RefusalLog(std::size_t kept) : kept_(kept) {}

  // `said`: the peer has been sent it. A frame is refused once, and not long after later ones.
  void Add(std::uint32_t sequence, std::uint8_t code, bool said);
  // The oldest one that was not said; and it was.
  std::optional<wire::RefusalOnWire> NextUnsaid() const;
  void SaidNext();
  // None has to be said any more: the lane's successor will say all.
  void MarkAllSaid();
  bool has_unsaid() const noexcept { return unsaid_ > 0; }
  // How many of `finished` frames may be acknowledged: a refusal is said before its frame's number.
  std::uint32_t Acknowledgeable(std::uint32_t finished) const noexcept;
  // Frames from the oldest unsaid refusal to `finished`; 0: nothing is unsaid.
  std::size_t UnsaidSpan(std::uint32_t finished) const noexcept;
  // Forgets what lies too far behind: before its number comes round again.
  void Forget(std::uint32_t finished);
  // The latest, at most so many, in their order.
  std::vector<wire::RefusalOnWire> Latest(std::size_t most) const;
  std::size_t bytes() const noexcept { return codes_.size(); }
  void Clear();

 private:
  static constexpr std::uint8_t kUnsaid = 0x80;

  std::size_t kept_;
  std::deque<std::uint8_t> codes_;  // from base_ on; 0: not refused
  std::uint32_t base_ = 0;
  std::size_t unsaid_ = 0;
  std::size_t first_unsaid_ = 0;  // in codes_, while there are any
};

}  // namespace ferry::transfer
