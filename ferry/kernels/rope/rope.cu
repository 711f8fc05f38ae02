#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/rope/rope_plan.h"
#include "ferry/kernels/rotation.h"
#include "ferry/prim/cp_async.cuh"
#include "ferry/prim/grid_order.cuh"
#include "ferry/prim/trap.cuh"

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

// As numbers. A token's block. Threads are (along a half, over heads): each keeps its cosines and
// sines for all of its heads, and has the two words of kTogether heads under way at once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRopeMostThreads)
    RotateHeads(const __grid_constant__ RopePlan plan) {
  constexpr int kTogether = static_cast<int>(kRopeHeads);
  prim::WaitForGridsBefore();
  prim::LetNextGridBegin();
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t heads = plan.q.count + plan.k.count;
  const std::int64_t position = __ldg(plan.positions + token);
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  const float* const cos_row = plan.cos_sin + position * plan.cos_sin_stride;
  for (std::uint32_t word = threadIdx.x; word < plan.words; word += blockDim.x) {
    const std::uint32_t at = word * kWidth;
    float cos[kWidth];
    float sin[kWidth];
    LoadFloats<kWidth>(cos_row + at, cos);
    LoadFloats<kWidth>(cos_row + plan.half + at, sin);
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
  if (!plan.copies_rest) return;
  for (std::uint32_t head = threadIdx.y; head < heads; head += blockDim.y) {
    const RopeHead<T> place = RopeHeadAt<T>(plan, token, head);
    for (std::uint32_t i = 2 * plan.half + threadIdx.x; i < plan.head_dim; i += blockDim.x) {
      place.out[i] = place.in[i];
    }
  }
}

// The cosines and sines of a word's numbers.
template <class T>
struct RopeAngles {
  float cos[kPacked<T>];
  float sin[kPacked<T>];
};
template <class T>
__device__ __forceinline__ RopeAngles<T> AnglesAt(const RopePlan& plan, std::int64_t position) {
  const float* const row = plan.cos_sin + position * plan.cos_sin_stride + threadIdx.x * kPacked<T>;
  RopeAngles<T> angles;
  LoadFloats<kPacked<T>>(row, angles.cos);
  LoadFloats<kPacked<T>>(row + plan.half, angles.sin);
  return angles;
}

// Turns a word of either half of a head, and stores them.
template <class T>
__device__ __forceinline__ void RotateAndStore(const RopeAngles<T>& angles, const uint4& low_word,
                                               const uint4& high_word, std::uint32_t half, T* to) {
  float low[kPacked<T>];
  float high[kPacked<T>];
  Unpack<T>(low_word, low);
  Unpack<T>(high_word, high);
#pragma unroll
  for (int j = 0; j < kPacked<T>; ++j) {
    RotatePair(angles.cos[j], angles.sin[j], &low[j], &high[j]);
  }
  Store<T, kPacked<T>>(to, low);
  Store<T, kPacked<T>>(to + half, high);
}

// A token's block. Threads are (words of a half, heads), and each has its word of both halves of
// kTogether heads.
template <class T, int kTogether>
__global__ void __launch_bounds__(kRopeMostWordThreads)
    RotateWords(const __grid_constant__ RopePlan plan) {
  constexpr int kWidth = kPacked<T>;
  prim::WaitForGridsBefore();
  prim::LetNextGridBegin();
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t heads = threadIdx.x < plan.words ? plan.q.count + plan.k.count : 0;
  const std::uint32_t at = threadIdx.x * kWidth;
  const std::int64_t position = prim::LoadSharedAhead(plan.positions + token);
  uint4 low[kTogether];
  uint4 high[kTogether];
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    const std::uint32_t head = threadIdx.y + i * blockDim.y;
    if (head < heads) {
      const T* const in = RopeHeadAt<T>(plan, token, head).in + at;
      low[i] = prim::LoadAhead16(in);
      high[i] = prim::LoadAhead16(in + plan.half);
    }
  }
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  if (heads == 0) return;
  const RopeAngles<T> angles = AnglesAt<T>(plan, position);
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    const std::uint32_t head = threadIdx.y + i * blockDim.y;
    if (head < heads) {
      T* const out = RopeHeadAt<T>(plan, token, head).out + at;
      RotateAndStore<T>(angles, low[i], high[i], plan.half, out);
    }
  }
}

// Where a thread's words are in shared memory; nobody else has them, so that none waits for others.
__device__ __forceinline__ uint4* RopeRingWord(uint4* ring, int index) {
  return ring + (index * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

// Has a token's words brought, if there is such a token.
template <class T, int kTogether>
__device__ __forceinline__ void FetchHeads(const RopePlan& plan, std::uint32_t token, int stage,
                                           uint4* ring) {
  const bool there = token < plan.tokens && threadIdx.x < plan.words;
  const std::uint32_t heads = there ? plan.q.count + plan.k.count : 0;
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    const std::uint32_t head = threadIdx.y + i * blockDim.y;
    if (head < heads) {
      const T* const in = RopeHeadAt<T>(plan, token, head).in + threadIdx.x * kPacked<T>;
      const int place = (stage * kTogether + i) * 2;
      prim::CopyAsync(prim::SharedAddress(RopeRingWord(ring, place)), in, true);
      prim::CopyAsync(prim::SharedAddress(RopeRingWord(ring, place + 1)), in + plan.half, true);
    }
  }
  prim::EndCopyGroup();
}

__device__ __forceinline__ std::int64_t PositionOf(const RopePlan& plan, std::uint32_t token) {
  return token < plan.tokens ? prim::LoadSharedAhead(plan.positions + token) : -1;
}

// Blocks that stay: the words of the next tokens are on their way to shared memory while one is
// turned, the cosines and sines of the next one to the L2 cache, and the position of the one after
// it to a register.
template <class T, int kTogether>
__global__ void __launch_bounds__(kRopeMostWordThreads)
    RotateRing(const __grid_constant__ RopePlan plan) {
  constexpr int kWidth = kPacked<T>;
  constexpr int kStages = static_cast<int>(kRopeStages);
  extern __shared__ uint4 ring[];
  prim::WaitForGridsBefore();
  prim::LetNextGridBegin();
  const std::uint32_t at = threadIdx.x * kWidth;
  const std::uint32_t heads = threadIdx.x < plan.words ? plan.q.count + plan.k.count : 0;
  std::int64_t position = PositionOf(plan, blockIdx.x);
  std::int64_t next = PositionOf(plan, blockIdx.x + gridDim.x);
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) {
    FetchHeads<T, kTogether>(plan, blockIdx.x + i * gridDim.x, i, ring);
  }
  int stage = 0;
  for (std::uint32_t token = blockIdx.x; token < plan.tokens; token += gridDim.x) {
    FetchHeads<T, kTogether>(plan, token + (kStages - 1) * gridDim.x,
                             stage == 0 ? kStages - 1 : stage - 1, ring);
    const std::int64_t after = PositionOf(plan, token + 2 * gridDim.x);
    const bool known = position >= 0 && position < plan.most_positions;
    if (!known) prim::TrapInDebug();
    RopeAngles<T> angles;
    if (known && heads != 0) angles = AnglesAt<T>(plan, position);
    if (threadIdx.y == 0 && heads != 0 && next >= 0 && next < plan.most_positions) {
      const float* const row = plan.cos_sin + next * plan.cos_sin_stride + at;
      prim::PrefetchToL2(row);
      prim::PrefetchToL2(row + plan.half);
    }
    prim::WaitForCopies<kStages - 1>();
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::uint32_t head = threadIdx.y + i * blockDim.y;
      if (known && head < heads) {
        const int place = (stage * kTogether + i) * 2;
        T* const out = RopeHeadAt<T>(plan, token, head).out + at;
        RotateAndStore<T>(angles, *RopeRingWord(ring, place), *RopeRingWord(ring, place + 1),
                          plan.half, out);
      }
    }
    position = next;
    next = after;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  prim::WaitForCopies<0>();
}

using RopeKernel = void (*)(RopePlan);

template <class T>
RopeKernel ChosenRope(const RopePlan& plan) {
  switch (plan.form) {
    case RopeForm::kOneHead: return RotateWords<T, 1>;
    case RopeForm::kTwoHeads: return RotateWords<T, 2>;
    case RopeForm::kFourHeads: return RotateWords<T, 4>;
    case RopeForm::kFiveHeads: return RotateWords<T, 5>;
    case RopeForm::kRingOfTwoHeads: return RotateRing<T, 2>;
    case RopeForm::kRingOfFourHeads: return RotateRing<T, 4>;
    case RopeForm::kNumbers: break;
  }
  return plan.wide ? RotateHeads<T, kPacked<T>> : RotateHeads<T, 1>;
}

std::size_t RopeRingBytes(const RopePlan& plan) {
  std::size_t heads = 0;
  if (plan.form == RopeForm::kRingOfTwoHeads) heads = 2;
  if (plan.form == RopeForm::kRingOfFourHeads) heads = 4;
  return kRopeStages * heads * 2 * sizeof(uint4) * plan.threads_x * plan.threads_y;
}

}  // namespace

Status LaunchRope(const RopePlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.blocks,
                                  .block = dim3(plan.threads_x, plan.threads_y),
                                  .shared_bytes = RopeRingBytes(plan),
                                  .early = plan.early};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "rope", config, ChosenRope<T>(plan), plan);
  });
}

}  // namespace ferry::kernels
