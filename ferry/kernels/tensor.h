// A tensor as ops see it: a non-owning view of memory with shape, strides and element type.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace ferry::kernels {

enum class DType : std::uint8_t { kFloat32, kFloat16, kBfloat16, kFloat8E4m3, kInt32, kInt64 };

std::int64_t SizeOf(DType dtype) noexcept;  // bytes
const char* NameOf(DType dtype) noexcept;   // "fp32", "fp16", "bf16", "e4m3", "int32", "int64"

inline constexpr int kMaxRank = 4;
using Extents = std::array<std::int64_t, kMaxRank>;

// A non-owning view of host or GPU memory. The element with indices i is sum(i[d] * stride[d])
// elements behind `data`. A view of rank 0 means an omitted argument.
struct Tensor {
  void* data = nullptr;  // may be null where there are no elements
  DType dtype = DType::kFloat32;
  int rank = 0;  // sizes and strides from this index on are ignored
  Extents shape{};
  Extents stride{};  // in elements

  // A view with row-major strides; `shape` has at most kMaxRank sizes.
  static Tensor Contiguous(void* data, DType dtype,
                           std::initializer_list<std::int64_t> shape) noexcept;

  bool none() const noexcept { return rank == 0; }
  std::int64_t last() const noexcept { return shape[static_cast<std::size_t>(rank) - 1]; }
  std::int64_t Numel() const noexcept;  // 0 for none
  // Whether the elements are dense and row-major.
  bool IsContiguous() const noexcept;
  // Bytes from `data` to the end of the last element.
  std::int64_t SpanBytes() const noexcept;

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// "[7, 1024] bf16"; with the strides where it is not contiguous:
// "[7, 1024] bf16 with strides [4096, 1]".
std::string ToString(const Tensor& tensor);
// "[7, 1024]"
std::string ShapeName(const std::int64_t* sizes, int rank);

}  // namespace ferry::kernels
