// Checks the fragments of a received message and makes blocks of them.
#include "ferry/unpack/fragments.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace ferry {
namespace {

constexpr const char* kRemedy = "the metadata is not to be trusted; end the connection";

Error Corrupt(const std::string& what) {
  return Error(Code::kCorrupt, fmt::format("{}: {}", what, kRemedy));
}

std::string Describe(std::size_t index, const Fragment& fragment) {
  return fmt::format("fragment {} (src {}, len {}, dst {})", index, fragment.src, fragment.len,
                     fragment.dst);
}

// Saturates at 2^64 - 1.
std::uint64_t TotalBytes(std::span<const PostedRun> runs) noexcept {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t total = 0;
  for (const PostedRun& run : runs) total = run.bytes > kMax - total ? kMax : total + run.bytes;
  return total;
}

bool InPool(const Fragment& fragment, std::uint64_t pool_bytes) noexcept {
  return std::uint64_t{fragment.src} + fragment.len <= pool_bytes;
}
bool InMessage(const Fragment& fragment, std::uint64_t message_bytes) noexcept {
  return fragment.dst <= message_bytes && fragment.len <= message_bytes - fragment.dst;
}

// Why a single fragment is rejected.
Error FaultOf(std::size_t index, const Fragment& fragment, const PostedReceive& receive,
              std::uint64_t posted) {
  const std::string named = Describe(index, fragment);
  if (fragment.len == 0) return Corrupt(named + " is empty");
  if (!InPool(fragment, receive.pool_bytes)) {
    return Corrupt(
        fmt::format("{} does not lie within the pool of {} bytes", named, receive.pool_bytes));
  }
  return Corrupt(fmt::format("{} does not lie within the message of {} bytes ({} are posted)",
                             named, receive.message_bytes, posted));
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

FragmentReader::FragmentReader() {
  taken_.reserve(kMaxFragments);
  ordered_.reserve(kMaxFragments);
}

Status FragmentReader::Read(std::span<const Fragment> fragments, const PostedReceive& receive,
                            std::vector<Block>* blocks) {
  const std::uint64_t posted = TotalBytes(receive.runs);
  if (receive.message_bytes > posted) {
    return Corrupt(fmt::format("a message of {} bytes has come for a receive of {} bytes",
                               receive.message_bytes, posted));
  }
  if (fragments.size() > kMaxFragments) {
    return Corrupt(fmt::format("a message of {} bytes has {} fragments, and {} are the most",
                               receive.message_bytes, fragments.size(), kMaxFragments));
  }
  if (fragments.empty() && receive.message_bytes > 0) {
    return Corrupt(fmt::format("a message of {} bytes has no fragments", receive.message_bytes));
  }
  // A copy, read once: the row lies in memory that the plug-in, or a device, may still change, and
  // what was checked must be what is used.
  taken_.assign(fragments.begin(), fragments.end());
  FERRY_TRY(Check(receive, posted));
  AppendBlocks(ordered_, receive.runs, blocks);
  return Ok();
}

// Fragments that lie within the message, have its total length and do not overlap cover it.
Status FragmentReader::Check(const PostedReceive& receive, std::uint64_t posted) {
  bool ordered = true;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    const Fragment& fragment = taken_[i];
    if (fragment.len == 0 || !InPool(fragment, receive.pool_bytes) ||
        !InMessage(fragment, receive.message_bytes)) {
      return FaultOf(i, fragment, receive, posted);
    }
    // Fragments that arrive in order, the common case, need no sorting.
    ordered = ordered && fragment.dst == total;
    total += fragment.len;
  }
  if (total != receive.message_bytes) {
    return Corrupt(fmt::format("{} fragments have {} bytes together, and the message has {}",
                               taken_.size(), total, receive.message_bytes));
  }
  ordered_.assign(taken_.begin(), taken_.end());
  if (ordered) return Ok();
  std::sort(ordered_.begin(), ordered_.end(),
            [](const Fragment& a, const Fragment& b) { return a.dst < b.dst; });
  return CheckDisjoint();
}

// Sorted by destination, some two neighbours overlap if any two fragments do, because none is
// empty.
Status FragmentReader::CheckDisjoint() const {
  for (std::size_t i = 1; i < ordered_.size(); ++i) {
    const Fragment& before = ordered_[i - 1];
    if (before.dst + before.len <= ordered_[i].dst) continue;
    auto x = std::find(taken_.begin(), taken_.end(), before);
    auto y = std::find(taken_.begin(), taken_.end(), ordered_[i]);
    if (y == x) y = std::find(x + 1, taken_.end(), ordered_[i]);  // two equal fragments
    if (y < x) std::swap(x, y);
    const auto index = [&](auto at) { return static_cast<std::size_t>(at - taken_.begin()); };
    return Corrupt(fmt::format("{} and {} both write byte {} of the message",
                               Describe(index(x), *x), Describe(index(y), *y), ordered_[i].dst));
  }
  return Ok();
}

}  // namespace ferry
