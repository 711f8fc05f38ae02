// Fragments of a received message, and their conversion to blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/result.h"

namespace ferry {

// Where a network interface that receives into GPU memory has put a part of a message: bytes
// src..src+len of its pool are bytes dst..dst+len of the message. The layout is that of NCCL's
// metadata for device unpack (loadMeta, src/include/nccl_net_device/unpack_defs.h).
struct Fragment {
  std::uint32_t src = 0;  // from the base of the pool, which is at most 4 GiB for that
  std::uint32_t len = 0;
  std::uint64_t dst = 0;  // from the beginning of the posted receive
  friend bool operator==(const Fragment&, const Fragment&) = default;
};
static_assert(sizeof(Fragment) == 16 && std::is_trivially_copyable_v<Fragment>);
static_assert(offsetof(Fragment, src) == 0 && offsetof(Fragment, len) == 4 &&
              offsetof(Fragment, dst) == 8);

// Of one message: as many as a row of that metadata has (NET_UNPACK_MAX_SLICE_PAGES).
inline constexpr std::size_t kMostFragments = 2048;

// Some of the memory that a receive was posted for.
struct PostedRun {
  std::uint64_t offset = 0;  // in the place that it is copied to
  std::uint64_t bytes = 0;
};

// What the fragments of a message must agree with, and where it goes: this side's own knowledge.
struct PostedReceive {
  std::uint64_t pool_bytes = 0;
  std::uint64_t message_bytes = 0;  // as many as came, which the peer has said
  // In the message's order, and together at least as long. They do not overlap and end within 64
  // bits.
  std::span<const PostedRun> runs;
};

// Makes block lists of fragments that others have written down and that nobody has to believe. Kept
// for its memory: it allocates when it is made. One thread at a time.
class FragmentReader {
 public:
  FragmentReader();

  // Appends the blocks that put a message in place, from the pool to the place of the runs: in the
  // message's order, cut where runs end, and joined where they continue each other; at most one for
  // each fragment and one for each run. The fragments are in any order, and are read once: what is
  // checked is what is copied, whoever still writes them.
  //
  // Accepts fragments that cover the message exactly, each byte once, from within the pool. Errors:
  // kCorrupt naming the first fragment, or two, at fault; nothing is appended then. O(n + runs)
  // where fragments are in the message's order, with O(n log n) otherwise. Allocates where `blocks`
  // has to grow.
  Status Read(std::span<const Fragment> fragments, const PostedReceive& receive,
              std::vector<Block>* blocks);

 private:
  Status Check(const PostedReceive& receive, std::uint64_t posted);
  Status CheckDisjoint() const;

  std::vector<Fragment> taken_;    // in the order in which they were given
  std::vector<Fragment> ordered_;  // by where they go
};

}  // namespace ferry
