// Reference attention on the CPU and the block table reader that both ops share.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// A token's key and value: the elements in which they begin.
struct TokenPlace {
  std::int64_t k = 0;
  std::int64_t v = 0;
};

// One query and its output: the elements in which they begin. As long as the last size of q.
struct AttentionRow {
  const Tensor& q;
  std::int64_t q_at;
  const Tensor& k;
  const Tensor& v;
  const Tensor& out;
  std::int64_t out_at;
  float scale;
};

// Whose keys and values lie this far behind their tokens' places: those of another head.
struct HeadShift {
  std::int64_t k = 0;
  std::int64_t v = 0;
};

// out = sum of p_t * v_t, p = softmax of scale * <q, k_t>, in double; zeros for no tokens.
void AttendOnCpu(const AttentionRow& row, std::span<const TokenPlace> tokens,
                 const HeadShift& shift);

// Keys and values in pages, and the tables that say where.
struct AttentionPages {
  const char* op;
  const Tensor& k;  // [blocks, block, kv_heads, head_size]
  const Tensor& v;
  const Tensor& tables;  // int32 [batch, max_blocks]
};

// The first `length` tokens of a sequence, of the first of the heads. Errors: kInvalidArgument
// where the table does not have so many, or names no block.
Status ReadTable(const AttentionPages& pages, std::int64_t sequence, std::int64_t length,
                 std::vector<TokenPlace>* tokens);

}  // namespace ferry::kernels
