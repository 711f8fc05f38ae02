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

// A view of elements in somebody's memory, of the host or of a GPU. The element of indices i is
// sum(i[d] * stride[d]) elements behind `data`. A view without sizes is none: an argument that is
// left out.
struct Tensor {
  void* data = nullptr;  // may be null where there are no elements
  DType dtype = DType::kFloat32;
  int rank = 0;  // sizes and strides beyond mean nothing
  Extents shape{};
  Extents stride{};  // in elements

  // At most kMaxRank sizes.
  static Tensor Contiguous(void* data, DType dtype,
                           std::initializer_list<std::int64_t> shape) noexcept;

  bool none() const noexcept { return rank == 0; }
  std::int64_t last() const noexcept { return shape[static_cast<std::size_t>(rank) - 1]; }
  std::int64_t Numel() const noexcept;  // 0 for none
  // The elements follow each other in the order of their indices, the last one fastest.
  bool IsContiguous() const noexcept;
  // Bytes from `data` to behind the last element.
  std::int64_t SpanBytes() const noexcept;

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// "[7, 1024] bf16"; with the strides where it is not contiguous:
// "[7, 1024] bf16 with strides [4096, 1]".
std::string ToString(const Tensor& tensor);
// "[7, 1024]"
std::string ShapeName(const std::int64_t* sizes, int rank);

}  // namespace ferry::kernels
