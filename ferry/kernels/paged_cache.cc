// Implements checks and address arithmetic of paged key/value caches.

#include "ferry/kernels/paged_cache.h"

#include <fmt/core.h>

#include <cmath>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/number.h"
#include "ferry/kernels/rows.h"

namespace ferry::kernels {
namespace {

Status CheckCache(const Argument& cache, const TokensToStore& tokens) {
  FERRY_TRY(cache.IsView(4, 4));
  if (tokens.dtype == DType::kFloat8E4m3) {
    FERRY_TRY(cache.HasType({tokens.dtype}));
  } else {
    FERRY_TRY(cache.HasType({tokens.dtype, DType::kFloat8E4m3}));
  }
  const Tensor& tensor = cache.tensor;
  FERRY_TRY(cache.HasShape({tensor.shape[0], tensor.shape[1], tokens.heads, tokens.head_dim},
                           "with the heads and the head size of k"));
  FERRY_TRY(cache.HasDenseRows());
  // Slots are int32; the sizes are compared first, so that their product cannot overflow.
  if (tensor.shape[0] > kMaxRows || tensor.shape[1] > kMaxRows ||
      tensor.shape[0] * tensor.shape[1] > kMaxRows) {
    return cache.Wrong("one of at most 2^31 - 1 slots");
  }
  return cache.IsWritable();
}

bool HeadsAreARow(const Tensor& cache) {
  return cache.shape[2] <= 1 || cache.stride[2] == cache.shape[3];
}

Status CheckCacheScale(const char* op, const char* name, float scale) {
  if (!(scale > 0 && std::isfinite(scale))) return WrongNumber(op, name, scale, "above 0");
  if (std::isfinite(1 / scale)) return Ok();  // which numbers are multiplied by
  return WrongNumber(op, name, scale, "so great that 1 by it is finite");
}

}  // namespace

Result<PagedCaches> CheckCaches(const CacheArguments& arguments, const TokensToStore& tokens) {
  const Argument k{arguments.op, "k_cache", arguments.k_cache};
  const Argument v{arguments.op, "v_cache", arguments.v_cache};
  const Argument slots{arguments.op, "slots", arguments.slots};
  FERRY_TRY(CheckCache(k, tokens));
  FERRY_TRY(CheckCache(v, tokens));
  FERRY_TRY(v.HasTypeOf(k));
  FERRY_TRY(v.HasShapeOf(k));
  FERRY_TRY(v.IsApartFrom(k));
  FERRY_TRY(CheckIndices(slots, tokens.tokens, "one for each token"));
  FERRY_TRY(k.IsApartFrom(slots));
  FERRY_TRY(v.IsApartFrom(slots));
  FERRY_TRY(CheckCacheScale(arguments.op, "k_scale", arguments.k_scale));
  FERRY_TRY(CheckCacheScale(arguments.op, "v_scale", arguments.v_scale));
  PagedCaches caches;
  caches.k = arguments.k_cache.data;
  caches.v = arguments.v_cache.data;
  caches.slots = IndicesOf(arguments.slots);
  caches.k_block = arguments.k_cache.stride[0];
  caches.k_place = arguments.k_cache.stride[1];
  caches.v_block = arguments.v_cache.stride[0];
  caches.v_place = arguments.v_cache.stride[1];
  caches.k_head = arguments.k_cache.stride[2];
  caches.v_head = arguments.v_cache.stride[2];
  if (!HeadsAreARow(arguments.k_cache) || !HeadsAreARow(arguments.v_cache)) {
    caches.apart = static_cast<std::uint32_t>(tokens.head_dim);
  }
  caches.slot_count = arguments.k_cache.shape[0] * arguments.k_cache.shape[1];
  // If a cache has no slots, every slot is out of range; checked before the division.
  caches.block_size =
      static_cast<std::uint32_t>(arguments.k_cache.shape[1] > 0 ? arguments.k_cache.shape[1] : 1);
  caches.dtype = arguments.k_cache.dtype;
  if (caches.dtype == DType::kFloat8E4m3) {
    // Multiplied by, since a division for each element costs more; the CPU form does the same.
    caches.k_inverse = 1 / arguments.k_scale;
    caches.v_inverse = 1 / arguments.v_scale;
  }
  return caches;
}

bool CachesAreAligned(const CacheArguments& arguments, std::int64_t bytes) noexcept {
  const Tensor& k = arguments.k_cache;
  const Tensor& v = arguments.v_cache;
  const bool rows = HeadsAreARow(k) && HeadsAreARow(v);
  const auto aligned = [&](Tensor cache) {
    if (rows) {
      cache.rank = 3;
      cache.shape[2] = 1;
    }
    return RowsAreAligned(cache, bytes) &&
           (rows || cache.last() * SizeOf(cache.dtype) % bytes == 0);
  };
  return aligned(k) && aligned(v);
}

Status CheckSlots(const char* op, const PagedCaches& caches, std::int64_t tokens) {
  for (std::int64_t token = 0; token < tokens; ++token) {
    if (caches.slots[token] < caches.slot_count) continue;
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: slots[{}] is {}; the caches have {} slots, and a token that is "
                             "not to be stored has a negative one",
                             op, token, caches.slots[token], caches.slot_count));
  }
  return Ok();
}

void StoreInCache(void* cache, DType dtype, std::int64_t index, float value,
                  float inverse) noexcept {
  WriteFloat(cache, dtype, index, dtype == DType::kFloat8E4m3 ? value * inverse : value);
}

}  // namespace ferry::kernels
