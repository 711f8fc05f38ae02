// CPU form of the rotary embedding.

#include <fmt/core.h>

#include "ferry/kernels/number.h"
#include "ferry/kernels/rope/rope.h"
#include "ferry/kernels/rope/rope_plan.h"
#include "ferry/kernels/rotation.h"

namespace ferry::kernels {
namespace {

void RotateToken(const RopePlan& plan, const RopeHeads& heads, std::uint32_t token) {
  const std::int64_t row = plan.positions[token] * plan.cos_sin_stride;
  const auto angle = [&plan, row](std::uint32_t i) {
    return ReadFloat(plan.cos_sin, plan.cos_sin_dtype, row + i);
  };
  for (std::uint32_t head = 0; head < heads.count; ++head) {
    const std::int64_t in = token * heads.in_token + head * heads.in_head;
    const std::int64_t out = token * heads.out_token + head * heads.out_head;
    for (std::uint32_t i = 0; i < plan.half; ++i) {
      const RotaryPair pair = RotaryPairOf(plan.is_neox, plan.half, i);
      float low = ReadFloat(heads.in, plan.dtype, in + pair.low);
      float high = ReadFloat(heads.in, plan.dtype, in + pair.high);
      RotatePair(angle(i), angle(plan.half + i), &low, &high);
      WriteFloat(heads.out, plan.dtype, out + pair.low, low);
      WriteFloat(heads.out, plan.dtype, out + pair.high, high);
    }
    for (std::uint32_t i = 2 * plan.half; i < plan.head_dim; ++i) {
      WriteFloat(heads.out, plan.dtype, out + i, ReadFloat(heads.in, plan.dtype, in + i));
    }
  }
}

}  // namespace

Status RopeCpu(const RopeArgs& args) {
  FERRY_TRY_ASSIGN(const RopePlan plan, PlanRope(args));
  for (std::uint32_t token = 0; token < plan.tokens; ++token) {
    const std::int64_t position = plan.positions[token];
    if (position >= 0 && position < plan.most_positions) continue;
    return Error(Code::kInvalidArgument,
                 fmt::format("rope: positions[{}] is {}; cos_sin_cache has 0 to {}", token,
                             position, plan.most_positions - 1));
  }
  for (std::uint32_t token = 0; token < plan.tokens; ++token) {
    RotateToken(plan, plan.q, token);
    RotateToken(plan, plan.k, token);
  }
  return Ok();
}

}  // namespace ferry::kernels
