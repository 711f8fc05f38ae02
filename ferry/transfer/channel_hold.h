#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ferry/core/units.h"

// The memory that a lane holds for its peer, and asks its peer to hold: both sides count the same
// way, so a peer of this release never asks for more than its guarantee.
namespace ferry::transfer {

// An answer to a read of so many blocks, from the request until it has left: the frame with its
// list, twice where the memory is a GPU's.
constexpr std::uint64_t AnswerCost(std::uint64_t blocks) { return 640 + 24 * blocks; }
// A read is asked for while those in flight cost less than this.
constexpr std::uint64_t AskBudget(std::size_t lanes) {
  return std::max<std::uint64_t>(6 * kKiB, 192 * kKiB / lanes);
}
// The record of an answer, until the peer acknowledges it.
inline constexpr std::uint64_t kRecordBytes = 128;
// A frame without its metadata.
inline constexpr std::uint64_t kPlainBytes = 256;
// Queued with their words; the others wait in the RefusalLog.
inline constexpr std::size_t kMostNacks = 8;
inline constexpr std::size_t kMostRefusalText = 320;
// With so many queued frames, a frame that will be sent again anyway is not sent.
inline constexpr std::size_t kMostPlain = 256;

}  // namespace ferry::transfer
