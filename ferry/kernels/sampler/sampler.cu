// Kernel of sampling: radix selection for top_k and top_p, then a Gumbel race.

#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/sampler/sampler_math.h"
#include "ferry/kernels/sampler/sampler_plan.h"
#include "ferry/prim/reduce.cuh"

namespace ferry::kernels {
namespace {

constexpr int kBins = 256;

// Shared memory of the threads of a row: sums of weights by eight bits of the keys, in two words
// each, because shared memory adds words of 32 bits by itself.
struct SampleShared {
  std::uint32_t low[kBins];
  std::uint32_t high[kBins];
  std::uint64_t held[32];
  std::uint64_t above;  // weights of the bins above `bin`
  std::uint64_t total;
  std::uint32_t bin;
};

template <class T>
struct LogitRow {
  const T* data;
  std::uint32_t count;
  bool wide;
};

// Calls function(first token, logits) for all tokens, some of them in a row at a time: as many as
// 16 bytes have. Minus infinity stands for NaN and for what is behind the last.
template <class T, class Function>
__device__ __forceinline__ void ForEachChunk(const LogitRow<T>& row, const Function& function) {
  constexpr int kChunk = kPacked<T>;
  for (std::uint32_t base = threadIdx.x * kChunk; base < row.count; base += blockDim.x * kChunk) {
    float values[kChunk];
    if (row.wide) {
      LoadWeights<T, kChunk>(row.data + base, values);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        values[j] = base + j < row.count ? ToFloat(row.data[base + j]) : -INFINITY;
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) values[j] = isnan(values[j]) ? -INFINITY : values[j];
    function(base, values);
  }
}

__device__ __forceinline__ void AddWeight(SampleShared* shared, std::uint32_t bin,
                                          std::uint64_t weight) {
  if (weight == 0) return;
  const auto low = static_cast<std::uint32_t>(weight);
  // The carry into the upper word: unsigned addition wrapped if the sum is less than a summand.
  const std::uint32_t before = atomicAdd(&shared->low[bin], low);
  const std::uint32_t high =
      static_cast<std::uint32_t>(weight >> 32) + (before + low < before ? 1U : 0U);
  if (high != 0) atomicAdd(&shared->high[bin], high);
}

// Weights are integers, so the sums do not depend on the order in which threads add: a selection
// has the same result in every run, and on the CPU.
// The target of a selection: an absolute weight, or a share of the total.
struct SelectTarget {
  std::uint64_t weight;
  float share;  // 1: `weight` is meant
};

// The first warp, when all weights have been added: the bin in which the sum from the highest bin
// down comes to the target, and the sum above it. Each lane has eight bins.
__device__ __forceinline__ void FindBin(SampleShared* shared, const SelectTarget& target) {
  constexpr int kEach = kBins / 32;
  const int lane = static_cast<int>(threadIdx.x);
  std::uint64_t weights[kEach];
  std::uint64_t mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int bin = kBins - 1 - (lane * kEach + i);
    weights[i] = std::uint64_t{shared->high[bin]} << 32 | shared->low[bin];
    mine += weights[i];
  }
  std::uint64_t up_to = mine;  // of this lane's bins and all above
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const std::uint64_t other =
        __shfl_up_sync(0xffffffffU, static_cast<unsigned long long>(up_to), apart);
    if (lane >= apart) up_to += other;
  }
  const std::uint64_t total = __shfl_sync(0xffffffffU, static_cast<unsigned long long>(up_to), 31);
  const std::uint64_t wanted = target.share < 1 ? ShareOf(target.share, total) : target.weight;
  std::uint64_t above = up_to - mine;
  if (lane == 0) shared->total = total;
  // The target is at least 1, so exactly one lane has the bin, unless all weights are less than it.
  if (above >= wanted || up_to < wanted) return;  // another lane's
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (above < wanted && above + weights[i] >= wanted) {
      shared->bin = kBins - 1 - (lane * kEach + i);
      shared->above = above;
    }
    above += weights[i];
  }
}

// The greatest key such that the weights of the keys from it on, without those below `least`, come
// to the target; `least` where all do not. Eight bits of it at a time, from the highest; the lowest
// that T has not are left 0. `shared` must be free.
template <class T, class Weight>
__device__ __forceinline__ std::uint32_t SelectKey(const LogitRow<T>& row, std::uint32_t least,
                                                   SelectTarget target, SampleShared* shared,
                                                   const Weight& weight) {
  constexpr int kLowest = std::is_same_v<T, Bfloat16> ? 16 : 0;
  std::uint32_t found = 0;
  for (int shift = 24; shift >= kLowest; shift -= 8) {
    for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
      shared->low[bin] = shared->high[bin] = 0;
    }
    __syncthreads();
    ForEachChunk(row, [&](std::uint32_t, const float(&values)[kPacked<T>]) {
#pragma unroll
      for (int j = 0; j < kPacked<T>; ++j) {
        const std::uint32_t key = KeyOf(values[j]);
        // A shift by 32 is none of 32-bit words.
        const bool of_found = std::uint64_t{key ^ found} >> (shift + 8) == 0;
        if (of_found && key >= least) AddWeight(shared, key >> shift & (kBins - 1), weight(key));
      }
    });
    __syncthreads();
    if (threadIdx.x < 32) FindBin(shared, target);
    __syncthreads();
    const std::uint64_t total = shared->total;
    if (shift == 24) {
      if (target.share < 1) target = {ShareOf(target.share, total), 1};
      // In the first round, which sees all keys. Afterwards the bin that was found has enough.
      if (total < target.weight) return least;
    }
    found |= shared->bin << shift;
    // The next eight bits are searched among the keys of this bin alone.
    target.weight -= shared->above;
    __syncthreads();  // all have read what is shared
  }
  return found > least ? found : least;
}

// As the form for the CPU has it: below it no token is chosen.
template <class T>
__device__ __forceinline__ std::uint32_t LeastKey(const LogitRow<T>& row, const SampleRow& asked,
                                                  SampleShared* shared) {
  std::uint32_t least = 0;
  if (asked.top_k > 0) {
    // top_k is the same selection with a weight of 1 for each token.
    least = SelectKey(row, least, {asked.top_k, 1}, shared,
                      [](std::uint32_t) -> std::uint64_t { return 1; });
    __syncthreads();
  }
  if (asked.top_p >= 1) return least;
  std::uint32_t most = 0;
  ForEachChunk(row, [&](std::uint32_t, const float(&values)[kPacked<T>]) {
#pragma unroll
    for (int j = 0; j < kPacked<T>; ++j) most = max(most, KeyOf(values[j]));
  });
  // The greatest logit has a weight of 1, whatever the logits are, so no weight overflows.
  const float greatest = NumberOf(static_cast<std::uint32_t>(prim::BlockMax(most, shared->held)));
  return SelectKey(row, least, {0, asked.top_p}, shared, [&](std::uint32_t key) {
    return WeightOf(fmaf(NumberOf(key) - greatest, asked.inverse, 0.0F));
  });
}

// This thread's best token. A token whose score cannot come up to that of the best so far, by a
// bound that is quick to have, is not looked at any closer: for nearly all of them one logarithm
// takes the place of two exact ones.
template <class T>
__device__ __forceinline__ std::uint64_t RaceTokens(const LogitRow<T>& row, const SampleRow& asked,
                                                    std::uint32_t least) {
  // -log(-log(1 - u)) is less than -log(u), since -log(1 - u) is greater than u: the cheap bound of
  // the noise. Four tokens share a call of Philox, which is left out if even kMaxNoise would not
  // do.
  constexpr float kMaxNoise = 23.0F;  // -log(2^-33) is less
  constexpr float kMargin = 0.01F;    // far above the errors of the quick logarithm
  float best_score = -INFINITY;
  std::uint32_t best = 0;
  ForEachChunk(row, [&](std::uint32_t base, const float(&values)[kPacked<T>]) {
#pragma unroll
    for (int group = 0; group < kPacked<T>; group += 4) {
      const float most = fmaxf(fmaxf(values[group], values[group + 1]),
                               fmaxf(values[group + 2], values[group + 3]));
      if (fmaf(most, asked.inverse, kMaxNoise) < best_score) continue;
      const PhiloxWords random = RandomOf(asked.random, (base + group) / 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float logit = values[group + j];
        const float uniform = UniformOf(random.word[j]);
        const float bound = fmaf(-0.6931472F, __log2f(uniform), kMargin);
        if (fmaf(logit, asked.inverse, bound) < best_score || KeyOf(logit) < least) continue;
        const float score = ScoreOf(logit, asked.inverse, GumbelOf(uniform));
        if (score > best_score) {
          best_score = score;
          best = base + group + j;
        }
      }
    }
  });
  return Candidate(best_score, best);
}

template <class T>
__device__ __forceinline__ std::uint64_t GreatestToken(const LogitRow<T>& row) {
  float best_logit = -INFINITY;
  std::uint32_t best = 0;
  ForEachChunk(row, [&](std::uint32_t base, const float(&values)[kPacked<T>]) {
#pragma unroll
    for (int j = 0; j < kPacked<T>; ++j) {
      if (values[j] > best_logit) {
        best_logit = values[j];
        best = base + j;
      }
    }
  });
  return Candidate(best_logit, best);
}

// Thread blocks of SampleRows() that share a multiprocessor; 0 leaves it to ptxas. On sm_86 and
// sm_89 that would choose three, whose 40 registers to a thread are too few.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
constexpr int kSampleBlocks = 2;
#else
constexpr int kSampleBlocks = 0;
#endif

template <class T>
__global__ void __launch_bounds__(kSampleThreads, kSampleBlocks)
    SampleRows(const __grid_constant__ SamplePlan plan) {
  __shared__ SampleShared shared;
  const LogitRow<T> row{static_cast<const T*>(plan.logits) + blockIdx.x * plan.stride,
                        plan.vocabulary, plan.wide};
  // The same for all threads of the block, so all take the same branch with its barriers.
  const SampleRow asked = SampleRowOf(plan, blockIdx.x);
  std::uint64_t best = 0;
  if (asked.inverse == 0) {
    best = GreatestToken(row);
  } else {
    const bool filtered = asked.top_k > 0 || asked.top_p < 1;
    best = RaceTokens(row, asked, filtered ? LeastKey(row, asked, &shared) : 0);
  }
  __syncthreads();  // of all that used what is shared
  best = prim::BlockMax(best, shared.held);
  if (threadIdx.x == 0) plan.out[blockIdx.x] = TokenOf(best);
}

}  // namespace

Status LaunchSample(const SamplePlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.rows, .block = kSampleThreads};
  return WithFloatType(plan.dtype, [&](auto number) {
    return cuda::Launch(stream, "sample", config, SampleRows<decltype(number)>, plan);
  });
}

}  // namespace ferry::kernels
