// Launch plan of sampling: computed on the host, passed to the kernel by value.
#pragma once
#include <cfloat>
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/sampler/sampler.h"
#include "ferry/kernels/sampler/sampler_math.h"

namespace ferry::kernels {

struct SamplePlan {
  const void* logits = nullptr;
  std::int64_t stride = 0;  // of the rows, in elements
  std::int64_t* out = nullptr;
  const float* temperatures = nullptr;  // null where they are left out, here and below
  const std::int32_t* top_k = nullptr;
  const float* top_p = nullptr;
  const std::int64_t* seeds = nullptr;
  const std::int64_t* steps = nullptr;
  bool seed_per_row = false;  // false: one for all rows
  bool step_per_row = false;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t rows = 0;  // 0: nothing is to be done
  std::uint32_t vocabulary = 0;
  DType dtype = DType::kFloat32;
  bool wide = false;  // words of 16 bytes, otherwise elements
  SampleForm form = SampleForm::kAuto;
  std::uint32_t part = 0;  // tokens of a block of a cluster: whole words
};
inline constexpr std::uint32_t kSampleThreads = 512;
inline constexpr std::uint32_t kSampleClusterThreads = 512;
inline constexpr std::uint32_t kMaxSampleBlocks = 8;  // of a cluster, on every GPU that has them

// Parameters of one row.
struct SampleRow {
  float inverse = 0;        // 1 / temperature; 0: greedy
  std::uint32_t top_k = 0;  // 0: all
  float top_p = 1;
  RandomSource random;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    inline SampleRow
    SampleRowOf(const SamplePlan& plan, std::uint32_t row) noexcept {
  SampleRow asked;
  const float temperature = plan.temperatures != nullptr ? plan.temperatures[row] : 0.0F;
  if (temperature >= kGreedyTemperature) {
    // Not 0, which is greedy, where the temperature is infinite.
    const float inverse = 1.0F / temperature;
    asked.inverse = inverse > FLT_MIN ? inverse : FLT_MIN;
  }
  if (plan.top_k != nullptr && plan.top_k[row] > 0) {
    const auto k = static_cast<std::uint32_t>(plan.top_k[row]);
    asked.top_k = k < plan.vocabulary ? k : 0;
  }
  if (plan.top_p != nullptr && plan.top_p[row] < 1) asked.top_p = plan.top_p[row];
  asked.random.seed = plan.seeds == nullptr
                          ? plan.seed
                          : static_cast<std::uint64_t>(plan.seeds[plan.seed_per_row ? row : 0]);
  asked.random.step = plan.steps == nullptr
                          ? plan.step
                          : static_cast<std::uint64_t>(plan.steps[plan.step_per_row ? row : 0]);
  asked.random.row = plan.seed_per_row ? 0 : row;
  return asked;
}

// Errors: as Sample().
Result<SamplePlan> PlanSample(const SampleArgs& args);

// The facts of a GPU on which the form depends.
struct SampleDevice {
  int multiprocessors = 0;
  int shared_bytes = 0;       // that a thread block can have
  bool has_clusters = false;  // and this build has code for them
};

// Tokens of a part where a row is that of so many blocks.
std::uint32_t PartOfRow(const SamplePlan& plan, std::uint32_t blocks) noexcept;

// Thread blocks to a row; 1: the form kBlock. Errors: kUnsupported where the plan asks for kCluster
// and the device has none, or not enough shared memory for a row.
Result<std::uint32_t> BlocksOfRow(const SamplePlan& plan, const SampleDevice& device);

}  // namespace ferry::kernels
