// Checks arguments, plans and launches the rotary embedding.

#include "ferry/kernels/rope/rope.h"

#include <algorithm>
#include <bit>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/indices.h"
#include "ferry/kernels/op.h"
#include "ferry/kernels/rope/rope_plan.h"
#include "ferry/kernels/rows.h"

namespace ferry::kernels {
namespace {

constexpr const char* kRopeName = "rope";

Status CheckHeads(const Argument& in, const Argument& out) {
  FERRY_TRY(in.HasType(kFloats));
  FERRY_TRY(in.HasDenseRows());
  FERRY_TRY(out.IsView(3, 3));
  FERRY_TRY(out.HasTypeOf(in));
  FERRY_TRY(out.HasShapeOf(in));
  FERRY_TRY(out.HasDenseRows());
  FERRY_TRY(out.IsWritable());
  return out.IsOrIsApartFrom(in);
}

Status CheckPositions(const RopeArgs& args) {
  FERRY_TRY(CheckIndices({kRopeName, "positions", args.positions}, args.q.shape[0],
                         "one for each token of q"));
  const Argument cache{kRopeName, "cos_sin_cache", args.cos_sin_cache};
  FERRY_TRY(cache.IsView(2, 2));
  FERRY_TRY(cache.HasType(kFloats));
  FERRY_TRY(cache.HasDenseRows());
  const std::int64_t rotated = args.cos_sin_cache.last();
  if (rotated < 2 || rotated % 2 != 0 || rotated > args.q.last()) {
    return cache.Wrong("of an even last size from 2 to that of a head");
  }
  return Ok();
}

// An output may overlap only its own input.
Status CheckApart(const RopeArgs& args) {
  const bool with_k = !args.k.none();
  const Argument q_out{kRopeName, "q_out", args.q_out};
  const Argument k_out{kRopeName, "k_out", args.k_out};
  for (const Argument& read : {Argument{kRopeName, "positions", args.positions},
                               Argument{kRopeName, "cos_sin_cache", args.cos_sin_cache}}) {
    FERRY_TRY(q_out.IsApartFrom(read));
    if (with_k) FERRY_TRY(k_out.IsApartFrom(read));
  }
  if (!with_k) return Ok();
  FERRY_TRY(q_out.IsApartFrom({kRopeName, "k", args.k}));
  FERRY_TRY(k_out.IsApartFrom({kRopeName, "q", args.q}));
  return k_out.IsApartFrom(q_out);
}

Status CheckRope(const RopeArgs& args) {
  const Argument q{kRopeName, "q", args.q};
  const Argument k{kRopeName, "k", args.k};
  FERRY_TRY(q.IsView(3, 3));
  FERRY_TRY(CheckHeads(q, {kRopeName, "q_out", args.q_out}));
  if (!args.k.none()) {
    FERRY_TRY(k.IsView(3, 3));
    FERRY_TRY(k.HasTypeOf(q));
    FERRY_TRY(k.HasShape({args.q.shape[0], args.k.shape[1], args.q.shape[2]},
                         "with the tokens and the head size of q"));
    FERRY_TRY(CheckHeads(k, {kRopeName, "k_out", args.k_out}));
  } else if (!args.k_out.none()) {
    return Argument{kRopeName, "k_out", args.k_out}.Wrong("left out, as k is");
  }
  if (args.q.shape[0] > kMaxRows) return q.Wrong("of at most 2^31 - 1 tokens");
  if (args.q.shape[1] + (args.k.none() ? 0 : args.k.shape[1]) > kMaxRows ||
      args.q.shape[2] > kMaxRows) {
    return q.Wrong("of at most 2^31 - 1 heads of as many elements");
  }
  FERRY_TRY(CheckPositions(args));
  return CheckApart(args);
}

RopeHeads HeadsOf(const Tensor& in, const Tensor& out) {
  if (in.none()) return {};
  return {.in = in.data,
          .out = out.data,
          .in_token = in.stride[0],
          .in_head = in.stride[1],
          .out_token = out.stride[0],
          .out_head = out.stride[1],
          .count = static_cast<std::uint32_t>(in.shape[1])};
}

bool AllAligned(const RopeArgs& args) {
  bool aligned = RowsAreAligned(args.cos_sin_cache, 16);
  for (const Tensor* tensor : {&args.q, &args.k, &args.q_out, &args.k_out}) {
    aligned = aligned && (tensor->none() || RowsAreAligned(*tensor, 16));
  }
  return aligned;
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchRope(const RopePlan& plan, cuda::StreamRef stream);  // rope.cu
#else
static Status LaunchRope(const RopePlan&, cuda::StreamRef) { return NoDeviceCode(kRopeName); }
#endif

Result<RopePlan> PlanRope(const RopeArgs& args) {
  FERRY_TRY(CheckRope(args));
  RopePlan plan;
  plan.q = HeadsOf(args.q, args.q_out);
  plan.k = HeadsOf(args.k, args.k_out);
  const std::uint32_t heads = plan.q.count + plan.k.count;
  if (args.q.shape[0] == 0 || heads == 0) return plan;
  plan.tokens = static_cast<std::uint32_t>(args.q.shape[0]);
  plan.positions = IndicesOf(args.positions);
  plan.cos_sin = args.cos_sin_cache.data;
  plan.cos_sin_dtype = args.cos_sin_cache.dtype;
  plan.cos_sin_stride = args.cos_sin_cache.stride[0];
  plan.most_positions = args.cos_sin_cache.shape[0];
  plan.head_dim = static_cast<std::uint32_t>(args.q.last());
  plan.half = static_cast<std::uint32_t>(args.cos_sin_cache.last() / 2);
  plan.dtype = args.q.dtype;
  // In place, the part of a head that is not rotated is where it belongs already.
  plan.copies_rest = 2 * plan.half < plan.head_dim &&
                     (args.q.data != args.q_out.data || args.k.data != args.k_out.data);
  const auto packed = static_cast<std::uint32_t>(16 / SizeOf(plan.dtype));
  plan.is_neox = args.is_neox;
  const bool aligned = AllAligned(args);
  // In the form kWords a block has a thread for each word of a half of every head of its token.
  const std::uint64_t word_threads = std::uint64_t{std::bit_ceil(plan.half / packed)} * heads;
  if (aligned && plan.half % packed == 0 && !plan.copies_rest &&
      word_threads <= kRopeMaxWordThreads) {
    plan.form = RopeForm::kWords;
    plan.wide = true;
    plan.words = plan.half / packed;
    plan.threads_x = std::bit_ceil(plan.words);
    plan.threads_y = heads;
    return plan;
  }
  // Pairs of neighbours fill words by themselves, and need no words of half of what is rotated.
  const std::uint32_t rotated = args.is_neox ? plan.half : 2 * plan.half;
  plan.form = args.is_neox ? RopeForm::kNumbers : RopeForm::kPairs;
  plan.wide = aligned && rotated % packed == 0;
  plan.words = plan.wide ? rotated / packed : plan.half;
  plan.threads_x = std::min(std::bit_ceil(plan.words), kRopeMaxThreads);
  const std::uint32_t pairs = (heads + kRopeHeads - 1) / kRopeHeads;
  plan.threads_y = std::min(pairs, kRopeMaxThreads / plan.threads_x);
  return plan;
}

Status Rope(const RopeArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const RopePlan plan, PlanRope(args));
  return plan.tokens == 0 ? Ok() : LaunchRope(plan, stream);
}

const cuda::Kernel kRopeKernel =
    MakeKernel<Rope, RopeCpu, &RopeArgs::q, &RopeArgs::k, &RopeArgs::q_out, &RopeArgs::k_out,
               &RopeArgs::positions, &RopeArgs::cos_sin_cache>(kRopeName);

}  // namespace ferry::kernels
