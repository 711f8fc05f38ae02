// Checks the fragments of a received message and makes blocks of them.
#include "ferry/tcpx/unpack/fragments.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "ferry/tcpx/unpack/rows_check.h"

namespace ferry::tcpx {
namespace {

constexpr const char* kRemedy = "the metadata is not to be trusted; end the connection";

Error Corrupt(const std::string& what) {
  return Error(Code::kCorrupt, fmt::format("{}: {}", what, kRemedy));
}

std::string Describe(std::size_t index, const Fragment& fragment) {
  return fmt::format("fragment {} (src {}, len {}, dst {})", index, fragment.src, fragment.len,
                     fragment.dst);
}

void Append(std::vector<Block>* blocks, std::size_t begin, const Block& block) {
  if (blocks->size() > begin) {
    Block& last = blocks->back();
    if (last.dst + last.len == block.dst && last.src + last.len == block.src) {
      last.len += block.len;
      return;
    }
  }
  blocks->push_back(block);
}

// Two sorted sequences are walked together and cut at the borders of both.
// The fragments must be sorted and cover the message, which is not longer than the runs.
void AppendBlocks(std::span<const Fragment> ordered, std::span<const PostedRun> runs,
                  std::vector<Block>* blocks) {
  const std::size_t begin = blocks->size();
  std::size_t run = 0;
  std::uint64_t used = 0;  // used bytes of the run
  for (const Fragment& fragment : ordered) {
    for (std::uint64_t done = 0; done < fragment.len;) {
      while (used == runs[run].bytes) {
        ++run;
        used = 0;
      }
      const std::uint64_t bytes = std::min(fragment.len - done, runs[run].bytes - used);
      Append(blocks, begin, {runs[run].offset + used, fragment.src + done, bytes});
      done += bytes;
      used += bytes;
    }
  }
}

}  // namespace

std::uint64_t TotalBytes(std::span<const PostedRun> runs) noexcept {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t total = 0;
  for (const PostedRun& run : runs) total = run.bytes > kMax - total ? kMax : total + run.bytes;
  return total;
}

Status CheckMessage(const MessageFacts& message) {
  if (message.message_bytes > message.posted_bytes) {
    return Corrupt(fmt::format("a message of {} bytes has come for a receive of {} bytes",
                               message.message_bytes, message.posted_bytes));
  }
  if (message.fragments > kMaxFragments) {
    return Corrupt(fmt::format("a message of {} bytes has {} fragments, and {} are the most",
                               message.message_bytes, message.fragments, kMaxFragments));
  }
  if (message.fragments == 0 && message.message_bytes > 0) {
    return Corrupt(fmt::format("a message of {} bytes has no fragments", message.message_bytes));
  }
  return Ok();
}

Error ErrorOf(const FragmentFault& fault, const MessageFacts& message) {
  const std::string named = Describe(fault.first, fault.first_value);
  switch (fault.problem) {
    case FragmentProblem::kEmpty: return Corrupt(named + " is empty");
    case FragmentProblem::kOutOfPool:
      return Corrupt(
          fmt::format("{} does not lie within the pool of {} bytes", named, message.pool_bytes));
    case FragmentProblem::kOutOfMessage:
      return Corrupt(fmt::format("{} does not lie within the message of {} bytes ({} are posted)",
                                 named, message.message_bytes, message.posted_bytes));
    case FragmentProblem::kTotal:
      return Corrupt(fmt::format("{} fragments have {} bytes together, and the message has {}",
                                 message.fragments, fault.bytes, message.message_bytes));
    case FragmentProblem::kOverlap:
      return Corrupt(fmt::format("{} and {} both write byte {} of the message", named,
                                 Describe(fault.second, fault.second_value), fault.bytes));
    default: break;
  }
  return Error(Code::kInternal, fmt::format("a message of {} bytes with {} fragments was not read",
                                            message.message_bytes, message.fragments));
}

FragmentReader::FragmentReader() {
  taken_.reserve(kMaxFragments);
  ordered_.reserve(kMaxFragments);
}

Status FragmentReader::Read(std::span<const Fragment> fragments, const PostedReceive& receive,
                            std::vector<Block>* blocks) {
  const MessageFacts message{fragments.size(), receive.pool_bytes, receive.message_bytes,
                             TotalBytes(receive.runs)};
  FERRY_TRY(CheckMessage(message));
  // A copy, read once: the row lies in memory that the plug-in, or a device, may still change, and
  // what was checked must be what is used.
  taken_.assign(fragments.begin(), fragments.end());
  FERRY_TRY(Check(message));
  AppendBlocks(ordered_, receive.runs, blocks);
  return Ok();
}

Status FragmentReader::Check(const MessageFacts& message) {
  bool ordered = true;
  FragmentFault fault = FindFault(message, &ordered);
  if (fault.problem != FragmentProblem::kNone) return ErrorOf(fault, message);
  ordered_.assign(taken_.begin(), taken_.end());
  if (ordered) return Ok();
  std::sort(ordered_.begin(), ordered_.end(),
            [](const Fragment& a, const Fragment& b) { return a.dst < b.dst; });
  fault = FindOverlap();
  if (fault.problem != FragmentProblem::kNone) return ErrorOf(fault, message);
  return Ok();
}

// Fragments that lie within the message, have its total length and do not overlap cover it.
FragmentFault FragmentReader::FindFault(const MessageFacts& message, bool* ordered) const {
  FragmentFault fault;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    const Fragment& fragment = taken_[i];
    fault.problem = ProblemOf(fragment, message.pool_bytes, message.message_bytes);
    if (fault.problem != FragmentProblem::kNone) {
      fault.first = static_cast<std::uint32_t>(i);
      fault.first_value = fragment;
      return fault;
    }
    // Fragments that arrive in order, the common case, need no sorting.
    *ordered = *ordered && fragment.dst == total;
    total += fragment.len;
  }
  if (total != message.message_bytes) {
    fault.problem = FragmentProblem::kTotal;
    fault.bytes = total;
  }
  return fault;
}

// Sorted by destination, some two neighbours overlap if any two fragments do, because none is
// empty.
FragmentFault FragmentReader::FindOverlap() const {
  FragmentFault fault;
  for (std::size_t i = 1; i < ordered_.size(); ++i) {
    const Fragment& before = ordered_[i - 1];
    if (before.dst + before.len <= ordered_[i].dst) continue;
    auto x = std::find(taken_.begin(), taken_.end(), before);
    auto y = std::find(taken_.begin(), taken_.end(), ordered_[i]);
    if (y == x) y = std::find(x + 1, taken_.end(), ordered_[i]);  // two equal fragments
    if (y < x) std::swap(x, y);
    const auto index = [&](auto at) { return static_cast<std::uint32_t>(at - taken_.begin()); };
    return {FragmentProblem::kOverlap, index(x), index(y), *x, *y, ordered_[i].dst};
  }
  return fault;
}

}  // namespace ferry::tcpx
