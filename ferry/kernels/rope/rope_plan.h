// Launch plan of the rotary embedding: computed on the host, passed to the kernel by value.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/indices.h"
#include "ferry/kernels/rope/rope.h"

namespace ferry::kernels {

// Heads of all tokens and their destination.
struct RopeHeads {
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t in_token = 0;  // strides, in elements
  std::int64_t in_head = 0;
  std::int64_t out_token = 0;
  std::int64_t out_head = 0;
  std::uint32_t count = 0;
};

// kNumbers works for any size and alignment. With kWords a thread has one word of each half of one
// head, and all words of a token are requested before its position has arrived. kPairs is for the
// pairs of neighbours that kWords cannot have: a thread has words, or single pairs, of the rotated
// part of a head.
enum class RopeForm : std::uint8_t { kNumbers, kWords, kPairs };

struct RopePlan {
  RopeHeads q;
  RopeHeads k;
  Indices positions;
  const void* cos_sin = nullptr;
  DType cos_sin_dtype = DType::kFloat32;
  std::int64_t cos_sin_stride = 0;
  std::int64_t most_positions = 0;
  std::uint32_t tokens = 0;  // 0: nothing is to be done
  std::uint32_t head_dim = 0;
  std::uint32_t half = 0;  // elements
  bool is_neox = true;
  std::uint32_t words = 0;   // of a half, or with kPairs of what is rotated: accesses
  bool wide = false;         // words of 16 bytes, otherwise elements
  bool copies_rest = false;  // what is not rotated must be written, too
  DType dtype = DType::kFloat32;
  std::uint32_t threads_x = 0;  // along a half
  std::uint32_t threads_y = 0;  // over heads
  RopeForm form = RopeForm::kNumbers;
};
inline constexpr std::uint32_t kRopeMaxThreads = 256;
inline constexpr std::uint32_t kRopeMaxWordThreads = 512;
// Heads that a thread has in flight at once in the form kNumbers.
inline constexpr std::uint32_t kRopeHeads = 2;

// Errors: as Rope().
Result<RopePlan> PlanRope(const RopeArgs& args);

}  // namespace ferry::kernels
