// CPU form of the fused norm, rotation and cache store.

#include <fmt/core.h>

#include <cmath>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store.h"
#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store_plan.h"
#include "ferry/kernels/rotation.h"

namespace ferry::kernels {
namespace {

using Head = std::vector<float>;

Head ReadHead(const QkNormRopeStorePlan& plan, std::uint32_t token, std::uint32_t head) {
  const std::int64_t at = token * plan.qkv_token + std::int64_t{head} * plan.head_dim;
  Head values(plan.head_dim);
  for (std::uint32_t i = 0; i < plan.head_dim; ++i) {
    values[i] = ReadFloat(plan.qkv, plan.dtype, at + i);
  }
  return values;
}

void Normalise(const QkNormRopeStorePlan& plan, const void* weight, Head* head) {
  double squares = 0;
  for (const float value : *head) squares += double{value} * value;
  const auto scale = static_cast<float>(
      1 / std::sqrt(squares / static_cast<double>(head->size()) + double{plan.eps}));
  for (std::size_t i = 0; i < head->size(); ++i) {
    // Rounded in the same places as by the kernels: after the norm, after the weight, after the
    // rotation.
    const float normalised = RoundTo(plan.dtype, (*head)[i] * scale);
    (*head)[i] = RoundTo(plan.dtype,
                         normalised * ReadFloat(weight, plan.dtype, static_cast<std::int64_t>(i)));
  }
}

void Rotate(const QkNormRopeStorePlan& plan, std::uint32_t token, Head* head) {
  const std::int64_t row = plan.positions[token] * plan.cos_sin_stride;
  const auto angle = [&plan, row](std::uint32_t i) {
    return ReadFloat(plan.cos_sin, plan.cos_sin_dtype, row + i);
  };
  for (std::uint32_t i = 0; i < plan.half; ++i) {
    const RotaryPair pair = RotaryPairOf(plan.is_neox, plan.half, i);
    float& low = (*head)[pair.low];
    float& high = (*head)[pair.high];
    RotatePair(angle(i), angle(plan.half + i), &low, &high);
    low = RoundTo(plan.dtype, low);
    high = RoundTo(plan.dtype, high);
  }
}

void WriteHead(const HeadsOut& out, DType dtype, std::int64_t at, const Head& head) {
  for (std::size_t i = 0; i < head.size(); ++i) {
    WriteFloat(out.data, dtype, at + static_cast<std::int64_t>(i), head[i]);
  }
}

// In the token's place in the cache.
void StoreHead(const PagedCaches& caches, void* cache, std::int64_t at, const Head& head) {
  const float inverse = cache == caches.k ? caches.k_inverse : caches.v_inverse;
  for (std::size_t i = 0; i < head.size(); ++i) {
    StoreInCache(cache, caches.dtype, at + static_cast<std::int64_t>(i), head[i], inverse);
  }
}

void DoToken(const QkNormRopeStorePlan& plan, std::uint32_t token) {
  for (std::uint32_t h = 0; h < plan.q_heads; ++h) {
    Head head = ReadHead(plan, token, h);
    Normalise(plan, plan.q_weight, &head);
    Rotate(plan, token, &head);
    WriteHead(plan.q_out, plan.dtype, token * plan.q_out.token + h * plan.q_out.head, head);
  }
  const bool stored = plan.caches.k != nullptr && plan.caches.slots[token] >= 0;
  const CachePlace place =
      stored ? PlaceOf(plan.caches, static_cast<std::uint32_t>(plan.caches.slots[token]))
             : CachePlace{};
  for (std::uint32_t h = 0; h < plan.kv_heads; ++h) {
    Head head = ReadHead(plan, token, plan.q_heads + h);
    Normalise(plan, plan.k_weight, &head);
    Rotate(plan, token, &head);
    if (plan.k_out.data != nullptr) {
      WriteHead(plan.k_out, plan.dtype, token * plan.k_out.token + h * plan.k_out.head, head);
    }
    if (!stored) continue;
    StoreHead(plan.caches, plan.caches.k, place.k + h * plan.caches.k_head, head);
    StoreHead(plan.caches, plan.caches.v, place.v + h * plan.caches.v_head,
              ReadHead(plan, token, plan.q_heads + plan.kv_heads + h));
  }
}

}  // namespace

Status QkNormRopeStoreCpu(const QkNormRopeStoreArgs& args) {
  FERRY_TRY_ASSIGN(const QkNormRopeStorePlan plan, PlanQkNormRopeStore(args));
  // All positions and slots are checked before anything is written, so that an error changes
  // nothing.
  for (std::uint32_t token = 0; token < plan.tokens; ++token) {
    const std::int64_t position = plan.positions[token];
    if (position >= 0 && position < plan.most_positions) continue;
    return Error(Code::kInvalidArgument,
                 fmt::format("qk_norm_rope_store: positions[{}] is {}; cos_sin_cache has 0 to {}",
                             token, position, plan.most_positions - 1));
  }
  if (plan.caches.k != nullptr) {
    FERRY_TRY(CheckSlots("qk_norm_rope_store", plan.caches, plan.tokens));
  }
  for (std::uint32_t token = 0; token < plan.tokens; ++token) DoToken(plan, token);
  return Ok();
}

}  // namespace ferry::kernels
