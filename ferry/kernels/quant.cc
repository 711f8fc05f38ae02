// Implements the checks of e4m3 outputs and their scales.

#include "ferry/kernels/quant.h"

#include <fmt/core.h>

#include "ferry/kernels/number.h"

namespace ferry::kernels {
namespace {

Status CheckScaleVector(const Argument& scale, std::int64_t count, const char* why) {
  FERRY_TRY(scale.IsView(1, 4));
  FERRY_TRY(scale.HasType({DType::kFloat32}));
  FERRY_TRY(scale.IsContiguous());
  if (scale.tensor.Numel() == count) return Ok();
  return scale.Wrong(fmt::format("of {} elements, {}", count, why));
}

}  // namespace

std::int64_t RowsOf(const Tensor& tensor) noexcept {
  std::int64_t rows = 1;
  for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(tensor.rank); ++d) {
    rows *= tensor.shape[d];
  }
  return rows;
}

Result<QuantScale> CheckQuantScale(const QuantArguments& arguments, const Argument& out) {
  const Argument& scale = arguments.scale;
  const Argument& bound = arguments.scale_ub;
  const bool per_token = arguments.mode == QuantMode::kPerToken;
  FERRY_TRY(CheckScaleVector(scale, per_token ? arguments.rows : 1,
                             per_token ? "one for each row" : "one for the tensor"));
  FERRY_TRY(out.IsApartFrom(scale));
  QuantScale made;
  if (!per_token) {
    made.given = static_cast<const float*>(scale.tensor.data);
    if (bound.tensor.none()) return made;
    return bound.Wrong("left out where the scale is given");
  }
  made.made = static_cast<float*>(scale.tensor.data);
  if (bound.tensor.none()) return made;
  FERRY_TRY(CheckScaleVector(bound, 1, "a bound for all rows"));
  FERRY_TRY(scale.IsApartFrom(bound));
  FERRY_TRY(out.IsApartFrom(bound));
  made.bound = static_cast<const float*>(bound.tensor.data);
  return made;
}

Status CheckQuantOut(const Argument& out, const Argument& like) {
  FERRY_TRY(out.IsView(1, kMaxRank));
  FERRY_TRY(out.HasType({DType::kFloat8E4m3}));
  FERRY_TRY(out.HasShapeOf(like));
  FERRY_TRY(out.HasDenseRows());
  return out.IsWritable();
}

void QuantiseRow(const QuantScale& scale, std::uint32_t row, std::span<const float> values,
                 void* out, std::int64_t at) noexcept {
  float used = 0;
  if (scale.given != nullptr) {
    used = *scale.given;
  } else {
    float largest = 0;
    for (const float value : values) largest = std::fmax(largest, std::fabs(value));
    scale.made[row] = used = QuantScaleOf(largest, scale.bound);
  }
  const float inverse = QuantInverseOf(used);
  for (const float value : values) WriteFloat(out, DType::kFloat8E4m3, at++, value * inverse);
}

}  // namespace ferry::kernels
