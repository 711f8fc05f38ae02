// Argument checks that both attention ops share.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/argument.h"

namespace ferry::kernels {

// The types of keys and values: that of the queries, or also e4m3.
enum class KeyTypes : std::uint8_t { kOfQueries, kOfQueriesOrE4m3 };

// Checks keys and values, [..., kv_heads, head_size], against queries, [..., heads, head_size].
// Like all checks here it returns kInvalidArgument unless stated otherwise.
Status CheckKeys(const Argument& q, const Argument& k, const Argument& v,
                 KeyTypes types = KeyTypes::kOfQueries);
// The same for paged keys and values, [blocks, block, kv_heads, head_size], and for their block
// tables, int32 [batch, max_blocks].
// Kernels copy 16 tokens at a time, and look their page up once if that is sure to be one; they
// look up each token of other pages, such as pages of 1.
constexpr bool PagesAreScattered(std::int64_t block) noexcept { return block % 16 != 0; }
Status CheckPages(const Argument& q, const Argument& k, const Argument& v,
                  KeyTypes types = KeyTypes::kOfQueries);
Status CheckBlockTables(const Argument& tables, std::int64_t batch, std::int64_t block);
// The output has the shape of q and overlaps no input.
Status CheckAttentionOut(const Argument& q, const Argument& out);
// The scale, which errors call `name`, is positive and finite. The GPU form uses powers of two, so
// scale * log2(e) must be finite too.
Status CheckScale(const char* op, float scale, const char* name = "scale");
// Scales of a call.
struct AttentionScales {
  float scale;
  float k_scale;  // those of e4m3 keys and values
  float v_scale;
};
// Checks them; k_scale and v_scale for `keys` of e4m3 only, where scale * k_scale is checked, too.
Status CheckScales(const char* op, const AttentionScales& scales, DType keys);
// What <q, k> is multiplied by: scale, and k_scale where the keys are e4m3.
constexpr float ScoreScaleOf(const AttentionScales& scales, DType keys) noexcept {
  return keys == DType::kFloat8E4m3 ? scales.scale * scales.k_scale : scales.scale;
}
inline constexpr float kLog2E = 1.44269504088896341F;
// What both ops can do beyond plain attention. None of it is in use by default.
struct AttentionExtras {
  const Tensor& lse;    // fp32 [queries, heads], any strides; none: not wanted
  const Tensor& sinks;  // fp32 [heads], contiguous; none: there are none
  std::int64_t window;  // a query sees so many keys, its own included; 0: all
  float softcap;        // scores s become softcap * tanh(s / softcap); 0: they stay as they are

  bool none() const noexcept { return lse.none() && sinks.none() && window == 0 && softcap == 0; }
};
// Checks them, for the scale that scores are multiplied by.
Status CheckExtras(const Argument& q, const AttentionExtras& extras, float scale);
// The number of tile buffers is 1, 2 or 3; it must be 2 for head sizes for which the GPU form has
// no other.
Status CheckStages(const Argument& q, const char* name, int stages);
// Whether the GPU form supports the type and head size of q. Errors: kUnsupported.
Status CheckHeadsForDevice(const Argument& q);
// All rows begin at multiples of 16 bytes.
Status IsAlignedForDevice(const Argument& argument);

// Upper bound of token counts, so that the sum of two counts fits an int32.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;

}  // namespace ferry::kernels
