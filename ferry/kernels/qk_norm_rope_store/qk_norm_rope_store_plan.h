// Launch plan of the fused op: computed on the host, passed to the kernel by value.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/paged_cache.h"
#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store.h"

namespace ferry::kernels {

struct HeadsOut {
  void* data = nullptr;    // null: left out
  std::int64_t token = 0;  // strides, in elements
  std::int64_t head = 0;
};

// Numbers: a head by a warp, element by element, for any size and alignment. Words: a head by as
// many threads as half of it has words of 16 bytes, each with a word of either half of two heads at
// a time. Neighbours: the same where the two are neighbours and a token's heads are one block; all
// of its words are asked for before its position is there.
enum class QkForm : std::uint8_t { kNumbers, kWords, kNeighbours };

struct QkNormRopeStorePlan {
  const void* qkv = nullptr;
  std::int64_t qkv_token = 0;  // stride, in elements
  const void* q_weight = nullptr;
  const void* k_weight = nullptr;
  HeadsOut q_out;
  HeadsOut k_out;
  PagedCaches caches;
  Indices positions;
  const void* cos_sin = nullptr;
  DType cos_sin_dtype = DType::kFloat32;
  std::int64_t cos_sin_stride = 0;
  std::int64_t most_positions = 0;
  std::uint32_t tokens = 0;  // 0: nothing is to be done
  std::uint32_t q_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t half = 0;  // of what is rotated, in elements
  bool is_neox = true;
  float eps = 0;
  float per_element = 0;  // 1 / head_dim
  DType dtype = DType::kFloat32;
  std::uint32_t words = 0;  // of half a head; 0: heads can only be moved as numbers
  QkForm form = QkForm::kNumbers;
  std::uint32_t threads_x = 0;  // of a head: a power of two up to 32
  std::uint32_t threads_y = 0;  // heads at once; with threads_x a multiple of 32
};
inline constexpr std::uint32_t kQkMaxThreads = 256;
// Heads that a thread has in flight at once, except in the form for single numbers.
inline constexpr std::uint32_t kQkHeads = 2;

// Errors: as QkNormRopeStore(), but for those of positions and slots.
Result<QkNormRopeStorePlan> PlanQkNormRopeStore(const QkNormRopeStoreArgs& args);

}  // namespace ferry::kernels
