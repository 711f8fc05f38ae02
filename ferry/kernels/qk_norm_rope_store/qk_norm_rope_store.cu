// Kernels of the fused norm, rotation and cache store.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/prim/reduce.cuh"
#include "ferry/cuda/prim/trap.cuh"
#include "ferry/kernels/cache_store.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store_plan.h"
#include "ferry/kernels/rotation.cuh"

namespace ferry::kernels {
namespace {

using QkPlan = QkNormRopeStorePlan;

// Heads that a thread has in flight at once.
constexpr int kTogether = static_cast<int>(kQkHeads);
// Blocks of DoNeighbours() that share a multiprocessor, which 64 registers to a thread allow. On
// sm_120 ptxas needs 72, and everywhere more than 64 for pairs of neighbours.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kNeighbourBlocks = 3;
#else
constexpr int kNeighbourBlocks = 4;
#endif
// Blocks of DoHeadsByElement() that share a multiprocessor; 0 leaves it to ptxas, which for all but
// sm_90 would choose more of them than the registers of each allow.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
constexpr int kElementBlocks = 4;
#else
constexpr int kElementBlocks = 0;
#endif

// The token's place in the caches, where it has one.
struct TokenPlace {
  bool stored;
  CachePlace at;
};
__device__ __forceinline__ TokenPlace PlaceOfSlot(const QkPlan& plan, std::int32_t slot) {
  if (slot < 0) return {};
  // Slots lie in GPU memory, so the host cannot have checked them. A release build drops the token.
  if (slot >= plan.caches.slot_count) {
    prim::TrapInDebug();
    return {};
  }
  return {true, PlaceOf(plan.caches, static_cast<std::uint32_t>(slot))};
}
__device__ __forceinline__ TokenPlace PlaceOfToken(const QkPlan& plan, std::uint32_t token) {
  if (plan.caches.k == nullptr) return {};
  return PlaceOfSlot(plan, LoadSlot(plan.caches.slots, token));
}

// Where a head of the token goes: to `out`, if any, and to `cache`, if any.
template <class T>
struct HeadTarget {
  const T* weight;  // null: v, which is only stored
  T* out;
  void* cache;
  std::int64_t cache_at;
  float inverse;
};
template <class T>
__device__ __forceinline__ HeadTarget<T> TargetOf(const QkPlan& plan, std::uint32_t token,
                                                  std::uint32_t head, const TokenPlace& place) {
  HeadTarget<T> target{};
  const auto out = [token](const HeadsOut& heads, std::uint32_t index) {
    return static_cast<T*>(heads.data) + token * heads.token + index * heads.head;
  };
  if (head < plan.q_heads) {
    target.weight = static_cast<const T*>(plan.q_weight);
    target.out = out(plan.q_out, head);
    return target;
  }
  // Heads of a token lie in the order q, k, v.
  const bool of_k = head < plan.q_heads + plan.kv_heads;
  const std::uint32_t index = head - plan.q_heads - (of_k ? 0 : plan.kv_heads);
  if (of_k) {
    target.weight = static_cast<const T*>(plan.k_weight);
    if (plan.k_out.data != nullptr) target.out = out(plan.k_out, index);
  }
  if (place.stored) {
    target.cache = of_k ? plan.caches.k : plan.caches.v;
    target.cache_at =
        (of_k ? place.at.k : place.at.v) + index * (of_k ? plan.caches.k_head : plan.caches.v_head);
    target.inverse = of_k ? plan.caches.k_inverse : plan.caches.v_inverse;
  }
  return target;
}

// To both places, of what has been rounded to T already.
template <class T, int kWidth, bool kNarrow>
__device__ __forceinline__ void WriteTo(const HeadTarget<T>& target, std::uint32_t at,
                                        const float (&values)[kWidth]) {
  if (target.out != nullptr) Store<T, kWidth>(target.out + at, values);
  if (target.cache == nullptr) return;
  if constexpr (kNarrow) {
    StoreNarrow<kWidth>(target.cache, target.cache_at + at, values, target.inverse);
  } else {
    Store<T, kWidth>(static_cast<T*>(target.cache) + target.cache_at + at, values);
  }
}

template <class T, int kWidth>
__device__ __forceinline__ void NormaliseWord(const T* weights, float scale,
                                              float (&values)[kWidth]) {
  float weight[kWidth];
  LoadWeights<T, kWidth>(weights, weight);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    // Rounded twice, since rms_norm and rope as separate ops would store the value in between: the
    // fused op has the same bits.
    values[j] = RoundTo<T>(RoundTo<T>(values[j] * scale) * weight[j]);
  }
}

__device__ __forceinline__ AngleRow AnglesOf(const QkPlan& plan, std::int64_t position) {
  return {plan.cos_sin, plan.cos_sin_dtype, position * plan.cos_sin_stride, plan.half};
}

template <class T, bool kNeox, int kWidth>
__device__ __forceinline__ void RotateWords(const float (&cos)[kWidth], const float (&sin)[kWidth],
                                            float (&low)[kWidth], float (&high)[kWidth]) {
  TurnWords<kNeox>(cos, sin, low, high);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    low[j] = RoundTo<T>(low[j]);
    high[j] = RoundTo<T>(high[j]);
  }
}

template <int kWidth>
__device__ __forceinline__ float SquaresOf(const float (&low)[kWidth],
                                           const float (&high)[kWidth]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum = fmaf(low[j], low[j], fmaf(high[j], high[j], sum));
  return sum;
}

// A token's block. Threads are (words of a half, heads): each has the same word of both halves of
// kTogether heads in registers, from the loads to the stores, and the sums are over neighbours, so
// that nobody waits for a block.
template <class T, bool kNarrow, bool kNeox>
__global__ void __launch_bounds__(kQkMaxThreads) DoHeads(const __grid_constant__ QkPlan plan) {
  constexpr int kWidth = kPacked<T>;
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t heads = plan.q_heads + 2 * plan.kv_heads;
  const std::uint32_t at = threadIdx.x * kWidth;
  const bool has_word = at < plan.half;  // the others only take part in the sums
  const T* const qkv = static_cast<const T*>(plan.qkv) + token * plan.qkv_token + at;
  const std::int64_t position = LoadIndex(plan.positions, token);
  // The whole block has the same position, so no thread is left waiting.
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  const TokenPlace place = PlaceOfToken(plan, token);
  float cos[kWidth];
  float sin[kWidth];
  if (has_word) {
    LoadWordAngles<kNeox>(AnglesOf(plan, position), at, cos, sin);
  }
  // As often for all threads of a warp, because of the sums.
  for (std::uint32_t base = 0; base < heads; base += kTogether * blockDim.y) {
    float low[kTogether][kWidth] = {};
    float high[kTogether][kWidth] = {};
    float scale[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::uint32_t head = base + i * blockDim.y + threadIdx.y;
      if (has_word && head < heads) {
        Load<T, kWidth>(qkv + std::int64_t{head} * plan.head_dim, low[i]);
        Load<T, kWidth>(qkv + std::int64_t{head} * plan.head_dim + plan.half, high[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float squares = prim::WarpSum(SquaresOf(low[i], high[i]), blockDim.x);
      scale[i] = rsqrtf(fmaf(squares, plan.per_element, plan.eps));
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::uint32_t head = base + i * blockDim.y + threadIdx.y;
      if (has_word && head < heads) {
        const HeadTarget<T> target = TargetOf<T>(plan, token, head, place);
        if (target.weight != nullptr) {
          NormaliseWord<T, kWidth>(target.weight + at, scale[i], low[i]);
          NormaliseWord<T, kWidth>(target.weight + plan.half + at, scale[i], high[i]);
          RotateWords<T, kNeox>(cos, sin, low[i], high[i]);
        }
        WriteTo<T, kWidth, kNarrow>(target, at, low[i]);
        WriteTo<T, kWidth, kNarrow>(target, at + plan.half, high[i]);
      }
    }
  }
}

// The same for any size and alignment: a warp to a head, twice over its elements. What a thread
// writes in place nobody else reads any more: all have read it for the sum.
template <class T, bool kNarrow>
__global__ void __launch_bounds__(kQkMaxThreads, kElementBlocks)
    DoHeadsByElement(const __grid_constant__ QkPlan plan) {
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t heads = plan.q_heads + 2 * plan.kv_heads;
  const std::int64_t position = LoadIndex(plan.positions, token);
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  const TokenPlace place = PlaceOfToken(plan, token);
  const std::int64_t row = position * plan.cos_sin_stride;
  for (std::uint32_t head = threadIdx.y; head < heads; head += blockDim.y) {
    const T* const in = static_cast<const T*>(plan.qkv) + token * plan.qkv_token +
                        std::int64_t{head} * plan.head_dim;
    // v has no weight: it is stored as it is, so its whole head counts as not rotated (first is 0).
    const HeadTarget<T> target = TargetOf<T>(plan, token, head, place);
    std::uint32_t first = 0;  // of what is not rotated
    float scale = 1;
    if (target.weight != nullptr) {
      float squares = 0;
      for (std::uint32_t i = threadIdx.x; i < plan.head_dim; i += 32) {
        const float value = ToFloat(in[i]);
        squares = fmaf(value, value, squares);
      }
      scale = rsqrtf(fmaf(prim::WarpSum(squares), plan.per_element, plan.eps));
      first = 2 * plan.half;
      for (std::uint32_t i = threadIdx.x; i < plan.half; i += 32) {
        const RotaryPair pair = RotaryPairOf(plan.is_neox, plan.half, i);
        float low[1] = {ToFloat(in[pair.low])};
        float high[1] = {ToFloat(in[pair.high])};
        float cos[1];
        float sin[1];
        LoadAnglesAt<1>(plan.cos_sin, plan.cos_sin_dtype, row + i, cos);
        LoadAnglesAt<1>(plan.cos_sin, plan.cos_sin_dtype, row + plan.half + i, sin);
        NormaliseWord<T, 1>(target.weight + pair.low, scale, low);
        NormaliseWord<T, 1>(target.weight + pair.high, scale, high);
        RotateWords<T, true>(cos, sin, low, high);
        WriteTo<T, 1, kNarrow>(target, pair.low, low);
        WriteTo<T, 1, kNarrow>(target, pair.high, high);
      }
    }
    for (std::uint32_t i = first + threadIdx.x; i < plan.head_dim; i += 32) {
      float value[1] = {ToFloat(in[i])};
      if (target.weight != nullptr) NormaliseWord<T, 1>(target.weight + i, scale, value);
      WriteTo<T, 1, kNarrow>(target, i, value);
    }
  }
}

// A thread's part of neighbouring heads, all of them of q, or of k, or of v: its word of both
// halves of each, and of the weights.
template <class T>
struct Neighbours {
  std::uint32_t first;  // head
  std::uint32_t at;     // the word's first element
  bool there;           // the others only take part in the sums
  bool normed;          // not v
  uint4 low_weight;
  uint4 high_weight;
};
template <class T>
__device__ __forceinline__ Neighbours<T> NeighboursHere(const QkPlan& plan) {
  Neighbours<T> heads{};
  heads.first = threadIdx.y * kTogether;
  heads.at = threadIdx.x * kPacked<T>;
  heads.there = threadIdx.x < plan.words && heads.first < plan.q_heads + 2 * plan.kv_heads;
  heads.normed = heads.first < plan.q_heads + plan.kv_heads;
  return heads;
}

template <class T>
__device__ __forceinline__ void LoadQkWeights(const QkPlan& plan, Neighbours<T>* heads) {
  if (!heads->there || !heads->normed) return;
  const void* const weights = heads->first < plan.q_heads ? plan.q_weight : plan.k_weight;
  const T* const here = static_cast<const T*>(weights) + heads->at;
  heads->low_weight = prim::LoadShared16(here);
  heads->high_weight = prim::LoadShared16(here + plan.half);
}

// Over the threads of a head, of which there are most often eight.
__device__ __forceinline__ void SumHeads(float (&sums)[kTogether]) {
  if (blockDim.x == 8) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) sums[i] = prim::WarpSum<8>(sums[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) sums[i] = prim::WarpSum(sums[i], blockDim.x);
  }
}

// The part of a token that a thread holds: words, and the angles of their numbers.
template <class T>
struct HeldHeads {
  uint4 low[kTogether];
  uint4 high[kTogether];
  float cos[kPacked<T>];
  float sin[kPacked<T>];
};

// Normalises and turns the words of one head. All that is rounded between is rounded as pairs.
template <bool kNeox, class T>
__device__ __forceinline__ void NormaliseAndRotate(const Neighbours<T>& heads, float scale, int i,
                                                   HeldHeads<T>* held) {
  constexpr int kWidth = kPacked<T>;
  float low[kWidth];
  float high[kWidth];
  Unpack<T>(held->low[i], low);
  Unpack<T>(held->high[i], high);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    low[j] *= scale;
    high[j] *= scale;
  }
  Unpack<T>(ProductsOf<T>(Pack<T>(low), heads.low_weight), low);
  Unpack<T>(ProductsOf<T>(Pack<T>(high), heads.high_weight), high);
  TurnWords<kNeox>(held->cos, held->sin, low, high);
  held->low[i] = Pack<T>(low);
  held->high[i] = Pack<T>(high);
}

template <class T, bool kNarrow>
__device__ __forceinline__ void WriteWord(const HeadTarget<T>& target, std::int64_t at,
                                          const uint4& word) {
  if (target.out != nullptr) prim::StoreStreamed16(target.out + at, word);
  if (target.cache == nullptr) return;
  if constexpr (kNarrow) {
    float values[kPacked<T>];
    Unpack<T>(word, values);
    StoreNarrow<kPacked<T>>(target.cache, target.cache_at + at, values, target.inverse);
  } else {
    prim::StoreStreamed16(static_cast<T*>(target.cache) + target.cache_at + at, word);
  }
}

// The facts of a token besides its heads.
struct TokenFacts {
  std::int64_t position;
  std::int32_t slot;
};
__device__ __forceinline__ TokenFacts FactsOf(const QkPlan& plan, std::uint32_t token) {
  TokenFacts facts{-1, -1};
  if (token >= plan.tokens) return facts;
  facts.position = LoadIndex(plan.positions, token);
  if (plan.caches.k != nullptr) facts.slot = LoadSlot(plan.caches.slots, token);
  return facts;
}
__device__ __forceinline__ bool IsKnown(const QkPlan& plan, std::int64_t position) {
  return position >= 0 && position < plan.most_positions;
}

template <bool kNeox, class T>
__device__ __forceinline__ void LoadAngles(const QkPlan& plan, const Neighbours<T>& heads,
                                           std::int64_t position, HeldHeads<T>* held) {
  if (!heads.there || !heads.normed || !IsKnown(plan, position)) return;
  LoadWordAngles<kNeox>(AnglesOf(plan, position), heads.at, held->cos, held->sin);
}

// From the words, which are there, to the stores. All lanes of the warp call it.
template <class T, bool kNarrow, bool kNeox>
__device__ __forceinline__ void FinishHeads(const QkPlan& plan, const Neighbours<T>& heads,
                                            std::uint32_t token, const TokenFacts& facts,
                                            HeldHeads<T>* held) {
  float scale[kTogether];
  // A warp that has only heads of v needs no sums. The vote makes the choice the same for all
  // lanes, as the shuffles of SumHeads() require.
  if (__any_sync(0xffffffffU, heads.normed)) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      float low[kPacked<T>];
      float high[kPacked<T>];
      Unpack<T>(held->low[i], low);
      Unpack<T>(held->high[i], high);
      scale[i] = SquaresOf(low, high);
    }
    SumHeads(scale);
  }
  // Behind the shuffles, which all lanes take part in, and not earlier, so that the loads of the
  // heads need not wait for the position.
  if (!IsKnown(plan, facts.position)) return prim::TrapInDebug();
  if (!heads.there) return;
  HeadTarget<T> target = TargetOf<T>(plan, token, heads.first, PlaceOfSlot(plan, facts.slot));
  const std::int64_t out_step = heads.first < plan.q_heads ? plan.q_out.head : plan.k_out.head;
  const std::int64_t cache_step =
      heads.first < plan.q_heads + plan.kv_heads ? plan.caches.k_head : plan.caches.v_head;
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    if (heads.normed) {
      const float factor = rsqrtf(fmaf(scale[i], plan.per_element, plan.eps));
      NormaliseAndRotate<kNeox>(heads, factor, i, held);
    }
    WriteWord<T, kNarrow>(target, heads.at, held->low[i]);
    WriteWord<T, kNarrow>(target, heads.at + plan.half, held->high[i]);
    // Neighbours are of one kind, q, k or v (DealHeads), so the next head is one stride further.
    if (target.out != nullptr) target.out += out_step;
    target.cache_at += cache_step;
  }
}

template <class T>
__device__ __forceinline__ const T* WordsOf(const QkPlan& plan, const Neighbours<T>& heads,
                                            std::uint32_t token) {
  return static_cast<const T*>(plan.qkv) + token * plan.qkv_token +
         std::int64_t{heads.first} * plan.head_dim + heads.at;
}

// A token's block. Heads are streamed through the caches, which keep the table of angles: plain
// loads and stores were 3 % slower on an H100. All that can be asked for at once is: only the
// cosines wait for a position, and nothing is left out before the sums for want of one, or the
// compiler would have all loads wait.
template <class T, bool kNarrow, bool kNeox>
__global__ void __launch_bounds__(kQkMaxThreads, kNeox ? kNeighbourBlocks : 3)
    DoNeighbours(const __grid_constant__ QkPlan plan) {
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const TokenFacts facts = FactsOf(plan, blockIdx.x);
  HeldHeads<T> held{};
  Neighbours<T> heads = NeighboursHere<T>(plan);
  LoadQkWeights(plan, &heads);
  if (heads.there) {
    const T* const in = WordsOf(plan, heads, blockIdx.x);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      held.low[i] = prim::LoadStreamed16(in + i * plan.head_dim);
      held.high[i] = prim::LoadStreamed16(in + i * plan.head_dim + plan.half);
    }
  }
  LoadAngles<kNeox>(plan, heads, facts.position, &held);
  FinishHeads<T, kNarrow, kNeox>(plan, heads, blockIdx.x, facts, &held);
}

using QkKernel = void (*)(QkPlan);

template <class T, bool kNarrow>
QkKernel ChosenQk(const QkPlan& plan) {
  switch (plan.form) {
    case QkForm::kNeighbours:
      return plan.is_neox ? DoNeighbours<T, kNarrow, true> : DoNeighbours<T, kNarrow, false>;
    case QkForm::kWords:
      return plan.is_neox ? DoHeads<T, kNarrow, true> : DoHeads<T, kNarrow, false>;
    case QkForm::kNumbers: break;
  }
  return DoHeadsByElement<T, kNarrow>;
}

}  // namespace

Status LaunchQkNormRopeStore(const QkNormRopeStorePlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{
      .grid = plan.tokens, .block = dim3(plan.threads_x, plan.threads_y), .early = true};
  const bool narrow = plan.caches.dtype == DType::kFloat8E4m3;
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "qk_norm_rope_store", config,
                        narrow ? ChosenQk<T, true>(plan) : ChosenQk<T, false>(plan), plan);
  });
}

}  // namespace ferry::kernels
