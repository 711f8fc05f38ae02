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
  FERRY_TRY(tokens.IsView(3, 3));
  FERRY_TRY(tokens.HasType(kFloats));
  Tensor one = tokens.tensor;
  one.shape[0] = 1;
  if (!one.IsContiguous()) return tokens.Wrong("contiguous along its last two sizes");
  if (tokens.tensor.shape[0] > kMostRows) return tokens.Wrong("of at most 2^31 - 1 tokens");
  return Ok();
}

CacheArguments CachesOf(const StoreKvCacheArgs& args) {
  return {kStoreName, args.k_cache, args.v_cache, args.slots, args.k_scale, args.v_scale};
}

// A token's heads are one row.
bool TokensAreAligned(Tensor tokens) {
  tokens.shape[1] = 1;
  return RowsAreAligned(tokens, 16);
}

std::uint32_t StoreWordsOf(StoreForm form) {
  switch (form) {
    case StoreForm::kOneWord: return 1;
    case StoreForm::kFourWords: return 4;
    case StoreForm::kTwoWords:
    case StoreForm::kEngine: break;
  }
  return 2;
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchStoreKvCache(const StoreKvCachePlan& plan, cuda::StreamRef stream);
#else
static Status LaunchStoreKvCache(const StoreKvCachePlan&, cuda::StreamRef) {
  return NoDeviceCode(kStoreName);
}
#endif

Status TakeForm(StoreForm form, StoreKvCachePlan* plan) {
  constexpr std::int64_t kMostEngineBytes = 4096;  // of a token's k
  const bool copied = plan->wide && plan->caches.dtype == plan->dtype &&
                      plan->cols * SizeOf(plan->dtype) <= kMostEngineBytes;
  if (form == StoreForm::kEngine && !copied) form = StoreForm::kTwoWords;
  const std::int64_t packed = plan->wide ? 16 / SizeOf(plan->dtype) : 1;
  FERRY_TRY_ASSIGN(plan->tiles,
                   TileRows(kStoreName, plan->tokens, plan->cols / packed, StoreWordsOf(form)));
  plan->form = form;
  constexpr std::uint32_t kEngineBlocks = 132 * 3;  // three for each multiprocessor of an H200
  plan->blocks = form == StoreForm::kEngine
                     ? std::min((plan->tokens + kStoreWarps - 1) / kStoreWarps, kEngineBlocks)
                     : plan->tiles.blocks;
  return Ok();
}

Result<StoreKvCachePlan> PlanStoreKvCache(const StoreKvCacheArgs& args) {
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
  FERRY_TRY(TakeForm(StoreForm::kOneWord, &plan));
  plan.early = true;
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
