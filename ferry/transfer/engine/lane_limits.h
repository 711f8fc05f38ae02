// Costs and limits of the memory that a lane holds for its peer.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ferry/core/units.h"

// Costs and limits, in bytes, of the memory that a lane holds for its peer and asks its peer to
// hold. Both sides count the same way, so a peer of this release never asks for more than it is
// guaranteed.
namespace ferry::transfer {

// Cost of an answer to a read of `blocks` blocks, from the request until the answer is sent: the
// frame and its block list, counted twice because GPU memory needs a second list.
constexpr std::uint64_t AnswerCost(std::uint64_t blocks) { return 640 + 24 * blocks; }
// A read is requested only while those in flight cost less than this.
constexpr std::uint64_t AskBudget(std::size_t lanes) {
  return std::max<std::uint64_t>(6 * kKiB, 192 * kKiB / lanes);
}
// A peer may have at most twice this many reads in flight on one lane.
inline constexpr std::size_t kMaxReplies = 64;
// Cost of the record of an answer, until the peer acknowledges the answer.
inline constexpr std::uint64_t kRecordBytes = 128;
// Cost of a frame without its metadata.
inline constexpr std::uint64_t kPlainBytes = 256;
// Refusals queued with their text; further ones wait in the RefusalLog without it.
inline constexpr std::size_t kMaxNacks = 8;
inline constexpr std::size_t kMaxRefusalText = 320;
// With this many plain frames queued, frames that are repeated anyway are skipped.
inline constexpr std::size_t kMaxPlain = 256;

}  // namespace ferry::transfer
