// Accounting of the memory that one lane holds for its peer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/transfer/memory/held_memory.h"

namespace ferry::transfer {

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

}  // namespace ferry::transfer
