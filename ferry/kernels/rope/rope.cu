#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/rope/rope_plan.h"
#include "ferry/kernels/rotation.h"
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

// A token's block. Threads are (along a half, over heads): each keeps its cosines and sines for all
// of its heads, and has the two words of kTogether heads under way at once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRopeMostThreads)
    RotateHeads(const __grid_constant__ RopePlan plan) {
  constexpr int kTogether = static_cast<int>(kRopeHeads);
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

}  // namespace

Status LaunchRope(const RopePlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.tokens,
                                  .block = dim3(plan.threads_x, plan.threads_y)};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "rope", config,
                        plan.wide ? RotateHeads<T, kPacked<T>> : RotateHeads<T, 1>, plan);
  });
}

}  // namespace ferry::kernels
