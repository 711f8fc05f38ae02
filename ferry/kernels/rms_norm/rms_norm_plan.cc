// Plans RMS norm: the checks and the choice of a form that all its ops share.

#include "ferry/kernels/rms_norm/rms_norm_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace ferry::kernels {
namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kSmallBlock = 256;  // threads, where rows share one

std::uint32_t RoundUp(std::uint32_t value, std::uint32_t to) { return (value + to - 1) / to * to; }

std::uint32_t HeldBy(RmsNormForm form) {
  switch (form) {
    case RmsNormForm::kOneWord: return 1;
    case RmsNormForm::kTwoWords: return 2;
    case RmsNormForm::kFourWords: return 4;
    case RmsNormForm::kEightElements:
    case RmsNormForm::kTwoPass: return 8;
  }
  return 1;
}

constexpr std::uint32_t kFewRows = 264;  // two for each multiprocessor of an H200

// Words that a row has for each of its threads, where that makes a block that is no larger than
// needed for a row to be quick.
bool IsQuick(const RmsNormPlan& plan) {
  return plan.rows <= kFewRows && plan.words <= kRmsNormMaxThreads;
}

// Few words: a row to a part of a warp, several rows to a block. More: a block to a row, whose
// threads have a word each, two where there is no residual, or four where the row is long.
RmsNormForm ChosenForm(const RmsNormPlan& plan) {
  if (!plan.wide) return RmsNormForm::kEightElements;
  const bool one = plan.words <= kWarp || IsQuick(plan) || plan.residual != nullptr;
  if (one && plan.words <= kRmsNormMaxThreads) return RmsNormForm::kOneWord;
  return plan.words <= 2 * kRmsNormMaxThreads ? RmsNormForm::kTwoWords : RmsNormForm::kFourWords;
}

}  // namespace

Status CheckNormInput(const Argument& x) {
  FERRY_TRY(x.IsView(1, kMaxRank));
  FERRY_TRY(x.HasType(kFloats));
  FERRY_TRY(x.HasDenseRows());
  // A grid's first size is limited to kMaxRows, and rows are counted in 32 bits.
  if (x.tensor.last() > 0 && x.tensor.Numel() / x.tensor.last() > kMaxRows) {
    return x.Wrong("one of at most 2^31 - 1 rows");
  }
  if (x.tensor.last() > kMaxRows) return x.Wrong("one of at most 2^31 - 1 columns");
  return Ok();
}

Status CheckNormWeight(const Argument& weight, const Argument& x) {
  FERRY_TRY(weight.IsView(1, 1));
  FERRY_TRY(weight.HasTypeOf(x));
  FERRY_TRY(weight.HasShape({x.tensor.last()}, fmt::format("the last size of {}", x.name).c_str()));
  return weight.IsContiguous();
}

Status CheckLikeNormInput(const Argument& other, const Argument& x) {
  FERRY_TRY(other.IsView(1, kMaxRank));
  FERRY_TRY(other.HasTypeOf(x));
  FERRY_TRY(other.HasShapeOf(x));
  return other.HasDenseRows();
}

Status CheckNormEps(const char* op, float eps) {
  if (eps >= 0 && std::isfinite(eps)) return Ok();
  return WrongNumber(op, "eps", eps, "0 or more");
}

RmsNormPlan BeginNormPlan(const Tensor& x, const Tensor& weight, const JoinedRows& joined,
                          float eps) {
  RmsNormPlan plan;
  plan.x = x.data;
  plan.weight = weight.data;
  plan.x_strides = joined.strides[0];
  plan.sizes = joined.sizes;
  plan.rows = static_cast<std::uint32_t>(joined.sizes.count());
  plan.eps = eps;
  plan.per_column = static_cast<float>(1.0 / static_cast<double>(x.last()));
  plan.dtype = x.dtype;
  return plan;
}

void FinishNormPlan(const Tensor& weight, bool aligned, RmsNormPlan* plan) {
  const std::int64_t packed = 16 / SizeOf(plan->dtype);
  plan->wide = aligned && RowsAreAligned(weight, 16) && weight.last() % packed == 0;
  plan->words = static_cast<std::uint32_t>(plan->wide ? weight.last() / packed : weight.last());
  plan->form = ChosenForm(*plan);
  const std::uint32_t held = HeldBy(plan->form);
  const std::uint32_t threads = plan->words / held + (plan->words % held != 0 ? 1 : 0);
  if (threads > kRmsNormMaxThreads) plan->form = RmsNormForm::kTwoPass;
  if (threads <= kWarp) {
    // Part of a warp: WarpSum() adds over groups of a power of two.
    plan->threads_per_row = std::bit_ceil(std::max(threads, 1U));
    plan->rows_per_block = std::max(kSmallBlock / plan->threads_per_row, 1U);
    // Few rows: one warp to a block, so that they spread over as many multiprocessors as possible.
    if (IsQuick(*plan)) plan->rows_per_block = kWarp / plan->threads_per_row;
  } else {
    plan->threads_per_row = RoundUp(std::min(threads, kRmsNormMaxThreads), kWarp);
    plan->rows_per_block = 1;
  }
  plan->blocks = (plan->rows + plan->rows_per_block - 1) / plan->rows_per_block;
}

}  // namespace ferry::kernels
