// Checks arguments, plans and launches sampling.

#include "ferry/kernels/sampler/sampler.h"

#include <fmt/core.h>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/op.h"
#include "ferry/kernels/rows.h"
#include "ferry/kernels/sampler/sampler_plan.h"

namespace ferry::kernels {
namespace {

constexpr const char* kSampleName = "sample";
// A bound of the kernel's own shared memory.
constexpr std::int64_t kSampleStaticBytes = 8 * 1024;
constexpr std::uint32_t kMinClusterTokens = 16 * 1024;

Status CheckNumbers(const Argument& numbers, DType dtype, const SampleArgs& args) {
  FERRY_TRY(numbers.IsView(1, 1));
  FERRY_TRY(numbers.HasType({dtype}));
  FERRY_TRY(numbers.IsContiguous());
  return Argument{kSampleName, "out", args.out}.IsApartFrom(numbers);
}

// One number for each row; may be omitted.
Status CheckOfRows(const Argument& numbers, DType dtype, const SampleArgs& args) {
  if (numbers.tensor.none()) return Ok();
  FERRY_TRY(CheckNumbers(numbers, dtype, args));
  return numbers.HasShape({args.logits.shape[0]}, "one for each row of logits");
}

// One number for each row, or one for all rows; may be omitted.
Status CheckOfRowsOrAll(const Argument& numbers, const SampleArgs& args) {
  if (numbers.tensor.none()) return Ok();
  FERRY_TRY(CheckNumbers(numbers, DType::kInt64, args));
  if (numbers.tensor.shape[0] == 1) return Ok();
  return numbers.HasShape({args.logits.shape[0]}, "one for each row of logits, or one for all");
}

Status CheckSample(const SampleArgs& args) {
  const Argument logits{kSampleName, "logits", args.logits};
  const Argument out{kSampleName, "out", args.out};
  FERRY_TRY(logits.IsView(2, 2));
  FERRY_TRY(logits.HasType(kFloats));
  FERRY_TRY(logits.HasDenseRows());
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;
  if (args.logits.shape[0] > kMaxRows) return logits.Wrong("of at most 2^31 - 1 rows");
  if (args.logits.last() < 1 || args.logits.last() > kMaxTokens) {
    return logits.Wrong("of 1 to 2^30 tokens along its last size");
  }
  FERRY_TRY(out.IsView(1, 1));
  FERRY_TRY(out.HasType({DType::kInt64}));
  FERRY_TRY(out.HasShape({args.logits.shape[0]}, "one for each row of logits"));
  FERRY_TRY(out.IsContiguous());
  FERRY_TRY(out.IsApartFrom(logits));
  FERRY_TRY(CheckOfRows({kSampleName, "temperatures", args.temperatures}, DType::kFloat32, args));
  FERRY_TRY(CheckOfRows({kSampleName, "top_k", args.top_k}, DType::kInt32, args));
  FERRY_TRY(CheckOfRows({kSampleName, "top_p", args.top_p}, DType::kFloat32, args));
  FERRY_TRY(CheckOfRowsOrAll({kSampleName, "seeds", args.seeds}, args));
  return CheckOfRowsOrAll({kSampleName, "steps", args.steps}, args);
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchSample(const SamplePlan& plan, cuda::StreamRef stream);  // sampler.cu
#else
static Status LaunchSample(const SamplePlan&, cuda::StreamRef) { return NoDeviceCode(kSampleName); }
#endif

Result<SamplePlan> PlanSample(const SampleArgs& args) {
  FERRY_TRY(CheckSample(args));
  SamplePlan plan;
  plan.logits = args.logits.data;
  plan.stride = args.logits.stride[0];
  plan.out = static_cast<std::int64_t*>(args.out.data);
  plan.temperatures = static_cast<const float*>(args.temperatures.data);
  plan.top_k = static_cast<const std::int32_t*>(args.top_k.data);
  plan.top_p = static_cast<const float*>(args.top_p.data);
  plan.seeds = static_cast<const std::int64_t*>(args.seeds.data);
  plan.steps = static_cast<const std::int64_t*>(args.steps.data);
  // One row's is its own either way: the counter's word is 0 for both.
  plan.seed_per_row = !args.seeds.none() && args.seeds.shape[0] > 1;
  plan.step_per_row = !args.steps.none() && args.steps.shape[0] > 1;
  plan.seed = args.seed;
  plan.step = args.step;
  plan.rows = static_cast<std::uint32_t>(args.logits.shape[0]);
  plan.vocabulary = static_cast<std::uint32_t>(args.logits.last());
  plan.dtype = args.logits.dtype;
  plan.form = args.form;
  plan.wide = plan.vocabulary % (16 / SizeOf(plan.dtype)) == 0 && RowsAreAligned(args.logits, 16);
  return plan;
}

std::uint32_t PartOfRow(const SamplePlan& plan, std::uint32_t blocks) noexcept {
  const auto packed = static_cast<std::uint32_t>(16 / SizeOf(plan.dtype));
  const std::uint32_t words = (plan.vocabulary + packed - 1) / packed;
  return (words + blocks - 1) / blocks * packed;
}

Result<std::uint32_t> BlocksOfRow(const SamplePlan& plan, const SampleDevice& device) {
  const bool asked = plan.form == SampleForm::kCluster;
  if (plan.form == SampleForm::kBlock || (!asked && plan.vocabulary < kMinClusterTokens)) {
    return 1U;
  }
  if (!device.has_clusters) {
    if (!asked) return 1U;
    return Error(Code::kUnsupported,
                 "sample: this build has no code for clusters on this device, which need compute "
                 "capability 9.0 or more; use the form kBlock");
  }
  const auto fits = [&](std::uint32_t blocks) {
    const std::int64_t bytes = PartOfRow(plan, blocks) * std::int64_t{SizeOf(plan.dtype)};
    return bytes + kSampleStaticBytes <= device.shared_bytes;
  };
  for (std::uint32_t blocks = kMaxSampleBlocks; blocks > 1; blocks /= 2) {
    const bool at_once =
        std::uint64_t{plan.rows} * blocks <= static_cast<std::uint64_t>(device.multiprocessors);
    if (at_once && fits(blocks)) return blocks;
  }
  if (!asked) return 1U;
  for (std::uint32_t blocks = 2; blocks <= kMaxSampleBlocks; blocks *= 2) {
    if (fits(blocks)) return blocks;
  }
  return Error(
      Code::kUnsupported,
      fmt::format("sample: a row of {} {} does not fit the shared memory of {} thread "
                  "blocks of {} bytes; use the form kBlock",
                  plan.vocabulary, NameOf(plan.dtype), kMaxSampleBlocks, device.shared_bytes));
}

Status Sample(const SampleArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const SamplePlan plan, PlanSample(args));
  return plan.rows == 0 ? Ok() : LaunchSample(plan, stream);
}

const cuda::Kernel kSampleKernel =
    MakeKernel<Sample, SampleCpu, &SampleArgs::logits, &SampleArgs::out, &SampleArgs::temperatures,
               &SampleArgs::top_k, &SampleArgs::top_p, &SampleArgs::seeds, &SampleArgs::steps>(
        kSampleName);

}  // namespace ferry::kernels
