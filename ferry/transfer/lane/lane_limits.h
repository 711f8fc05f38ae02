// Costs and limits of what a lane holds for its peer, and asks its peer to hold.
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
// Cost of a frame without its metadata, and of one that is kept, with its record.
inline constexpr std::uint64_t kPlainBytes = 256;
inline constexpr std::uint64_t kKeptFrameBytes = 384;
// What a lane may need at once for its receive buffer, free frames, answers, refusals and the lists
// of the frame that is arriving. A connection has that much room for each of its lanes, whatever
// else it holds.
inline constexpr std::uint64_t kLaneReserve = 256 * kKiB;
// Refusals queued with their text; further ones wait in the RefusalLog without it.
inline constexpr std::size_t kMaxNacks = 8;
inline constexpr std::size_t kMaxRefusalText = 320;
// Sequenced frames that a lane leaves unacknowledged, apart from messages and answers.
inline constexpr std::size_t kMaxUnacked = 4096;
// Refusals sent to a replacement; they fit one frame.
inline constexpr std::size_t kMaxRefusals = 4096;
// After this many slices an acknowledgement is no longer delayed until the loop is idle, so a
// sender needs twice as many in flight.
inline constexpr std::uint64_t kAckSlices = 2;
// Frames that wait for an earlier copy. Further ones wait in the socket: copies end whatever the
// peer does.
inline constexpr std::size_t kMaxLandingFrames = 1024;
// Capacity that the buffers of a free frame, and of a lane between two payloads, may keep.
inline constexpr std::size_t kSmallMeta = 512;
inline constexpr std::size_t kSmallList = 256;
// Bytes of all free frames of a lane.
inline constexpr std::size_t kMaxFreeBytes = 64 * kKiB;
// With this many plain frames queued, frames that are repeated anyway are skipped.
inline constexpr std::size_t kMaxPlain = 256;

}  // namespace ferry::transfer
