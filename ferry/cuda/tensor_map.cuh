// Tensor maps for TMA copies, and checks for sm_90a code.
#pragma once
#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

// What kernels need for copies of tiles by the copy engine (ferry/prim/tma.cuh), for .cu files. In
// builds with CUDA; the functions are in real/tensor_map.cc.
namespace ferry::cuda {

enum class TensorElement : unsigned char { kFloat16, kBfloat16 };

// A tensor in device memory, and the tiles that are copied of it.
struct TensorMapShape {
  static constexpr std::size_t kMaxRank = 4;
  TensorElement element = TensorElement::kFloat16;
  const void* data = nullptr;  // a multiple of 16
  int rank = 0;                // 2 to 4
  // The innermost first, whose elements follow each other.
  std::array<std::uint64_t, kMaxRank> size{};          // 1 to 2^32
  std::array<std::uint64_t, kMaxRank> stride_bytes{};  // of all but the innermost: multiples of 16
                                                       // below 2^40, from the second entry on
  std::array<std::uint32_t, kMaxRank> tile{};          // 1 to 256; the innermost is 64 at most
};

// Tiles lie in shared memory as CU_TENSOR_MAP_SWIZZLE_128B says (prim::PanelTile); what of them is
// outside of the tensor is zeros. Calls nothing of the device, so that kernels can be captured in
// graphs, which keep the map. Goes to kernels as a __grid_constant__ parameter. Errors:
// kInvalidArgument for what a map cannot describe; kUnsupported where the driver has none.
Result<CUtensorMap> MakeTensorMap(const TensorMapShape& shape);

// Whether a kernel that needs compute capability 9.0 and its instructions beyond those that later
// GPUs have (sm_90a) can run on the stream's device. It must have static shared memory, and none
// where it was compiled for something else, without a body. Asked of CUDA once. Any thread. Errors:
// kUnsupported, with what there is.
Status CheckHopperCode(const void* kernel, const char* name, StreamRef stream);
template <class... Parameters>
Status CheckHopperCode(void (*kernel)(Parameters...), const char* name, StreamRef stream) {
  return CheckHopperCode(reinterpret_cast<const void*>(kernel), name, stream);
}

// The same as a choice rather than a demand, with a driver that makes tensor maps: false, too,
// where CUDA does not say. Asked once, whatever comes of it. Any thread.
bool HasHopperCode(const void* kernel, StreamRef stream);
template <class... Parameters>
bool HasHopperCode(void (*kernel)(Parameters...), StreamRef stream) {
  return HasHopperCode(reinterpret_cast<const void*>(kernel), stream);
}

}  // namespace ferry::cuda
