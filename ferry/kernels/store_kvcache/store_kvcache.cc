// Checks arguments, plans and launches the store to a paged cache.

#include "ferry/kernels/store_kvcache/store_kvcache.h"

#include <algorithm>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/op.h"
#include "ferry/kernels/rows.h"
#include "ferry/kernels/store_kvcache/store_kvcache_plan.h"

namespace ferry::kernels {
namespace {

constexpr const char* kStoreName = "store_kvcache";

Status CheckTokens(const Argument& tokens) {
  if (tokens.tensor.rank == 2) {
    return tokens.Wrong("[tokens, heads, head_dim], or a row of as many elements as k_cache's");
  }
  FERRY_TRY(tokens.IsView(3, 3));
  FERRY_TRY(tokens.HasType(kFloats));
  // Only the stride between tokens is free, so that a token is one row of heads * head_dim
  // elements.
  Tensor one = tokens.tensor;
  one.shape[0] = 1;
  if (!one.IsContiguous()) return tokens.Wrong("contiguous along its last two sizes");
  if (tokens.tensor.shape[0] > kMaxRows) return tokens.Wrong("of at most 2^31 - 1 tokens");
  return Ok();
}

// A row of all heads of a token, as a projection's output has it, as the heads that the cache has.
Tensor AsHeads(Tensor row, const Tensor& cache) {
  if (row.rank != 2 || cache.rank != 4 || cache.shape[2] <= 0 || cache.shape[3] <= 0) return row;
  if (row.shape[1] / cache.shape[3] != cache.shape[2] || row.shape[1] % cache.shape[3] != 0) {
    return row;
  }
  row.rank = 3;
  row.shape = {row.shape[0], cache.shape[2], cache.shape[3]};
  row.stride = {row.stride[0], row.stride[1] * cache.shape[3], row.stride[1]};
  return row;
}

CacheArguments CachesOf(const StoreKvCacheArgs& args) {
  return {kStoreName, args.k_cache, args.v_cache, args.slots, args.k_scale, args.v_scale};
}

// A token's heads are one row.
bool TokensAreAligned(Tensor tokens) {
  tokens.shape[1] = 1;
  return RowsAreAligned(tokens, 16);
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchStoreKvCache(const StoreKvCachePlan& plan, cuda::StreamRef stream);
#else
static Status LaunchStoreKvCache(const StoreKvCachePlan&, cuda::StreamRef) {
  return NoDeviceCode(kStoreName);
}
#endif

Result<StoreKvCachePlan> PlanStoreKvCache(const StoreKvCacheArgs& given) {
  StoreKvCacheArgs args = given;
  args.k = AsHeads(given.k, given.k_cache);
  args.v = AsHeads(given.v, given.v_cache);
  const Argument k{kStoreName, "k", args.k};
  const Argument v{kStoreName, "v", args.v};
  FERRY_TRY(CheckTokens(k));
  FERRY_TRY(CheckTokens(v));
  FERRY_TRY(v.HasTypeOf(k));
  FERRY_TRY(v.HasShapeOf(k));
  const auto& shape = args.k.shape;
  StoreKvCachePlan plan;
  FERRY_TRY_ASSIGN(plan.caches,
                   CheckCaches(CachesOf(args), {args.k.dtype, shape[0], shape[1], shape[2]}));
  const Argument k_cache{kStoreName, "k_cache", args.k_cache};
  const Argument v_cache{kStoreName, "v_cache", args.v_cache};
  for (const Argument& read : {k, v}) {
    FERRY_TRY(k_cache.IsApartFrom(read));
    FERRY_TRY(v_cache.IsApartFrom(read));
  }
  if (args.k.Numel() == 0) return plan;
  plan.k = args.k.data;
  plan.v = args.v.data;
  plan.k_token = args.k.stride[0];
  plan.v_token = args.v.stride[0];
  plan.cols = shape[1] * shape[2];
  plan.dtype = args.k.dtype;
  const std::int64_t packed = 16 / SizeOf(plan.dtype);
  plan.wide = plan.cols % packed == 0 && TokensAreAligned(args.k) && TokensAreAligned(args.v) &&
              CachesAreAligned(CachesOf(args), packed * SizeOf(plan.caches.dtype));
  plan.tokens = static_cast<std::uint32_t>(shape[0]);
  FERRY_TRY_ASSIGN(
      plan.tiles, TileRows(kStoreName, plan.tokens, plan.wide ? plan.cols / packed : plan.cols, 1));
  return plan;
}

Status StoreKvCache(const StoreKvCacheArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const StoreKvCachePlan plan, PlanStoreKvCache(args));
  return plan.tokens == 0 ? Ok() : LaunchStoreKvCache(plan, stream);
}

const cuda::Kernel kStoreKvCacheKernel =
    MakeKernel<StoreKvCache, StoreKvCacheCpu, &StoreKvCacheArgs::k, &StoreKvCacheArgs::v,
               &StoreKvCacheArgs::k_cache, &StoreKvCacheArgs::v_cache, &StoreKvCacheArgs::slots>(
        kStoreName);

}  // namespace ferry::kernels
