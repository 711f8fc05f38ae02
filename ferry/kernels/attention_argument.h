// Argument checks that both attention ops share.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/argument.h"

namespace ferry::kernels {

// Keys and values of tokens, [..., kv_heads, head_size], for queries [..., heads, head_size].
Status CheckKeys(const Argument& q, const Argument& k, const Argument& v);
// In pages: [blocks, block, kv_heads, head_size], and int32 [batch, max_blocks].
Status CheckPages(const Argument& q, const Argument& k, const Argument& v);
Status CheckBlockTables(const Argument& tables, std::int64_t batch, std::int64_t block);
// What is written, of the shape of q, of its own memory.
Status CheckAttentionOut(const Argument& q, const Argument& out);
// The GPU's form takes powers of two: by its scale times log2(e), which must be a number, too.
Status CheckScale(const char* op, float scale);
inline constexpr float kLog2E = 1.44269504088896341F;
// Of a ring of tiles: 1, 2 or 3; 2 for those heads of which the GPU has nothing else.
Status CheckStages(const Argument& q, const char* name, int stages);
// Whether the GPU's form is made for this. Errors: kUnsupported.
Status CheckHeadsForDevice(const Argument& q);
// Rows begin at multiples of 16 bytes.
Status IsAlignedForDevice(const Argument& argument);

// More tokens than this nobody counts, so that sums of two such numbers are an int32.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

}  // namespace ferry::kernels
