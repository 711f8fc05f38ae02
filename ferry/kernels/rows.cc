// Implements the reduction of tensors to rows.

#include "ferry/kernels/rows.h"

#include <algorithm>

#include "ferry/cuda/address.h"

namespace ferry::kernels {

JoinedRows JoinRows(std::initializer_list<const Tensor*> tensors) {
  // From the innermost size on: a size of 1 is none, and one that goes on where the last ended is
  // more of it.
  const Tensor& first = **tensors.begin();
  std::array<std::size_t, 3> kept{};  // the innermost of the sizes that were joined to one
  std::array<std::int64_t, 3> sizes{1, 1, 1};
  std::size_t count = 0;
  for (auto d = static_cast<std::size_t>(first.rank) - 1; d-- > 0;) {
    if (first.shape[d] == 1) continue;
    const bool goes_on =
        count > 0 && std::all_of(tensors.begin(), tensors.end(), [&](const Tensor* tensor) {
          return tensor->stride[d] == sizes[count - 1] * tensor->stride[kept[count - 1]];
        });
    if (goes_on) {
      sizes[count - 1] *= first.shape[d];
    } else {
      kept[count] = d;
      sizes[count++] = first.shape[d];
    }
  }
  JoinedRows joined;
  joined.sizes = {static_cast<std::uint32_t>(sizes[2]), static_cast<std::uint32_t>(sizes[1]),
                  static_cast<std::uint32_t>(sizes[0])};
  std::size_t at = 0;
  for (const Tensor* tensor : tensors) {
    const auto stride = [&](std::size_t i) { return i < count ? tensor->stride[kept[i]] : 0; };
    joined.strides[at++] = {stride(2), stride(1), stride(0)};
  }
  return joined;
}

bool RowsAreAligned(const Tensor& tensor, std::int64_t bytes) noexcept {
  if (static_cast<std::int64_t>(cuda::AddressOf(tensor.data)) % bytes != 0) return false;
  for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(tensor.rank); ++d) {
    if (tensor.shape[d] > 1 && tensor.stride[d] * SizeOf(tensor.dtype) % bytes != 0) return false;
  }
  return true;
}

}  // namespace ferry::kernels
