// Implements element sizes, descriptions and properties of tensor views.

#include "ferry/kernels/tensor.h"

#include <fmt/core.h>

#include <algorithm>

namespace ferry::kernels {

std::int64_t SizeOf(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat8E4m3: return 1;
    case DType::kFloat16:
    case DType::kBfloat16: return 2;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kInt64: return 8;
  }
  return 0;
}

const char* NameOf(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32: return "fp32";
    case DType::kFloat16: return "fp16";
    case DType::kBfloat16: return "bf16";
    case DType::kFloat8E4m3: return "e4m3";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
  }
  return "unknown";
}

Tensor Tensor::Contiguous(void* data, DType dtype,
                          std::initializer_list<std::int64_t> shape) noexcept {
  Tensor tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = std::min(static_cast<int>(shape.size()), kMaxRank);
  std::copy_n(shape.begin(), tensor.rank, tensor.shape.begin());
  std::int64_t stride = 1;
  for (auto d = static_cast<std::size_t>(tensor.rank); d-- > 0;) {
    tensor.stride[d] = stride;
    stride *= tensor.shape[d];
  }
  return tensor;
}

std::int64_t Tensor::Numel() const noexcept {
  // A tensor of rank 0 is one that was left out, not a scalar.
  std::int64_t count = rank > 0 ? 1 : 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d) count *= shape[d];
  return count;
}

bool Tensor::IsContiguous() const noexcept {
  if (Numel() == 0) return true;
  std::int64_t expected = 1;
  for (auto d = static_cast<std::size_t>(rank); d-- > 0;) {
    // The stride of a size of 1 is never used, and torch leaves any value there.
    if (shape[d] != 1 && stride[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

std::int64_t Tensor::SpanBytes() const noexcept {
  if (Numel() == 0) return 0;
  std::int64_t last_element = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d) {
    last_element += (shape[d] - 1) * stride[d];
  }
  return (last_element + 1) * SizeOf(dtype);
}

std::string ShapeName(const std::int64_t* sizes, int rank) {
  std::string name = "[";
  for (int d = 0; d < rank; ++d) name += fmt::format("{}{}", d > 0 ? ", " : "", sizes[d]);
  return name + "]";
}

std::string ToString(const Tensor& tensor) {
  if (tensor.none()) return "left out";
  std::string name =
      fmt::format("{} {}", ShapeName(tensor.shape.data(), tensor.rank), NameOf(tensor.dtype));
  if (tensor.IsContiguous()) return name;
  return fmt::format("{} with strides {}", name, ShapeName(tensor.stride.data(), tensor.rank));
}

}  // namespace ferry::kernels
