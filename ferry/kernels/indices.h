// Vectors of integers that engines keep as int32 or as int64: slots and positions.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/kernels/argument.h"

namespace ferry::kernels {

// A contiguous vector as kernels receive it; indices.cuh reads it on GPUs.
struct Indices {
  const void* data = nullptr;
  bool wide = false;  // int64, otherwise int32

  // On the CPU.
  std::int64_t operator[](std::int64_t i) const noexcept {
    return wide ? static_cast<const std::int64_t*>(data)[i]
                : static_cast<const std::int32_t*>(data)[i];
  }
};

inline Indices IndicesOf(const Tensor& tensor) noexcept {
  return {tensor.data, tensor.dtype == DType::kInt64};
}

// Whether it is a contiguous vector of `count` integers. `why` names the source of the count.
inline Status CheckIndices(const Argument& vector, std::int64_t count, const char* why) {
  FERRY_TRY(vector.IsView(1, 1));
  FERRY_TRY(vector.HasType({DType::kInt32, DType::kInt64}));
  FERRY_TRY(vector.HasShape({count}, why));
  return vector.IsContiguous();
}

}  // namespace ferry::kernels
