// Launch plan of the merge of attention states: computed on the host, passed to the kernel by
// value.
#pragma once
#include "ferry/core/result.h"
#include "ferry/kernels/attention_merge/attention_merge.h"
#include "ferry/kernels/rows.h"
#include "ferry/kernels/tiles.h"

namespace ferry::kernels {

// An lse of [queries, heads], strides in elements.
struct MergeLse {
  float* data = nullptr;
  std::int64_t query = 0;
  std::int64_t head = 0;
};

struct AttentionMergePlan {
  const void* out_a = nullptr;
  const void* out_b = nullptr;
  void* out = nullptr;
  RowStrides a_strides;
  RowStrides b_strides;
  RowStrides out_strides;
  RowSizes sizes;  // row = query * heads + head
  RowTiles tiles;
  MergeLse lse_a;
  MergeLse lse_b;
  MergeLse lse;  // null: not wanted
  std::uint32_t heads = 1;
  DType dtype = DType::kFloat32;
  bool wide = false;  // words of 16 bytes, otherwise elements
};

// Errors: as AttentionMerge().
Result<AttentionMergePlan> PlanAttentionMerge(const AttentionMergeArgs& args);

}  // namespace ferry::kernels
