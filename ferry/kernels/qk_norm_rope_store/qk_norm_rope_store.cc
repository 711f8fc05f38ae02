// Checks arguments, plans and launches the fused norm, rotation and cache store.

#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/op.h"
#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store_plan.h"
#include "ferry/kernels/rows.h"

namespace ferry::kernels {
namespace {

constexpr const char* kQkName = "qk_norm_rope_store";
constexpr std::uint32_t kQkWarp = 32;

// The parts of qkv, [tokens, (q_heads + 2 * kv_heads) * head_dim]: views of it, each [tokens,
// heads, head_dim].
struct QkvParts {
  Tensor q;
  Tensor k;
  Tensor v;
};
QkvParts PartsOf(const QkNormRopeStoreArgs& args) {
  const std::int64_t head_dim = args.q_weight.last();
  const auto part = [&](std::int64_t first, std::int64_t heads) {
    Tensor tensor = args.qkv;
    tensor.rank = 3;
    tensor.shape = {args.qkv.shape[0], heads, head_dim};
    tensor.stride = {args.qkv.stride[0], head_dim, 1};
    if (tensor.data != nullptr) {
      tensor.data = static_cast<std::byte*>(tensor.data) + first * head_dim * SizeOf(tensor.dtype);
    }
    return tensor;
  };
  return {part(0, args.q_heads), part(args.q_heads, args.kv_heads),
          part(args.q_heads + args.kv_heads, args.kv_heads)};
}

Status CheckWeights(const QkNormRopeStoreArgs& args, const Argument& qkv) {
  const Argument q_weight{kQkName, "q_weight", args.q_weight};
  const Argument k_weight{kQkName, "k_weight", args.k_weight};
  FERRY_TRY(q_weight.IsView(1, 1));
  FERRY_TRY(q_weight.HasTypeOf(qkv));
  FERRY_TRY(q_weight.IsContiguous());
  FERRY_TRY(k_weight.IsView(1, 1));
  FERRY_TRY(k_weight.HasTypeOf(qkv));
  FERRY_TRY(k_weight.HasShapeOf(q_weight));
  return k_weight.IsContiguous();
}

Status CheckQkv(const QkNormRopeStoreArgs& args) {
  const Argument qkv{kQkName, "qkv", args.qkv};
  FERRY_TRY(qkv.IsView(2, 2));
  FERRY_TRY(qkv.HasType(kFloats));
  FERRY_TRY(qkv.HasDenseRows());
  FERRY_TRY(CheckWeights(args, qkv));
  constexpr std::int64_t kMaxHeads = 1 << 20;
  for (const std::int64_t heads : {args.q_heads, args.kv_heads}) {
    if (heads < 0 || heads > kMaxHeads) {
      return WrongNumber(kQkName, "a number of heads", static_cast<double>(heads),
                         "from 0 to 2^20");
    }
  }
  const std::int64_t head_dim = args.q_weight.last();
  if (head_dim < 2 || head_dim > kMaxHeads) {
    return Argument{kQkName, "q_weight", args.q_weight}.Wrong("of 2 to 2^20 elements");
  }
  FERRY_TRY(qkv.HasShape({args.qkv.shape[0], (args.q_heads + 2 * args.kv_heads) * head_dim},
                         "the heads of q, k and v"));
  if (args.qkv.shape[0] > kMaxRows) return qkv.Wrong("of at most 2^31 - 1 tokens");
  if (args.eps >= 0 && std::isfinite(args.eps)) return Ok();
  return WrongNumber(kQkName, "eps", args.eps, "0 or more");
}

Status CheckRotation(const QkNormRopeStoreArgs& args) {
  FERRY_TRY(CheckIndices({kQkName, "positions", args.positions}, args.qkv.shape[0],
                         "one for each token of qkv"));
  const Argument table{kQkName, "cos_sin_cache", args.cos_sin_cache};
  FERRY_TRY(table.IsView(2, 2));
  FERRY_TRY(table.HasType(kFloats));
  FERRY_TRY(table.HasDenseRows());
  const std::int64_t rotated = args.cos_sin_cache.last();
  if (rotated >= 2 && rotated % 2 == 0 && rotated <= args.q_weight.last()) return Ok();
  return table.Wrong("of an even last size from 2 to that of a head");
}

Status CheckHeadsOut(const Argument& out, const Argument& in, const QkNormRopeStoreArgs& args) {
  FERRY_TRY(out.IsView(3, 3));
  FERRY_TRY(out.HasTypeOf(in));
  FERRY_TRY(out.HasShapeOf(in));
  FERRY_TRY(out.HasDenseRows());
  FERRY_TRY(out.IsWritable());
  FERRY_TRY(out.IsOrIsApartFrom(in));
  // Only q_out may be q itself, and k_out k: each thread reads its words before it writes them.
  // Whatever else is read may be read by another thread later.
  for (const Argument& read :
       {Argument{kQkName, "q_weight", args.q_weight}, Argument{kQkName, "k_weight", args.k_weight},
        Argument{kQkName, "positions", args.positions},
        Argument{kQkName, "cos_sin_cache", args.cos_sin_cache},
        Argument{kQkName, "slots", args.slots}}) {
    FERRY_TRY(out.IsApartFrom(read));
  }
  return Ok();
}

Status CheckOutputs(const QkNormRopeStoreArgs& args, const QkvParts& parts) {
  const Argument q{kQkName, "q of qkv", parts.q};
  const Argument k{kQkName, "k of qkv", parts.k};
  const Argument v{kQkName, "v of qkv", parts.v};
  const Argument q_out{kQkName, "q_out", args.q_out};
  const Argument k_out{kQkName, "k_out", args.k_out};
  FERRY_TRY(CheckHeadsOut(q_out, q, args));
  FERRY_TRY(q_out.IsApartFrom(k));
  FERRY_TRY(q_out.IsApartFrom(v));
  if (args.k_out.none()) return Ok();
  FERRY_TRY(CheckHeadsOut(k_out, k, args));
  FERRY_TRY(k_out.IsApartFrom(q));
  FERRY_TRY(k_out.IsApartFrom(v));
  return k_out.IsApartFrom(q_out);
}

CacheArguments CachesOf(const QkNormRopeStoreArgs& args) {
  return {kQkName, args.k_cache, args.v_cache, args.slots, args.k_scale, args.v_scale};
}

Result<PagedCaches> CheckQkCaches(const QkNormRopeStoreArgs& args) {
  // All three or none; with one of them alone CheckCaches() finds the others wrong.
  if (args.k_cache.none() && args.v_cache.none() && args.slots.none()) return PagedCaches{};
  FERRY_TRY_ASSIGN(PagedCaches caches,
                   CheckCaches(CachesOf(args), {args.qkv.dtype, args.qkv.shape[0], args.kv_heads,
                                                args.q_weight.last()}));
  for (const Argument& cache :
       {Argument{kQkName, "k_cache", args.k_cache}, Argument{kQkName, "v_cache", args.v_cache}}) {
    FERRY_TRY(cache.IsApartFrom({kQkName, "qkv", args.qkv}));
    FERRY_TRY(cache.IsApartFrom({kQkName, "q_out", args.q_out}));
    FERRY_TRY(cache.IsApartFrom({kQkName, "k_out", args.k_out}));
    FERRY_TRY(cache.IsApartFrom({kQkName, "q_weight", args.q_weight}));
    FERRY_TRY(cache.IsApartFrom({kQkName, "k_weight", args.k_weight}));
    FERRY_TRY(cache.IsApartFrom({kQkName, "positions", args.positions}));
    FERRY_TRY(cache.IsApartFrom({kQkName, "cos_sin_cache", args.cos_sin_cache}));
  }
  return caches;
}

// Whether heads can be moved by words: if so, of how many a half is one.
std::uint32_t WordsOfHalf(const QkNormRopeStoreArgs& args, const QkvParts& parts) {
  const std::int64_t head_dim = args.q_weight.last();
  const std::int64_t packed = 16 / SizeOf(args.qkv.dtype);
  const std::int64_t words = head_dim / 2 / packed;
  if (args.cos_sin_cache.last() != head_dim || head_dim % (2 * packed) != 0 || words > kQkWarp) {
    return 0;
  }
  bool aligned = true;
  for (const Tensor* tensor : {&parts.q, &parts.k, &parts.v, &args.q_out, &args.q_weight,
                               &args.k_weight, &args.cos_sin_cache}) {
    aligned = aligned && RowsAreAligned(*tensor, 16);
  }
  if (!args.k_out.none()) aligned = aligned && RowsAreAligned(args.k_out, 16);
  if (!args.k_cache.none()) {
    // A word of 16 bytes becomes `packed` numbers of the cache, fewer bytes where that is e4m3.
    aligned = aligned && CachesAreAligned(CachesOf(args), packed * SizeOf(args.k_cache.dtype));
  }
  return aligned ? static_cast<std::uint32_t>(words) : 0;
}

// How threads share a token's heads.
void DealHeads(QkNormRopeStorePlan* plan) {
  const std::uint32_t heads = plan->q_heads + 2 * plan->kv_heads;
  const bool by_words = plan->words != 0;
  const std::uint32_t together = by_words ? kQkHeads : 1;
  plan->threads_x = by_words ? std::bit_ceil(plan->words) : kQkWarp;
  // The sums shuffle over all lanes of a warp, so a block has no partial one.
  const std::uint32_t step = kQkWarp / plan->threads_x;  // whole warps
  const std::uint32_t wanted = (heads + together - 1) / together;
  plan->threads_y = (wanted + step - 1) / step * step;
  const std::uint32_t most = kQkMaxThreads / plan->threads_x;
  const bool even = plan->q_heads % together == 0 && plan->kv_heads % together == 0;
  plan->form = by_words ? QkForm::kWords : QkForm::kNumbers;
  // Even numbers of heads: a thread's two neighbours then are both of q, or of k, or of v. And all
  // heads of a token must fit the block, as this form has no loop.
  if (by_words && even && plan->threads_y <= most) plan->form = QkForm::kNeighbours;
  plan->threads_y = std::min(plan->threads_y, most);
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchQkNormRopeStore(const QkNormRopeStorePlan& plan, cuda::StreamRef stream);
#else
static Status LaunchQkNormRopeStore(const QkNormRopeStorePlan&, cuda::StreamRef) {
  return NoDeviceCode(kQkName);
}
#endif

Result<QkNormRopeStorePlan> PlanQkNormRopeStore(const QkNormRopeStoreArgs& args) {
  FERRY_TRY(CheckQkv(args));
  FERRY_TRY(CheckRotation(args));
  const QkvParts parts = PartsOf(args);
  FERRY_TRY(CheckOutputs(args, parts));
  QkNormRopeStorePlan plan;
  FERRY_TRY_ASSIGN(plan.caches, CheckQkCaches(args));
  if (args.qkv.Numel() == 0) return plan;
  plan.qkv = args.qkv.data;
  plan.qkv_token = args.qkv.stride[0];
  plan.q_weight = args.q_weight.data;
  plan.k_weight = args.k_weight.data;
  plan.q_out = {args.q_out.data, args.q_out.stride[0], args.q_out.stride[1]};
  if (!args.k_out.none()) {
    plan.k_out = {args.k_out.data, args.k_out.stride[0], args.k_out.stride[1]};
  }
  plan.positions = IndicesOf(args.positions);
  plan.cos_sin = args.cos_sin_cache.data;
  plan.cos_sin_dtype = args.cos_sin_cache.dtype;
  plan.cos_sin_stride = args.cos_sin_cache.stride[0];
  plan.most_positions = args.cos_sin_cache.shape[0];
  plan.tokens = static_cast<std::uint32_t>(args.qkv.shape[0]);
  plan.q_heads = static_cast<std::uint32_t>(args.q_heads);
  plan.kv_heads = static_cast<std::uint32_t>(args.kv_heads);
  plan.head_dim = static_cast<std::uint32_t>(args.q_weight.last());
  plan.half = static_cast<std::uint32_t>(args.cos_sin_cache.last() / 2);
  plan.is_neox = args.is_neox;
  plan.eps = args.eps;
  plan.per_element = static_cast<float>(1.0 / plan.head_dim);  // as rms_norm has it
  plan.dtype = args.qkv.dtype;
  plan.words = WordsOfHalf(args, parts);
  DealHeads(&plan);
  return plan;
}

Status QkNormRopeStore(const QkNormRopeStoreArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const QkNormRopeStorePlan plan, PlanQkNormRopeStore(args));
  return plan.tokens == 0 ? Ok() : LaunchQkNormRopeStore(plan, stream);
}

const cuda::Kernel kQkNormRopeStoreKernel = MakeKernel<
    QkNormRopeStore, QkNormRopeStoreCpu, &QkNormRopeStoreArgs::qkv, &QkNormRopeStoreArgs::q_weight,
    &QkNormRopeStoreArgs::k_weight, &QkNormRopeStoreArgs::positions,
    &QkNormRopeStoreArgs::cos_sin_cache, &QkNormRopeStoreArgs::q_out, &QkNormRopeStoreArgs::k_out,
    &QkNormRopeStoreArgs::k_cache, &QkNormRopeStoreArgs::v_cache, &QkNormRopeStoreArgs::slots>(
    kQkName);

}  // namespace ferry::kernels
