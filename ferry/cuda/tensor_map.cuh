// Tensor maps for TMA copies, and checks for sm_90a code.
#pragma once
#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

// Tensor maps that kernels need for TMA copies of tiles (ferry/cuda/prim/tma.cuh), for .cu files in
// builds with CUDA; implemented in real/tensor_map.cc.
namespace ferry::cuda {

enum class TensorElement : unsigned char { kFloat16, kBfloat16 };

// A tensor in device memory, and the tiles that are copied from it.
struct TensorMapShape {
  static constexpr std::size_t kMaxRank = 4;
  TensorElement element = TensorElement::kFloat16;
  const void* data = nullptr;  // aligned to 16 bytes
  int rank = 0;                // 2 to 4
  // Innermost dimension first; its elements are contiguous.
  std::array<std::uint64_t, kMaxRank> size{};          // 1 to 2^32
  std::array<std::uint64_t, kMaxRank> stride_bytes{};  // of all but the innermost: multiples of 16
                                                       // below 2^40, from the second entry on
  std::array<std::uint32_t, kMaxRank> tile{};          // 1 to 256; the innermost is 64 at most
};

// Tiles lie in shared memory with CU_TENSOR_MAP_SWIZZLE_128B (prim::PanelTile); elements outside
// the tensor are zeros. Makes no device call, so kernels can be captured in graphs, which keep the
// map. Pass it to kernels as a __grid_constant__ parameter. Errors: kInvalidArgument for a shape
// that a map cannot describe; kUnsupported where the driver has no tensor maps.
Result<CUtensorMap> MakeTensorMap(const TensorMapShape& shape);

// Whether a kernel that needs sm_90a (compute capability 9.0 and the instructions that later GPUs
// lack) can run on the stream's device. The kernel must have static shared memory, and none where
// it was compiled, without a body, for another architecture. CUDA's answer is cached. Any thread.
// Errors: kUnsupported, with what the device and build have.
Status CheckHopperCode(const void* kernel, const char* name, StreamRef stream);
template <class... Parameters>
Status CheckHopperCode(void (*kernel)(Parameters...), const char* name, StreamRef stream) {
  return CheckHopperCode(reinterpret_cast<const void*>(kernel), name, stream);
}

// The same as a query, which also requires a driver that supports tensor maps: false where CUDA
// does not answer. Cached in any case. Any thread.
bool HasHopperCode(const void* kernel, StreamRef stream);
template <class... Parameters>
bool HasHopperCode(void (*kernel)(Parameters...), StreamRef stream) {
  return HasHopperCode(reinterpret_cast<const void*>(kernel), stream);
}

}  // namespace ferry::cuda
