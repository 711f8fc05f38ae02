// Fragments of a received message, and their conversion to blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/result.h"

namespace ferry::tcpx {

// A part of a message that a network interface has received into GPU memory: bytes src..src+len of
// its pool are bytes dst..dst+len of the message. The layout is that of NCCL's metadata for device
// unpack (loadMeta, src/include/nccl_net_device/unpack_defs.h).
struct Fragment {
  std::uint32_t src = 0;  // from the base of the pool, which is therefore at most 4 GiB
  std::uint32_t len = 0;
  std::uint64_t dst = 0;  // from the beginning of the posted receive
  friend bool operator==(const Fragment&, const Fragment&) = default;
};
static_assert(sizeof(Fragment) == 16 && std::is_trivially_copyable_v<Fragment>);
static_assert(offsetof(Fragment, src) == 0 && offsetof(Fragment, len) == 4 &&
              offsetof(Fragment, dst) == 8);

// Maximum fragments of one message: the size of a row of that metadata
// (NET_UNPACK_MAX_SLICE_PAGES).
inline constexpr std::size_t kMaxFragments = 2048;

// Maximum runs of one message whose fragments the GPU reads: it holds them on chip.
inline constexpr std::size_t kMaxMessageRuns = 256;

// A contiguous part of a posted receive's memory.
struct PostedRun {
  std::uint64_t offset = 0;  // relative to the destination of the copy
  std::uint64_t bytes = 0;
};

// This side's own knowledge of a receive: what its fragments must agree with, and where it goes.
struct PostedReceive {
  std::uint64_t pool_bytes = 0;
  std::uint64_t message_bytes = 0;  // received bytes, as the peer reported them
  // In message order, with a total of at least message_bytes. They must not overlap, and end within
  // 64 bits.
  std::span<const PostedRun> runs;
};

// What is wrong with the fragments of a message. Plain data, which a kernel writes, too.
enum class FragmentProblem : std::uint32_t {
  kNone,
  kEmpty,      // a fragment of no bytes
  kOutOfPool,  // one that does not lie within the pool
  kOutOfMessage,
  kTotal,    // together they are longer or shorter than the message
  kOverlap,  // two of them write the same byte
  kUnseen,   // nobody has looked yet
};
struct FragmentFault {
  FragmentProblem problem = FragmentProblem::kNone;
  std::uint32_t first = 0;   // the faulty fragment, or the first of two that overlap
  std::uint32_t second = 0;  // the other one of these
  Fragment first_value{};    // as it was checked
  Fragment second_value{};
  std::uint64_t bytes = 0;  // kTotal: of all fragments; kOverlap: the byte that both write
};

// What an error says about the message.
struct MessageFacts {
  std::size_t fragments = 0;
  std::uint64_t pool_bytes = 0;
  std::uint64_t message_bytes = 0;
  std::uint64_t posted_bytes = 0;
};
// The sum of all runs; saturates at 2^64 - 1.
std::uint64_t TotalBytes(std::span<const PostedRun> runs) noexcept;
// The part of the check that needs no fragment: the message fits the receive, and has a possible
// number of fragments. Errors: kCorrupt.
Status CheckMessage(const MessageFacts& message);
// kCorrupt naming the faulty fragments.
Error ErrorOf(const FragmentFault& fault, const MessageFacts& message);

// Converts untrusted fragments to block lists. Reusable: allocates only at construction. One thread
// at a time.
class FragmentReader {
 public:
  FragmentReader();

  // Appends the blocks that copy a message from the pool to its runs: in message order, cut where
  // runs end, and joined where they continue each other; at most one for each fragment and each
  // run. Fragments may be in any order, and are read once: the checked values are the copied ones,
  // even if somebody still writes them.
  //
  // Accepts fragments that lie within the pool and cover the message exactly, each byte once.
  // Errors: kCorrupt naming the first faulty fragment, or two; nothing is appended then. O(n +
  // runs) for fragments in message order, otherwise O(n log n). Allocates only where `blocks` has
  // to grow.
  Status Read(std::span<const Fragment> fragments, const PostedReceive& receive,
              std::vector<Block>* blocks);

 private:
  Status Check(const MessageFacts& message);
  FragmentFault FindFault(const MessageFacts& message, bool* ordered) const;
  FragmentFault FindOverlap() const;

  std::vector<Fragment> taken_;    // in the given order
  std::vector<Fragment> ordered_;  // by destination
};

}  // namespace ferry::tcpx
