// Kernel of sampling: radix selection for top_k and top_p, then a Gumbel race.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/cluster.cuh"
#include "ferry/cuda/prim/cp_async.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/prim/reduce.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/sampler/sampler_math.h"
#include "ferry/kernels/sampler/sampler_plan.h"

namespace ferry::kernels {
namespace {

constexpr const char* kSampleName = "sample";
constexpr int kBins = 256;

// Sums of weights by eight bits of the keys, in two words each, because shared memory adds words of
// 32 bits by itself.
struct WeightBins {
  std::uint32_t low[kBins];
  std::uint32_t high[kBins];
};
__device__ __forceinline__ std::uint64_t WeightOfBin(const WeightBins& bins, std::uint32_t bin) {
  return std::uint64_t{bins.high[bin]} << 32 | bins.low[bin];
}

// Shared memory of the threads of a block. Where a cluster has the row, its blocks read each
// other's `bins`, which alternate so that one barrier per round is enough, and write to each
// other's `best`.
struct SampleShared {
  WeightBins bins[2];
  std::uint64_t sums[kBins];  // of the bins of all blocks of a cluster
  std::uint64_t held[32];
  std::uint64_t best[kMaxSampleBlocks];
  std::uint64_t above;  // weights of the bins above `bin`
  std::uint64_t total;
  std::uint32_t bin;
};

// The tokens of a row that the block has: all, in global memory, or a part of them, in the shared
// memory of a block of a cluster.
template <class T, bool kCluster>
struct LogitRow {
  const T* data;        // of token `first`
  std::uint32_t first;  // a multiple of kPacked<T>
  std::uint32_t end;
  bool wide;
};

// Calls function(first token, logits) for as many tokens as 16 bytes have, until there are none
// left. Minus infinity stands for NaN and for what is behind the last. With kWarps all lanes of a
// warp make as many calls.
template <bool kWarps = false, class T, bool kCluster, class Function>
__device__ __forceinline__ void ForEachChunk(const LogitRow<T, kCluster>& row,
                                             const Function& function) {
  constexpr int kChunk = kPacked<T>;
  const std::uint32_t back = kWarps ? threadIdx.x % 32 * kChunk : 0;  // to the warp's first lane
  for (std::uint32_t base = row.first + threadIdx.x * kChunk; base - back < row.end;
       base += blockDim.x * kChunk) {
    float values[kChunk];
    if (kCluster || row.wide) {
      if (kWarps && base >= row.end) {
#pragma unroll
        for (int j = 0; j < kChunk; ++j) values[j] = -INFINITY;
      } else if constexpr (kCluster) {
        Load<T, kChunk>(row.data + (base - row.first), values);
      } else {
        LoadWeights<T, kChunk>(row.data + base, values);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        values[j] = base + j < row.end ? ToFloat(row.data[base + j]) : -INFINITY;
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) values[j] = isnan(values[j]) ? -INFINITY : values[j];
    function(base, values);
  }
}

// Tokens count as one each, for top_k, or by weight.
__device__ __forceinline__ void AddWeight(WeightBins* bins, std::uint32_t bin,
                                          std::uint32_t /*one*/) {
  // A constant, and without use for what was there before, so that the hardware adds up the lanes
  // of a warp that have the same bin, as most of them have.
  atomicAdd(&bins->low[bin], 1U);
}
__device__ __forceinline__ void AddWeight(WeightBins* bins, std::uint32_t bin,
                                          std::uint64_t weight) {
  if (weight == 0) return;
  const auto low = static_cast<std::uint32_t>(weight);
  // The carry into the upper word: unsigned addition wrapped if the sum is less than a summand.
  const std::uint32_t before = atomicAdd(&bins->low[bin], low);
  const std::uint32_t high =
      static_cast<std::uint32_t>(weight >> 32) + (before + low < before ? 1U : 0U);
  if (high != 0) atomicAdd(&bins->high[bin], high);
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
template <class WeightAt>
__device__ __forceinline__ void FindBin(SampleShared* shared, const SelectTarget& target,
                                        const WeightAt& weight_at) {
  constexpr int kEach = kBins / 32;
  const int lane = static_cast<int>(threadIdx.x);
  std::uint64_t weights[kEach];
  std::uint64_t mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    weights[i] = weight_at(kBins - 1 - (lane * kEach + i));
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

// When all threads have added to `bins`: finds the bin of the row's weights. All blocks of a
// cluster find the same one.
template <bool kCluster>
__device__ __forceinline__ void FindBinOfRow(SampleShared* shared, WeightBins* bins,
                                             const SelectTarget& target) {
  if constexpr (kCluster) {
    prim::ClusterArrive();
    prim::ClusterWait();
    for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
      std::uint64_t sum = 0;
#pragma unroll
      for (std::uint32_t rank = 0; rank < kMaxSampleBlocks; ++rank) {
        if (rank < prim::ClusterBlocks()) sum += WeightOfBin(*prim::InBlock(bins, rank), bin);
      }
      shared->sums[bin] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) FindBin(shared, target, [&](int bin) { return shared->sums[bin]; });
  } else {
    __syncthreads();
    if (threadIdx.x < 32) FindBin(shared, target, [&](int bin) { return WeightOfBin(*bins, bin); });
  }
  __syncthreads();
}

// The greatest key such that the weights of the keys from it on, without those below `least`, come
// to the target; `least` where all do not. Eight bits of it at a time, from the highest; the lowest
// that T has not are left 0. `shared` must be free.
template <class T, bool kCluster, class Weight>
__device__ __forceinline__ std::uint32_t SelectKey(const LogitRow<T, kCluster>& row,
                                                   std::uint32_t least, SelectTarget target,
                                                   SampleShared* shared, const Weight& weight) {
  constexpr int kLowest = std::is_same_v<T, Bfloat16> ? 16 : 0;
  std::uint32_t found = 0;
  for (int shift = 24; shift >= kLowest; shift -= 8) {
    WeightBins* const bins = &shared->bins[shift / 8 % 2];
    for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
      bins->low[bin] = bins->high[bin] = 0;
    }
    __syncthreads();
    ForEachChunk(row, [&](std::uint32_t, const float(&values)[kPacked<T>]) {
#pragma unroll
      for (int j = 0; j < kPacked<T>; ++j) {
        const std::uint32_t key = KeyOf(values[j]);
        // A shift by 32 is none of 32-bit words.
        const bool of_found = std::uint64_t{key ^ found} >> (shift + 8) == 0;
        if (of_found && key >= least) AddWeight(bins, key >> shift & (kBins - 1), weight(key));
      }
    });
    FindBinOfRow<kCluster>(shared, bins, target);
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

// The maximum over all threads that have the row; each gets it. Between two calls there is a
// barrier of them all.
template <bool kCluster>
__device__ __forceinline__ std::uint64_t RowMax(std::uint64_t value, SampleShared* shared) {
  value = prim::BlockMax(value, shared->held);
  if constexpr (kCluster) {
    const std::uint32_t blocks = prim::ClusterBlocks();
    if (threadIdx.x < blocks) {
      *prim::InBlock(&shared->best[prim::ClusterRank()], threadIdx.x) = value;
    }
    prim::ClusterArrive();
    prim::ClusterWait();
#pragma unroll
    for (std::uint32_t rank = 0; rank < kMaxSampleBlocks; ++rank) {
      if (rank < blocks && shared->best[rank] > value) value = shared->best[rank];
    }
  }
  return value;
}

// As the form for the CPU has it: below it no token is chosen.
template <class T, bool kCluster>
__device__ __forceinline__ std::uint32_t LeastKey(const LogitRow<T, kCluster>& row,
                                                  const SampleRow& asked, SampleShared* shared) {
  std::uint32_t least = 0;
  if (asked.top_k > 0) {
    // top_k is the same selection with a weight of 1 for each token.
    least = SelectKey(row, least, {asked.top_k, 1}, shared,
                      [](std::uint32_t) -> std::uint32_t { return 1; });
    __syncthreads();
  }
  if (asked.top_p >= 1) return least;
  std::uint32_t most = 0;
  ForEachChunk(row, [&](std::uint32_t, const float(&values)[kPacked<T>]) {
#pragma unroll
    for (int j = 0; j < kPacked<T>; ++j) most = max(most, KeyOf(values[j]));
  });
  // The greatest logit has a weight of 1, whatever the logits are, so no weight overflows.
  const float greatest = NumberOf(static_cast<std::uint32_t>(RowMax<kCluster>(most, shared)));
  return SelectKey(row, least, {0, asked.top_p}, shared, [&](std::uint32_t key) {
    return WeightOf(fmaf(NumberOf(key) - greatest, asked.inverse, 0.0F));
  });
}

// This thread's best token. A token whose score cannot come up to that of the warp's best so far,
// by a bound that is quick to have, is not looked at any closer: for nearly all of them one
// logarithm takes the place of two exact ones.
template <class T, bool kCluster>
__device__ __forceinline__ std::uint64_t RaceTokens(const LogitRow<T, kCluster>& row,
                                                    const SampleRow& asked, std::uint32_t least) {
  // -log(-log(1 - u)) is less than -log(u), since -log(1 - u) is greater than u: the cheap bound of
  // the noise. Four tokens share a call of Philox, which is left out if even kMaxNoise would not
  // do.
  constexpr float kMaxNoise = 23.0F;  // -log(2^-33) is less
  constexpr float kMargin = 0.01F;    // far above the errors of the quick logarithm
  // NaN where that is below all keys of numbers, so that no number is less.
  const float least_logit = NumberOf(least);
  float best_score = -INFINITY;
  float score_of_warp = -INFINITY;
  std::uint32_t best = 0;
  ForEachChunk<true>(row, [&](std::uint32_t base, const float(&values)[kPacked<T>]) {
#pragma unroll
    for (int group = 0; group < kPacked<T>; group += 4) {
      const float most = fmaxf(fmaxf(values[group], values[group + 1]),
                               fmaxf(values[group + 2], values[group + 3]));
      if (fmaf(most, asked.inverse, kMaxNoise) < score_of_warp || most < least_logit) continue;
      const PhiloxWords random = RandomOf(asked.random, (base + group) / 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float logit = values[group + j];
        const float uniform = UniformOf(random.word[j]);
        const float bound = fmaf(-0.6931472F, __log2f(uniform), kMargin);
        if (fmaf(logit, asked.inverse, bound) < score_of_warp || logit < least_logit) continue;
        const float score = ScoreOf(logit, asked.inverse, GumbelOf(uniform));
        if (score > best_score) {
          best_score = score;
          best = base + group + j;
        }
      }
    }
    score_of_warp = NumberOf(__reduce_max_sync(0xffffffffU, KeyOf(best_score)));
  });
  return Candidate(best_score, best);
}

template <class T, bool kCluster>
__device__ __forceinline__ std::uint64_t GreatestToken(const LogitRow<T, kCluster>& row) {
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

template <bool kCluster, class T>
__device__ __forceinline__ void SampleToken(const SamplePlan& plan, std::uint32_t index,
                                            const LogitRow<T, kCluster>& row,
                                            SampleShared* shared) {
  // The same for all threads that have the row, so all take the same branch with its barriers.
  const SampleRow asked = SampleRowOf(plan, index);
  std::uint64_t best = 0;
  if (asked.inverse == 0) {
    best = GreatestToken(row);
  } else {
    const bool filtered = asked.top_k > 0 || asked.top_p < 1;
    best = RaceTokens(row, asked, filtered ? LeastKey(row, asked, shared) : 0);
  }
  __syncthreads();  // of all that used what is shared
  best = RowMax<kCluster>(best, shared);
  if (threadIdx.x == 0 && (!kCluster || prim::ClusterRank() == 0)) plan.out[index] = TokenOf(best);
}

// Thread blocks of SampleRows() that share a multiprocessor; 0 leaves it to ptxas. On sm_86 and
// sm_89 that would choose three, whose 40 registers to a thread are too few.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
constexpr int kSampleBlocks = 2;
#else
constexpr int kSampleBlocks = 0;
#endif

// A block to a row.
template <class T>
__global__ void __launch_bounds__(kSampleThreads, kSampleBlocks)
    SampleRows(const __grid_constant__ SamplePlan plan) {
  __shared__ SampleShared shared;
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const LogitRow<T, false> row{static_cast<const T*>(plan.logits) + blockIdx.x * plan.stride, 0,
                               plan.vocabulary, plan.wide};
  SampleToken(plan, blockIdx.x, row, &shared);
}

// Copies the block's part of the row, so that it is read once. What is behind its end up to a whole
// word is minus infinity.
template <class T>
__device__ __forceinline__ void KeepLogits(const SamplePlan& plan, const T* from,
                                           std::uint32_t count, T* kept) {
  constexpr std::uint32_t kChunk = kPacked<T>;
  const std::uint32_t chunks = (count + kChunk - 1) / kChunk;
  if (plan.wide) {
    const std::uint32_t to = prim::SharedAddress(kept);
    for (std::uint32_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
      prim::CopyAsync(to + chunk * prim::kCopyBytes, from + chunk * kChunk, true);
    }
    prim::WaitForAllCopies();
    return;
  }
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < chunks * kChunk; i += blockDim.x) {
    kept[i] = i < count ? from[i] : FromFloat<T>(-INFINITY);
  }
}

// A cluster to a row: each of its blocks has an equal part of the row, of whole words, in shared
// memory. Empty where the architecture has no clusters.
template <class T>
__global__ void __launch_bounds__(kSampleClusterThreads)
    SampleRowsByClusters(const __grid_constant__ SamplePlan plan) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 kept_words[];
  __shared__ SampleShared shared;
  prim::ClusterArrive();
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t index = blockIdx.x / prim::ClusterBlocks();
  const std::uint32_t first = min(prim::ClusterRank() * plan.part, plan.vocabulary);
  const std::uint32_t end = min(first + plan.part, plan.vocabulary);
  // From words, of which the alignment is, to their elements.
  auto* const kept = static_cast<T*>(static_cast<void*>(kept_words));
  KeepLogits(plan, static_cast<const T*>(plan.logits) + index * plan.stride + first, end - first,
             kept);
  __syncthreads();
  prim::ClusterWait();  // all blocks have begun
  SampleToken(plan, index, LogitRow<T, true>{kept, first, end, true}, &shared);
#endif
}

template <class T>
Result<SampleDevice> DescribeForSample(cuda::StreamRef stream) {
  SampleDevice device;
  const auto ask = [&](int* answer, cudaDeviceAttr what) {
    return cudaDeviceGetAttribute(answer, what, stream.ordinal());
  };
  cudaError_t asked = ask(&device.multiprocessors, cudaDevAttrMultiProcessorCount);
  if (asked == cudaSuccess) {
    asked = ask(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  }
  if (asked != cudaSuccess) return cuda::LaunchError(asked, kSampleName, stream);
  // CUDA names kernels by address alone. Code that can begin early can have clusters, too.
  device.has_clusters =
      cuda::CanBeginEarly(reinterpret_cast<const void*>(SampleRowsByClusters<T>), stream);
  return device;
}

template <class T>
Status LaunchSampleOf(SamplePlan plan, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const SampleDevice device, DescribeForSample<T>(stream));
  FERRY_TRY_ASSIGN(const std::uint32_t blocks, BlocksOfRow(plan, device));
  if (blocks == 1) {
    const cuda::LaunchConfig config{.grid = plan.rows, .block = kSampleThreads, .early = true};
    return cuda::Launch(stream, kSampleName, config, SampleRows<T>, plan);
  }
  plan.part = PartOfRow(plan, blocks);
  const cuda::LaunchConfig config{.grid = plan.rows * blocks,
                                  .block = kSampleClusterThreads,
                                  .shared_bytes = plan.part * sizeof(T),
                                  .early = true,
                                  .cluster = blocks};
  return cuda::Launch(stream, kSampleName, config, SampleRowsByClusters<T>, plan);
}

}  // namespace

Status LaunchSample(const SamplePlan& plan, cuda::StreamRef stream) {
  return WithFloatType(plan.dtype,
                       [&](auto number) { return LaunchSampleOf<decltype(number)>(plan, stream); });
}

}  // namespace ferry::kernels
