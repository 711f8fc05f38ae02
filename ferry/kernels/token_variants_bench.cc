#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store_plan.h"
#include "ferry/kernels/rope/rope_plan.h"
#include "ferry/kernels/store_kvcache/store_kvcache_plan.h"
#include "ferry/kernels/testing/variant_bench.h"

// rope, store_kvcache and qk_norm_rope_store in all their forms. Heads as Qwen3-8B has them, or
// Qwen3-0.6B.
namespace ferry::kernels {

Status LaunchRope(const RopePlan& plan, cuda::StreamRef stream);
Status LaunchStoreKvCache(const StoreKvCachePlan& plan, cuda::StreamRef stream);
Status LaunchQkNormRopeStore(const QkNormRopeStorePlan& plan, cuda::StreamRef stream);

namespace {

using Holds = BenchBuffer::Holds;

constexpr std::int64_t kBenchHead = 128;
constexpr std::int64_t kBenchKvHeads = 8;
constexpr std::int64_t kBenchPositions = 40960;
constexpr std::int64_t kBenchPage = 256;
constexpr std::uint32_t kTokenMultiprocessors = 132;

constexpr cuda::Kernel kRopePlanned{"rope",
                                    [](cuda::StreamRef stream, const void* plan) {
                                      return LaunchRope(*static_cast<const RopePlan*>(plan),
                                                        stream);
                                    },
                                    nullptr};
constexpr cuda::Kernel kStorePlanned{"store_kvcache",
                                     [](cuda::StreamRef stream, const void* plan) {
                                       return LaunchStoreKvCache(
                                           *static_cast<const StoreKvCachePlan*>(plan), stream);
                                     },
                                     nullptr};
constexpr cuda::Kernel kQkPlanned{"qk_norm_rope_store",
                                  [](cuda::StreamRef stream, const void* plan) {
                                    return LaunchQkNormRopeStore(
                                        *static_cast<const QkNormRopeStorePlan*>(plan), stream);
                                  },
                                  nullptr};

// Sizes of checks leave some tokens out.
bool IsForChecks(const BenchSize& size) { return size.count > 1 && size.count % 2 != 0; }

std::vector<std::int64_t> BenchPositions(const BenchSize& size) {
  std::mt19937_64 random(static_cast<std::uint64_t>(size.count));
  std::vector<std::int64_t> positions(static_cast<std::size_t>(size.count));
  for (std::int64_t& position : positions) {
    position = static_cast<std::int64_t>(random() % kBenchPositions);
  }
  return positions;
}

std::vector<std::int32_t> BenchSlots(const BenchSize& size, bool in_order) {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(size.count));
  std::iota(slots.begin(), slots.end(), 0);
  if (!in_order) std::shuffle(slots.begin(), slots.end(), std::mt19937_64(1));
  if (IsForChecks(size)) {
    for (std::size_t i = 0; i < slots.size(); i += 7) slots[i] = -1;
  }
  return slots;
}

Tensor BenchCache(void* data, const BenchSize& size) {
  const std::int64_t page = size.count % kBenchPage == 0 ? kBenchPage : size.count;
  return Tensor::Contiguous(data, size.dtype, {size.count / page, page, kBenchKvHeads, kBenchHead});
}
Tensor BenchHeads(void* data, const BenchSize& size, std::int64_t heads) {
  return Tensor::Contiguous(data, size.dtype, {size.count, heads, kBenchHead});
}
std::uint64_t HeadBytes(const BenchSize& size, std::int64_t heads) {
  return static_cast<std::uint64_t>(size.count * heads * kBenchHead * SizeOf(size.dtype));
}

// A form, and for those whose blocks stay how many a multiprocessor gets.
template <class Form>
struct TokenChoice {
  const char* name;
  Form form;
  bool early = false;
  std::uint32_t resident = 0;
};
template <class Plan, class Form>
void TakeChoice(const TokenChoice<Form>& choice, Plan* plan) {
  plan->early = choice.early;
  if (choice.resident == 0 || plan->form != choice.form) return;
  // In checks few, so that each comes to many tokens.
  const bool checks = plan->tokens % 2 != 0;
  plan->blocks = std::min(plan->tokens, checks ? 10 : kTokenMultiprocessors * choice.resident);
}

// ---- rope -------------------------------------------------------------------------------------

constexpr std::int64_t kRopeQHeads = 32;

RopeArgs BenchRopeArgs(const BenchSize& size, BenchAddresses at) {
  return {
      .q = BenchHeads(at[0], size, kRopeQHeads),
      .k = BenchHeads(at[1], size, kBenchKvHeads),
      .q_out = BenchHeads(at[2], size, kRopeQHeads),
      .k_out = BenchHeads(at[3], size, kBenchKvHeads),
      .positions = Tensor::Contiguous(at[4], DType::kInt64, {size.count}),
      .cos_sin_cache = Tensor::Contiguous(at[5], DType::kFloat32, {kBenchPositions, kBenchHead})};
}

BenchOp RopeOp(const BenchSize& size) {
  BenchOp op;
  op.name = "rope";
  op.bytes = 2 * HeadBytes(size, kRopeQHeads + kBenchKvHeads);
  op.floor = 10;  // of the other number of a pair, and a cosine
  op.Add(Holds::kNumbers, size.dtype, size.count * kRopeQHeads * kBenchHead);
  op.Add(Holds::kNumbers, size.dtype, size.count * kBenchKvHeads * kBenchHead);
  op.Add(Holds::kResults, size.dtype, size.count * kRopeQHeads * kBenchHead);
  op.Add(Holds::kResults, size.dtype, size.count * kBenchKvHeads * kBenchHead);
  op.AddTable(DType::kInt64, BenchPositions(size));
  op.Add(Holds::kSharedNumbers, DType::kFloat32, kBenchPositions * kBenchHead);
  op.on_cpu = [=](BenchAddresses at) { return RopeCpu(BenchRopeArgs(size, at)); };
  using Choice = TokenChoice<RopeForm>;
  for (const Choice& choice :
       {Choice{"numbers", RopeForm::kNumbers}, Choice{"one head", RopeForm::kOneHead},
        Choice{"one head early", RopeForm::kOneHead, true},
        Choice{"two heads", RopeForm::kTwoHeads}, Choice{"four heads", RopeForm::kFourHeads},
        Choice{"five heads", RopeForm::kFiveHeads},
        Choice{"ring of two heads, 4 blocks", RopeForm::kRingOfTwoHeads, false, 4},
        Choice{"ring of two heads, 6 blocks", RopeForm::kRingOfTwoHeads, false, 6},
        Choice{"ring of four heads, 6 blocks", RopeForm::kRingOfFourHeads, false, 6}}) {
    op.variants.push_back({choice.name, [=](const BenchStream& to, BenchAddresses at) -> Status {
                             FERRY_TRY_ASSIGN(RopePlan plan, PlanRope(BenchRopeArgs(size, at)));
                             TakeForm(choice.form, &plan);
                             TakeChoice(choice, &plan);
                             return cuda::LaunchKernel(*to.api, to.stream, kRopePlanned, plan);
                           }});
  }
  return op;
}

// ---- store_kvcache ----------------------------------------------------------------------------

StoreKvCacheArgs BenchStoreArgs(const BenchSize& size, BenchAddresses at) {
  StoreKvCacheArgs args;
  args.k = BenchHeads(at[0], size, kBenchKvHeads);
  args.v = BenchHeads(at[1], size, kBenchKvHeads);
  args.k_cache = BenchCache(at[2], size);
  args.v_cache = BenchCache(at[3], size);
  args.slots = Tensor::Contiguous(at[4], DType::kInt32, {size.count});
  return args;
}

BenchOp StoreOpOf(const BenchSize& size, bool in_order) {
  BenchOp op;
  op.name = in_order ? "store_kvcache in order" : "store_kvcache";
  op.bytes = 4 * HeadBytes(size, kBenchKvHeads);
  const std::int64_t elements = size.count * kBenchKvHeads * kBenchHead;
  op.Add(Holds::kNumbers, size.dtype, elements);
  op.Add(Holds::kNumbers, size.dtype, elements);
  op.Add(Holds::kResults, size.dtype, elements);
  op.Add(Holds::kResults, size.dtype, elements);
  op.AddTable(DType::kInt32, BenchSlots(size, in_order));
  op.on_cpu = [=](BenchAddresses at) { return StoreKvCacheCpu(BenchStoreArgs(size, at)); };
  using Choice = TokenChoice<StoreForm>;
  for (const Choice& choice :
       {Choice{"two words", StoreForm::kTwoWords}, Choice{"one word", StoreForm::kOneWord},
        Choice{"one word early", StoreForm::kOneWord, true},
        Choice{"four words", StoreForm::kFourWords},
        Choice{"engine, 3 blocks", StoreForm::kEngine, false, 3},
        Choice{"engine, 2 blocks", StoreForm::kEngine, false, 2}}) {
    op.variants.push_back({choice.name, [=](const BenchStream& to, BenchAddresses at) -> Status {
                             FERRY_TRY_ASSIGN(StoreKvCachePlan plan,
                                              PlanStoreKvCache(BenchStoreArgs(size, at)));
                             FERRY_TRY(TakeForm(choice.form, &plan));
                             TakeChoice(choice, &plan);
                             return cuda::LaunchKernel(*to.api, to.stream, kStorePlanned, plan);
                           }});
  }
  return op;
}
BenchOp StoreOp(const BenchSize& size) { return StoreOpOf(size, false); }
BenchOp StoreInOrderOp(const BenchSize& size) { return StoreOpOf(size, true); }

// ---- qk_norm_rope_store -----------------------------------------------------------------------

QkNormRopeStoreArgs BenchQkArgs(const BenchSize& size, std::int64_t heads, BenchAddresses at) {
  QkNormRopeStoreArgs args;
  args.qkv =
      Tensor::Contiguous(at[0], size.dtype, {size.count, (heads + 2 * kBenchKvHeads) * kBenchHead});
  args.q_heads = heads;
  args.kv_heads = kBenchKvHeads;
  args.q_weight = Tensor::Contiguous(at[1], size.dtype, {kBenchHead});
  args.k_weight = Tensor::Contiguous(at[2], size.dtype, {kBenchHead});
  args.positions = Tensor::Contiguous(at[3], DType::kInt64, {size.count});
  args.cos_sin_cache = Tensor::Contiguous(at[4], DType::kFloat32, {kBenchPositions, kBenchHead});
  args.q_out = BenchHeads(at[5], size, heads);
  args.k_cache = BenchCache(at[6], size);
  args.v_cache = BenchCache(at[7], size);
  args.slots = Tensor::Contiguous(at[8], DType::kInt32, {size.count});
  return args;
}

BenchOp QkOpOf(const BenchSize& size, std::int64_t heads, const char* name) {
  BenchOp op;
  op.name = name;
  const std::int64_t all = heads + 2 * kBenchKvHeads;
  op.bytes = 2 * HeadBytes(size, all);
  op.floor = 30;  // of the other number of a pair, a weight and a cosine
  const std::int64_t cache = size.count * kBenchKvHeads * kBenchHead;
  op.Add(Holds::kNumbers, size.dtype, size.count * all * kBenchHead);
  op.Add(Holds::kNumbers, size.dtype, kBenchHead);
  op.Add(Holds::kNumbers, size.dtype, kBenchHead);
  op.AddTable(DType::kInt64, BenchPositions(size));
  op.Add(Holds::kSharedNumbers, DType::kFloat32, kBenchPositions * kBenchHead);
  op.Add(Holds::kResults, size.dtype, size.count * heads * kBenchHead);
  op.Add(Holds::kResults, size.dtype, cache);
  op.Add(Holds::kResults, size.dtype, cache);
  op.AddTable(DType::kInt32, BenchSlots(size, false));
  op.on_cpu = [=](BenchAddresses at) { return QkNormRopeStoreCpu(BenchQkArgs(size, heads, at)); };
  using Choice = TokenChoice<QkForm>;
  for (const Choice& choice :
       {Choice{"words", QkForm::kWords}, Choice{"one head", QkForm::kOneHead},
        Choice{"one head early", QkForm::kOneHead, true}, Choice{"two heads", QkForm::kTwoHeads},
        Choice{"two heads early", QkForm::kTwoHeads, true},
        Choice{"four heads", QkForm::kFourHeads},
        Choice{"ring of two heads, 4 blocks", QkForm::kRingOfTwoHeads, false, 4},
        Choice{"ring of four heads, 4 blocks", QkForm::kRingOfFourHeads, false, 4},
        Choice{"ring of four heads, 6 blocks", QkForm::kRingOfFourHeads, false, 6}}) {
    op.variants.push_back({choice.name, [=](const BenchStream& to, BenchAddresses at) -> Status {
                             FERRY_TRY_ASSIGN(QkNormRopeStorePlan plan,
                                              PlanQkNormRopeStore(BenchQkArgs(size, heads, at)));
                             TakeForm(choice.form, &plan);
                             TakeChoice(choice, &plan);
                             return cuda::LaunchKernel(*to.api, to.stream, kQkPlanned, plan);
                           }});
  }
  return op;
}
BenchOp QkOp(const BenchSize& size) { return QkOpOf(size, 32, "qk_norm_rope_store"); }
BenchOp QkOfFewerHeadsOp(const BenchSize& size) {
  return QkOpOf(size, 16, "qk_norm_rope_store of 16");
}

const bool kTokenVariants = RegisterVariants(RopeOp, {1, 16, 256, 4096, 16384}) &&
                            RegisterVariants(StoreOp, {1, 16, 256, 4096, 16384}) &&
                            RegisterVariants(StoreInOrderOp, {4096, 16384}) &&
                            RegisterVariants(QkOp, {1, 16, 256, 4096, 16384}) &&
                            RegisterVariants(QkOfFewerHeadsOp, {1, 4096, 16384});

}  // namespace
}  // namespace ferry::kernels
