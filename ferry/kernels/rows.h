// Tensors as rows of their last size, for ops that process each row on its own. There are at most
// three sizes before the last; those that can be joined in all tensors of a call are joined, so
// that usually one remains.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>

#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// Number of rows by size: row = (outer index * middle + middle index) * inner + inner index.
struct RowSizes {
  std::uint32_t outer = 1;
  std::uint32_t middle = 1;
  std::uint32_t inner = 1;

  std::int64_t count() const noexcept { return std::int64_t{outer} * middle * inner; }
  friend bool operator==(const RowSizes&, const RowSizes&) = default;
};

// Distances between rows along each size, in elements.
struct RowStrides {
  std::int64_t outer = 0;
  std::int64_t middle = 0;
  std::int64_t inner = 0;
  friend bool operator==(const RowStrides&, const RowStrides&) = default;
};

// Maximum number of rows of an op: the limit of a grid with one thread block per row.
inline constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;

// Offset of a row from the tensor's first element, in elements.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline std::int64_t
    RowOffset(const RowSizes& sizes, const RowStrides& strides, std::uint32_t row) noexcept {
  if (sizes.middle == 1 && sizes.outer == 1) return row * strides.inner;
  const std::uint32_t rest = row / sizes.inner;
  const std::uint32_t inner = row % sizes.inner;
  if (sizes.outer == 1) return rest * strides.middle + inner * strides.inner;
  return (rest / sizes.middle) * strides.outer + (rest % sizes.middle) * strides.middle +
         inner * strides.inner;
}

// The common row sizes of several tensors, and the row strides of each.
struct JoinedRows {
  RowSizes sizes;
  std::array<RowStrides, 4> strides;  // of each tensor
};
// Takes one to four tensors whose sizes are equal except for the last, with at most kMaxRows rows.
JoinedRows JoinRows(std::initializer_list<const Tensor*> tensors);

// Whether all rows begin at multiples of `bytes`, so that they can be accessed in words of that
// size.
bool RowsAreAligned(const Tensor& tensor, std::int64_t bytes) noexcept;

}  // namespace ferry::kernels
