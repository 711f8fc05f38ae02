// Benchmark cases of the ops between a projection and attention. Heads that are read or written
// count once in the bytes; positions, slots, weights and cosines, which all layers and heads
// share, do not count.

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store.h"
#include "ferry/kernels/rms_norm/rms_norm.h"
#include "ferry/kernels/rope/rope.h"
#include "ferry/kernels/store_kvcache/store_kvcache.h"
#include "tools/bench/kernels/kernel_case.h"

namespace ferry::tools {
namespace {

using kernels::DType;
using kernels::Tensor;

constexpr std::int64_t kHeadSize = 128;
constexpr std::int64_t kBlock = 256;  // tokens of a page

struct TokensOfCase {
  std::int64_t tokens;
  std::int64_t heads;  // of q
  std::int64_t kv_heads;
  std::int64_t positions;  // of the cosines' table
};

std::uint64_t HeadBytes(const TokensOfCase& of, std::int64_t heads) {
  return static_cast<std::uint64_t>(of.tokens * heads * kHeadSize) * 2;
}

KernelCase NewTokenCase(const char* op, const TokensOfCase& of) {
  KernelCase one;
  one.op = op;
  one.sizes = {{"tokens", of.tokens}, {"heads", of.heads}, {"kv_heads", of.kv_heads}};
  one.units = of.tokens;
  return one;
}

std::vector<std::int64_t> RandomPositions(const TokensOfCase& of) {
  std::mt19937_64 random(static_cast<std::uint64_t>(of.tokens));
  std::vector<std::int64_t> positions(static_cast<std::size_t>(of.tokens));
  for (std::int64_t& position : positions) {
    position = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(of.positions));
  }
  return positions;
}

// Caches have just as many slots as there are tokens, so that all of them are written.
CaseTensor AddCache(KernelCase* one, DType dtype, const TokensOfCase& of) {
  const std::int64_t block = std::min(kBlock, of.tokens);
  return one->AddResults(dtype, {of.tokens / block, block, of.kv_heads, kHeadSize});
}

std::vector<std::int32_t> ShuffledSlots(const TokensOfCase& of) {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(of.tokens));
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937_64(1));
  return slots;
}

// q and k, read and written.
KernelCase RopeCase(const TokensOfCase& of, bool is_neox) {
  KernelCase one = NewTokenCase("rope", of);
  if (!is_neox) one.variant = "neighbours";
  one.terms = [](std::int64_t) { return 2.0; };  // sums of two products of numbers in [-1, 1)
  constexpr DType kType = DType::kBfloat16;
  const auto q = one.AddNumbers(kType, {of.tokens, of.heads, kHeadSize});
  const auto k = one.AddNumbers(kType, {of.tokens, of.kv_heads, kHeadSize});
  const auto q_out = one.AddResults(kType, {of.tokens, of.heads, kHeadSize});
  const auto k_out = one.AddResults(kType, {of.tokens, of.kv_heads, kHeadSize});
  const auto positions = one.AddTable(DType::kInt64, {of.tokens}, RandomPositions(of));
  const auto cosines = one.AddSharedNumbers(DType::kFloat32, {of.positions, kHeadSize});
  one.bytes = 2 * HeadBytes(of, of.heads + of.kv_heads);
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    return to.Put(kernels::kRopeKernel,
                  kernels::RopeArgs{to.Of(q, at), to.Of(k, at), to.Of(q_out, at), to.Of(k_out, at),
                                    to.Of(positions, at), cosines.At(at), is_neox});
  };
  return one;
}

// k and v are read, and written with the caches' elements.
KernelCase StoreCase(const TokensOfCase& of, DType cache) {
  KernelCase one = NewTokenCase("store_kvcache", of);
  if (cache != DType::kBfloat16) one.variant = fmt::format("{} caches", kernels::NameOf(cache));
  constexpr DType kType = DType::kBfloat16;
  const std::int64_t elements = of.tokens * of.kv_heads * kHeadSize;
  const auto k = one.AddNumbers(kType, {of.tokens, of.kv_heads, kHeadSize});
  const auto v = one.AddNumbers(kType, {of.tokens, of.kv_heads, kHeadSize});
  const auto k_cache = AddCache(&one, cache, of);
  const auto v_cache = AddCache(&one, cache, of);
  const auto slots = one.AddTable(DType::kInt32, {of.tokens}, ShuffledSlots(of));
  one.bytes = static_cast<std::uint64_t>(2 * elements * (2 + kernels::SizeOf(cache)));
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    kernels::StoreKvCacheArgs args;
    args.k = to.Of(k, at);
    args.v = to.Of(v, at);
    args.k_cache = k_cache.At(at);
    args.v_cache = v_cache.At(at);
    args.slots = to.Of(slots, at);
    return to.Put(kernels::kStoreKvCacheKernel, args);
  };
  return one;
}

// The buffers of the fused op and of the ops that it replaces, which need k beside.
struct FusedBuffers {
  CaseTensor qkv, q_weight, k_weight, positions, cosines, q_out, k_out, k_cache, v_cache, slots;
};

FusedBuffers AddFusedBuffers(KernelCase* one, const TokensOfCase& of, bool with_k_out) {
  constexpr DType kType = DType::kBfloat16;
  // Two roundings of the norm, before a rotation of what is normalised: numbers in [-1, 1) are at
  // most 1.8 times their root mean square, and two are added up.
  one->roundings = {.of_results = 1, .of_terms = 2};
  one->terms = [](std::int64_t) { return 3.6; };
  const std::int64_t all_heads = of.heads + 2 * of.kv_heads;
  FusedBuffers b{};
  b.qkv = one->AddNumbers(kType, {of.tokens, all_heads * kHeadSize});
  b.q_weight = one->AddNumbers(kType, {kHeadSize});
  b.k_weight = one->AddNumbers(kType, {kHeadSize});
  b.positions = one->AddTable(DType::kInt64, {of.tokens}, RandomPositions(of));
  b.cosines = one->AddSharedNumbers(DType::kFloat32, {of.positions, kHeadSize});
  b.q_out = one->AddResults(kType, {of.tokens, of.heads, kHeadSize});
  if (with_k_out) b.k_out = one->AddResults(kType, {of.tokens, of.kv_heads, kHeadSize});
  b.k_cache = AddCache(one, kType, of);
  b.v_cache = AddCache(one, kType, of);
  b.slots = one->AddTable(DType::kInt32, {of.tokens}, ShuffledSlots(of));
  return b;
}

kernels::QkNormRopeStoreArgs FusedArgs(const KernelStream& to, const FusedBuffers& b,
                                       const TokensOfCase& of, KernelAddresses at) {
  kernels::QkNormRopeStoreArgs args;
  args.qkv = to.Of(b.qkv, at);
  args.q_heads = of.heads;
  args.kv_heads = of.kv_heads;
  args.q_weight = b.q_weight.At(at);
  args.k_weight = b.k_weight.At(at);
  args.positions = to.Of(b.positions, at);
  args.cos_sin_cache = b.cosines.At(at);
  args.q_out = to.Of(b.q_out, at);
  args.k_cache = b.k_cache.At(at);
  args.v_cache = b.v_cache.At(at);
  args.slots = to.Of(b.slots, at);
  return args;
}

// qkv is read; q, k and v are written.
std::uint64_t FusedBytes(const TokensOfCase& of) {
  return 2 * HeadBytes(of, of.heads + 2 * of.kv_heads);
}

KernelCase FusedCase(const TokensOfCase& of) {
  KernelCase one = NewTokenCase("qk_norm_rope_store", of);
  const FusedBuffers b = AddFusedBuffers(&one, of, /*with_k_out=*/false);
  one.bytes = FusedBytes(of);
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    return to.Put(kernels::kQkNormRopeStoreKernel, FusedArgs(to, b, of, at));
  };
  return one;
}

// Heads of each token's row of qkv, from one on.
Tensor HeadsOf(const Tensor& qkv, std::int64_t from, std::int64_t heads) {
  Tensor part = Tensor::Contiguous(static_cast<std::byte*>(qkv.data) + from * kHeadSize * 2,
                                   qkv.dtype, {qkv.shape[0], heads, kHeadSize});
  part.stride[0] = qkv.stride[0];
  return part;
}

// The same by ops that each do one thing: rms_norm of q and of k, rope in place, store. Bytes are
// those of the fused op, so that rates compare as times do.
KernelCase SeparateCase(const TokensOfCase& of) {
  KernelCase one = NewTokenCase("qk_norm_rope_store", of);
  one.variant = "separate ops";
  const FusedBuffers b = AddFusedBuffers(&one, of, /*with_k_out=*/true);
  one.bytes = FusedBytes(of);
  one.launch = [=](const KernelStream& to, KernelAddresses at) -> Status {
    const kernels::QkNormRopeStoreArgs fused = FusedArgs(to, b, of, at);
    const Tensor k_out = to.Of(b.k_out, at);
    const kernels::RmsNormArgs q{.x = HeadsOf(fused.qkv, 0, of.heads),
                                 .weight = fused.q_weight,
                                 .out = fused.q_out,
                                 .eps = fused.eps};
    const kernels::RmsNormArgs k{.x = HeadsOf(fused.qkv, of.heads, of.kv_heads),
                                 .weight = fused.k_weight,
                                 .out = k_out,
                                 .eps = fused.eps};
    const kernels::RopeArgs rope{.q = fused.q_out,
                                 .k = k_out,
                                 .q_out = fused.q_out,
                                 .k_out = k_out,
                                 .positions = fused.positions,
                                 .cos_sin_cache = fused.cos_sin_cache};
    kernels::StoreKvCacheArgs store;
    store.k = k_out;
    store.v = HeadsOf(fused.qkv, of.heads + of.kv_heads, of.kv_heads);
    store.k_cache = fused.k_cache;
    store.v_cache = fused.v_cache;
    store.slots = fused.slots;
    FERRY_TRY(to.Put(kernels::kRmsNormKernel, q));
    FERRY_TRY(to.Put(kernels::kRmsNormKernel, k));
    FERRY_TRY(to.Put(kernels::kRopeKernel, rope));
    return to.Put(kernels::kStoreKvCacheKernel, store);
  };
  return one;
}

}  // namespace

void AddTokenCases(const KernelCaseOptions& options, std::vector<KernelCase>* cases) {
  const std::vector<std::int64_t> tokens = options.tiny
                                               ? std::vector<std::int64_t>{1, 16}
                                               : std::vector<std::int64_t>{1, 16, 256, 4096, 16384};
  // Sizes of Qwen3-8B and Qwen3-0.6B.
  constexpr std::int64_t kKvHeads = 8;
  constexpr std::int64_t kHeads[] = {32, 16};
  const std::int64_t positions = options.tiny ? 32 : 40960;
  for (const bool is_neox : {true, false}) {
    for (const std::int64_t count : tokens) {
      cases->push_back(RopeCase({count, kHeads[0], kKvHeads, positions}, is_neox));
    }
  }
  for (const std::int64_t count : tokens) {
    const TokensOfCase of{count, kHeads[0], kKvHeads, positions};
    cases->push_back(StoreCase(of, DType::kBfloat16));
    cases->push_back(StoreCase(of, DType::kFloat8E4m3));
  }
  for (const std::int64_t heads : kHeads) {
    for (const std::int64_t count : tokens) {
      const TokensOfCase of{count, heads, kKvHeads, positions};
      cases->push_back(FusedCase(of));
      cases->push_back(SeparateCase(of));
    }
  }
}

}  // namespace ferry::tools
