// Kernels of the rotary embedding.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/prim/trap.cuh"
#include "ferry/kernels/rope/rope_plan.h"
#include "ferry/kernels/rotation.cuh"

namespace ferry::kernels {
namespace {

// Where a head of this token is and goes; heads of k come after those of q.
template <class T>
struct RopeHead {
  const T* in;
  T* out;
};
template <class T>
__device__ __forceinline__ RopeHead<T> RopeHeadAt(const RopePlan& plan, std::uint32_t token,
                                                  std::uint32_t head) {
  const bool of_q = head < plan.q.count;
  const RopeHeads& heads = of_q ? plan.q : plan.k;
  const std::int64_t index = of_q ? head : head - plan.q.count;
  return {static_cast<const T*>(heads.in) + token * heads.in_token + index * heads.in_head,
          static_cast<T*>(heads.out) + token * heads.out_token + index * heads.out_head};
}

// What is not rotated, where it is not in its place already.
template <class T>
__device__ __forceinline__ void CopyRest(const RopePlan& plan, std::uint32_t token) {
  if (!plan.copies_rest) return;
  for (std::uint32_t head = threadIdx.y; head < plan.q.count + plan.k.count; head += blockDim.y) {
    const RopeHead<T> place = RopeHeadAt<T>(plan, token, head);
    for (std::uint32_t i = 2 * plan.half + threadIdx.x; i < plan.head_dim; i += blockDim.x) {
      place.out[i] = place.in[i];
    }
  }
}

// 16 bytes, or a pair of single elements.
template <class T, int kWidth>
__device__ __forceinline__ void LoadPairs(const T* from, float (&values)[kWidth]) {
  if constexpr (kWidth == kPacked<T>) {
    Load<T, kWidth>(from, values);
  } else {
    static_assert(kWidth == 2, "a word or a pair");
    values[0] = ToFloat(from[0]);
    values[1] = ToFloat(from[1]);
  }
}
template <class T, int kWidth>
__device__ __forceinline__ void StorePairs(T* to, const float (&values)[kWidth]) {
  if constexpr (kWidth == kPacked<T>) {
    Store<T, kWidth>(to, values);
  } else {
    to[0] = FromFloat<T>(values[0]);
    to[1] = FromFloat<T>(values[1]);
  }
}

// As numbers. A token's block. Threads are (along a half, over heads): each keeps its cosines and
// sines for all of its heads, and has the two words of kTogether heads in flight at once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRopeMaxThreads)
    RotateHeads(const __grid_constant__ RopePlan plan) {
  constexpr int kTogether = static_cast<int>(kRopeHeads);
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t heads = plan.q.count + plan.k.count;
  const std::int64_t position = LoadIndex(plan.positions, token);
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  const std::int64_t row = position * plan.cos_sin_stride;
  // The angles of a word are loaded once, and serve all heads of the token.
  for (std::uint32_t word = threadIdx.x; word < plan.words; word += blockDim.x) {
    const std::uint32_t at = word * kWidth;
    float cos[kWidth];
    float sin[kWidth];
    LoadAnglesAt<kWidth>(plan.cos_sin, plan.cos_sin_dtype, row + at, cos);
    LoadAnglesAt<kWidth>(plan.cos_sin, plan.cos_sin_dtype, row + plan.half + at, sin);
    for (std::uint32_t first = threadIdx.y; first < heads; first += kTogether * blockDim.y) {
      float low[kTogether][kWidth];
      float high[kTogether][kWidth];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const std::uint32_t head = first + i * blockDim.y;
        if (head < heads) {
          const T* const in = RopeHeadAt<T>(plan, token, head).in;
          Load<T, kWidth>(in + at, low[i]);
          Load<T, kWidth>(in + plan.half + at, high[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const std::uint32_t head = first + i * blockDim.y;
        if (head < heads) {
          T* const out = RopeHeadAt<T>(plan, token, head).out;
#pragma unroll
          for (int j = 0; j < kWidth; ++j) RotatePair(cos[j], sin[j], &low[i][j], &high[i][j]);
          Store<T, kWidth>(out + at, low[i]);
          Store<T, kWidth>(out + plan.half + at, high[i]);
        }
      }
    }
  }
  CopyRest<T>(plan, token);
}

// As RotateHeads() of pairs of neighbours: a thread has words of kWidth numbers, or pairs.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRopeMaxThreads)
    RotateNeighbours(const __grid_constant__ RopePlan plan) {
  constexpr int kAngles = kWidth / 2;
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t heads = plan.q.count + plan.k.count;
  const std::int64_t position = LoadIndex(plan.positions, token);
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  const std::int64_t row = position * plan.cos_sin_stride;
  for (std::uint32_t word = threadIdx.x; word < plan.words; word += blockDim.x) {
    const std::uint32_t at = word * kWidth;
    float cos[kAngles];
    float sin[kAngles];
    LoadPairAngles<kAngles>(plan.cos_sin, plan.cos_sin_dtype, row + at / 2, cos);
    LoadPairAngles<kAngles>(plan.cos_sin, plan.cos_sin_dtype, row + plan.half + at / 2, sin);
#pragma unroll 2
    for (std::uint32_t head = threadIdx.y; head < heads; head += blockDim.y) {
      const RopeHead<T> place = RopeHeadAt<T>(plan, token, head);
      float values[kWidth];
      LoadPairs<T, kWidth>(place.in + at, values);
#pragma unroll
      for (int j = 0; j < kAngles; ++j) {
        RotatePair(cos[j], sin[j], &values[2 * j], &values[2 * j + 1]);
      }
      StorePairs<T, kWidth>(place.out + at, values);
    }
  }
  CopyRest<T>(plan, token);
}

// Turns a word of either half of a head, and stores them.
template <class T, bool kNeox>
__device__ __forceinline__ void RotateAndStore(const RopePlan& plan, std::int64_t position,
                                               const uint4& low_word, const uint4& high_word,
                                               T* to) {
  constexpr int kWidth = kPacked<T>;
  float cos[kWidth];
  float sin[kWidth];
  LoadWordAngles<kNeox>(
      {plan.cos_sin, plan.cos_sin_dtype, position * plan.cos_sin_stride, plan.half},
      threadIdx.x * kWidth, cos, sin);
  float low[kWidth];
  float high[kWidth];
  Unpack<T>(low_word, low);
  Unpack<T>(high_word, high);
  TurnWords<kNeox>(cos, sin, low, high);
  Store<T, kWidth>(to, low);
  Store<T, kWidth>(to + plan.half, high);
}

// Thread blocks of RotateWords() of neighbours that share a multiprocessor at least; 0 leaves it to
// ptxas, which would choose so many that registers are spilled.
constexpr int kNeighbourBlocks = 2;

// A token's block. Threads are (words of a half, heads), and each has its word of both halves of a
// head.
template <class T, bool kNeox>
__global__ void __launch_bounds__(kRopeMaxWordThreads, kNeox ? 0 : kNeighbourBlocks)
    RotateWords(const __grid_constant__ RopePlan plan) {
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t token = blockIdx.x;
  // threads_x is rounded up to a power of two, so some threads may have no word.
  const bool there = threadIdx.x < plan.words && threadIdx.y < plan.q.count + plan.k.count;
  const std::uint32_t at = threadIdx.x * kPacked<T>;
  const std::int64_t position = LoadIndex(plan.positions, token);
  const RopeHead<T> head = RopeHeadAt<T>(plan, token, there ? threadIdx.y : 0);
  uint4 low;
  uint4 high;
  if (there) {
    low = prim::LoadAhead16(head.in + at);
    high = prim::LoadAhead16(head.in + at + plan.half);
  }
  // After the loads have been issued: they do not depend on the position and run while it arrives.
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  if (!there) return;
  RotateAndStore<T, kNeox>(plan, position, low, high, head.out + at);
}

using RopeKernel = void (*)(RopePlan);

template <class T>
RopeKernel ChosenRope(const RopePlan& plan) {
  if (plan.form == RopeForm::kWords) {
    return plan.is_neox ? RotateWords<T, true> : RotateWords<T, false>;
  }
  if (plan.form == RopeForm::kPairs) {
    return plan.wide ? RotateNeighbours<T, kPacked<T>> : RotateNeighbours<T, 2>;
  }
  return plan.wide ? RotateHeads<T, kPacked<T>> : RotateHeads<T, 1>;
}

}  // namespace

Status LaunchRope(const RopePlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{
      .grid = plan.tokens, .block = dim3(plan.threads_x, plan.threads_y), .early = true};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "rope", config, ChosenRope<T>(plan), plan);
  });
}

}  // namespace ferry::kernels
