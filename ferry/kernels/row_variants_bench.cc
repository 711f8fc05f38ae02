#include <algorithm>
#include <utility>

#include "ferry/kernels/elementwise/elementwise_plan.h"
#include "ferry/kernels/rms_norm/rms_norm_plan.h"
#include "ferry/kernels/testing/variant_bench.h"

// fused_add_gelu, rms_norm and add_rms_norm in all their forms. Rows of 4096.
namespace ferry::kernels {

Status LaunchAddGelu(const AddGeluPlan& plan, cuda::StreamRef stream);
Status LaunchRmsNorm(const RmsNormPlan& plan, cuda::StreamRef stream);

namespace {

using Holds = BenchBuffer::Holds;

constexpr std::int64_t kBenchCols = 4096;
constexpr std::uint32_t kMultiprocessors = 132;

constexpr cuda::Kernel kAddGeluPlanned{"fused_add_gelu",
                                       [](cuda::StreamRef stream, const void* plan) {
                                         return LaunchAddGelu(
                                             *static_cast<const AddGeluPlan*>(plan), stream);
                                       },
                                       nullptr};
constexpr cuda::Kernel kRmsNormPlanned{"rms_norm",
                                       [](cuda::StreamRef stream, const void* plan) {
                                         return LaunchRmsNorm(
                                             *static_cast<const RmsNormPlan*>(plan), stream);
                                       },
                                       nullptr};

Tensor RowsAt(void* data, const BenchSize& size) {
  return Tensor::Contiguous(data, size.dtype, {size.count, kBenchCols});
}
std::uint64_t BytesOfRows(const BenchSize& size) {
  return static_cast<std::uint64_t>(size.count * kBenchCols * SizeOf(size.dtype));
}

AddGeluArgs GeluArgs(const BenchSize& size, BenchAddresses at) {
  return {RowsAt(at[0], size), Tensor::Contiguous(at[1], size.dtype, {kBenchCols}),
          RowsAt(at[2], size)};
}

BenchVariant GeluVariant(const char* name, const BenchSize& size, AddGeluForm form, bool early) {
  return {name, [=](const BenchStream& to, BenchAddresses at) -> Status {
            FERRY_TRY_ASSIGN(AddGeluPlan plan, PlanAddGelu(GeluArgs(size, at)));
            FERRY_TRY(TakeForm(form, &plan));
            plan.early = early;
            return cuda::LaunchKernel(*to.api, to.stream, kAddGeluPlanned, plan);
          }};
}

BenchOp GeluOp(const BenchSize& size) {
  BenchOp op;
  op.name = "fused_add_gelu";
  op.bytes = 2 * BytesOfRows(size);
  op.Add(Holds::kNumbers, size.dtype, size.count * kBenchCols);
  op.Add(Holds::kNumbers, size.dtype, kBenchCols);
  op.Add(Holds::kResults, size.dtype, size.count * kBenchCols);
  op.on_cpu = [=](BenchAddresses at) { return FusedAddGeluCpu(GeluArgs(size, at)); };
  op.variants = {
      GeluVariant("four words", size, AddGeluForm::kFourWords, false),
      GeluVariant("one word", size, AddGeluForm::kOneWord, false),
      GeluVariant("one word early", size, AddGeluForm::kOneWord, true),
      GeluVariant("two words", size, AddGeluForm::kTwoWords, false),
      GeluVariant("two words early", size, AddGeluForm::kTwoWords, true),
      GeluVariant("two rows", size, AddGeluForm::kTwoRows, false),
      GeluVariant("four rows", size, AddGeluForm::kFourRows, false),
  };
  return op;
}

// A form, and for rings how many blocks a multiprocessor gets.
struct NormChoice {
  const char* name;
  RmsNormForm form;
  bool early = false;
  std::uint32_t resident = 0;
};

RmsNormPlan NormPlanFor(RmsNormPlan plan, const NormChoice& choice) {
  TakeForm(choice.form, &plan);
  plan.early = choice.early;
  if (choice.resident == 0 || plan.form != choice.form) return plan;
  // In checks few, so that each comes to many rows.
  const bool checks = plan.rows % 2 != 0;
  plan.blocks = std::min(plan.rows, checks ? 10 : kMultiprocessors * choice.resident);
  return plan;
}

RmsNormArgs NormArgs(const BenchSize& size, BenchAddresses at) {
  return {.x = RowsAt(at[0], size),
          .weight = Tensor::Contiguous(at[1], size.dtype, {kBenchCols}),
          .out = RowsAt(at[2], size)};
}

BenchOp NormOp(const BenchSize& size) {
  BenchOp op;
  op.name = "rms_norm";
  op.bytes = 2 * BytesOfRows(size);
  op.Add(Holds::kNumbers, size.dtype, size.count * kBenchCols);
  op.Add(Holds::kNumbers, size.dtype, kBenchCols);
  op.Add(Holds::kResults, size.dtype, size.count * kBenchCols);
  op.on_cpu = [=](BenchAddresses at) { return RmsNormCpu(NormArgs(size, at)); };
  for (const NormChoice& choice : {
           NormChoice{"one word", RmsNormForm::kOneWord},
           NormChoice{"one word early", RmsNormForm::kOneWord, true},
           NormChoice{"two words", RmsNormForm::kTwoWords},
           NormChoice{"two words early", RmsNormForm::kTwoWords, true},
           NormChoice{"four words", RmsNormForm::kFourWords},
           NormChoice{"four words early", RmsNormForm::kFourWords, true},
           NormChoice{"eight words", RmsNormForm::kEightWords},
           NormChoice{"sixteen words", RmsNormForm::kSixteenWords},
           NormChoice{"ring of 2, 8 blocks", RmsNormForm::kRingOfTwo, false, 8},
           NormChoice{"ring of 3, 4 blocks", RmsNormForm::kRingOfThree, false, 4},
           NormChoice{"ring of 3, 6 blocks", RmsNormForm::kRingOfThree, false, 6},
           NormChoice{"ring of 4, 4 blocks", RmsNormForm::kRingOfFour, false, 4},
       }) {
    op.variants.push_back({choice.name, [=](const BenchStream& to, BenchAddresses at) -> Status {
                             FERRY_TRY_ASSIGN(const RmsNormPlan plan,
                                              PlanRmsNorm(NormArgs(size, at)));
                             return cuda::LaunchKernel(*to.api, to.stream, kRmsNormPlanned,
                                                       NormPlanFor(plan, choice));
                           }});
  }
  return op;
}

AddRmsNormArgs AddNormArgs(const BenchSize& size, BenchAddresses at) {
  return {.x = RowsAt(at[0], size),
          .residual = RowsAt(at[1], size),
          .weight = Tensor::Contiguous(at[2], size.dtype, {kBenchCols}),
          .residual_out = RowsAt(at[3], size),
          .out = RowsAt(at[4], size)};
}

BenchOp AddNormOp(const BenchSize& size) {
  BenchOp op;
  op.name = "add_rms_norm";
  op.bytes = 4 * BytesOfRows(size);
  op.Add(Holds::kNumbers, size.dtype, size.count * kBenchCols);
  op.Add(Holds::kNumbers, size.dtype, size.count * kBenchCols);
  op.Add(Holds::kNumbers, size.dtype, kBenchCols);
  op.Add(Holds::kResults, size.dtype, size.count * kBenchCols);
  op.Add(Holds::kResults, size.dtype, size.count * kBenchCols);
  op.on_cpu = [=](BenchAddresses at) { return AddRmsNormCpu(AddNormArgs(size, at)); };
  for (const NormChoice& choice : {
           NormChoice{"one word", RmsNormForm::kOneWord},
           NormChoice{"one word early", RmsNormForm::kOneWord, true},
           NormChoice{"two words", RmsNormForm::kTwoWords},
           NormChoice{"four words", RmsNormForm::kFourWords},
           NormChoice{"four words early", RmsNormForm::kFourWords, true},
           NormChoice{"eight words", RmsNormForm::kEightWords},
           NormChoice{"ring of 2, 5 blocks", RmsNormForm::kRingOfTwo, false, 5},
           NormChoice{"ring of 3, 4 blocks", RmsNormForm::kRingOfThree, false, 4},
       }) {
    op.variants.push_back({choice.name, [=](const BenchStream& to, BenchAddresses at) -> Status {
                             FERRY_TRY_ASSIGN(const RmsNormPlan plan,
                                              PlanAddRmsNorm(AddNormArgs(size, at)));
                             return cuda::LaunchKernel(*to.api, to.stream, kRmsNormPlanned,
                                                       NormPlanFor(plan, choice));
                           }});
  }
  return op;
}

const bool kRowVariants = RegisterVariants(GeluOp, {8, 128, 2048, 16384, 65536}) &&
                          RegisterVariants(NormOp, {8, 128, 2048, 16384, 65536}) &&
                          RegisterVariants(AddNormOp, {8, 128, 2048, 16384, 65536});

}  // namespace
}  // namespace ferry::kernels
