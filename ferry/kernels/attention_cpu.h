// Reference attention on the CPU and the block table reader that both ops share.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// Where a token's key and value begin, in elements from the start of their tensors.
struct TokenPlace {
  std::int64_t k = 0;
  std::int64_t v = 0;
};

// One query and its output; `q_at` and `out_at` are element offsets. Their length is the last size
// of q. It references the tensors; the caller keeps them alive.
struct AttentionRow {
  const Tensor& q;
  std::int64_t q_at;
  const Tensor& k;
  const Tensor& v;
  const Tensor& out;
  std::int64_t out_at;
  double scale;  // of scores: that of keys included
  double v_scale = 1;
  double softcap = 0;           // 0: none
  const float* sink = nullptr;  // a score without a value; null: none
  float* lse = nullptr;         // null: not wanted
};

// Offset, in elements, from a token's place for head 0 to that of another head.
struct HeadShift {
  std::int64_t k = 0;
  std::int64_t v = 0;
};

// out = sum of p_t * v_t, p = softmax of scale * <q, k_t>, in double; zeros for no tokens. lse =
// the natural logarithm of the sum of exp(score), the sink's included; -inf for no scores at all.
void AttendOnCpu(const AttentionRow& row, std::span<const TokenPlace> tokens,
                 const HeadShift& shift);

// Where an lse of [queries, heads] and the sinks of heads lie; null for tensors that are none.
float* LseAt(const Tensor& lse, std::int64_t query, std::int64_t head) noexcept;
const float* SinkAt(const Tensor& sinks, std::int64_t head) noexcept;

// Paged keys and values with their block tables.
struct AttentionPages {
  const char* op;
  const Tensor& k;  // [blocks, block, kv_heads, head_size]
  const Tensor& v;
  const Tensor& tables;  // int32 [batch, max_blocks]
};

// The tokens of a sequence that its queries see: those from `first` on, of `length`.
struct SeenRange {
  std::int64_t first = 0;
  std::int64_t length = 0;
};

// Writes to `tokens` the places of `length` tokens of a sequence, for head 0. Entries of the table
// for tokens before the block of `first` are not read, since engines release the blocks that a
// window has passed; the places of tokens before `first` are unspecified. Errors: kInvalidArgument
// if the table has fewer tokens or an entry that is read is not a valid block.
Status ReadTable(const AttentionPages& pages, std::int64_t sequence, const SeenRange& seen,
                 std::vector<TokenPlace>* tokens);

}  // namespace ferry::kernels
