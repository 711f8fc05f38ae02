// Encodes tensor maps and checks for sm_90a code.
#include "ferry/cuda/tensor_map.cuh"

#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "ferry/cuda/real/driver.h"
#include "ferry/cuda/resources.h"

namespace ferry::cuda {
namespace {

constexpr int kHopper = 9;

}  // namespace

Result<CUtensorMap> MakeTensorMap(const TensorMapShape& shape) {
  FERRY_TRY_ASSIGN(const real::Driver* const driver, real::LoadDriver());
  if (driver->tensor_map_encode_tiled == nullptr) {
    return Error(Code::kUnsupported,
                 "the NVIDIA driver has no cuTensorMapEncodeTiled of CUDA 12.0; install a newer "
                 "driver, or use a form without the copy engine");
  }
  constexpr std::array<std::uint32_t, TensorMapShape::kMaxRank> kEachElement = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result = driver->tensor_map_encode_tiled(
      &map,
      shape.element == TensorElement::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      static_cast<cuuint32_t>(shape.rank), const_cast<void*>(shape.data), shape.size.data(),
      // The first stride, that of the elements, is implied.
      shape.stride_bytes.data() + 1, shape.tile.data(), kEachElement.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  const auto rank = static_cast<std::size_t>(shape.rank);
  return real::DriverError(
      *driver, result,
      fmt::format("cuTensorMapEncodeTiled for tiles [{}] of [{}] 16-bit elements at {}, [{}] bytes "
                  "apart",
                  fmt::join(std::span(shape.tile).first(rank), ", "),
                  fmt::join(std::span(shape.size).first(rank), ", "), shape.data,
                  fmt::join(std::span(shape.stride_bytes).first(rank).subspan(1), ", ")));
}

bool HasHopperCode(const void* kernel, StreamRef stream) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, bool> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({kernel, stream.ordinal()}, false);
  if (!is_new) return found->second;
  int major = 0;
  cudaFuncAttributes attributes{};
  const bool asked = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                            stream.ordinal()) == cudaSuccess &&
                     major == kHopper && cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess;
  if (!asked) (void)cudaGetLastError();
  const Result<const real::Driver*> driver = real::LoadDriver();
  // Code for other targets has an empty body, and so no static shared memory: that tells the two
  // apart.
  found->second = asked && attributes.sharedSizeBytes != 0 && driver &&
                  (*driver)->tensor_map_encode_tiled != nullptr;
  return found->second;
}

Status CheckHopperCode(const void* kernel, const char* name, StreamRef stream) {
  // Queried once for each device: one may have compiled code that another lacks.
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> right;
  const std::pair key(kernel, stream.ordinal());
  const std::lock_guard lock(mutex);
  if (right.contains(key)) return Ok();
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.ordinal()) ==
          cudaSuccess &&
      major != kHopper) {
    return Error(Code::kUnsupported,
                 fmt::format("{}: device {} has compute capability {}.x; this form needs 9.0, use "
                             "another",
                             name, stream.ordinal(), major));
  }
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
    // The launch reports the error.
    (void)cudaGetLastError();
    return Ok();
  }
  if (attributes.sharedSizeBytes == 0) {
    return Error(Code::kUnsupported,
                 fmt::format("{}: this build has no code with wgmma for device {}; build with 90a "
                             "in FERRY_CUDA_ARCH, or use another form",
                             name, stream.ordinal()));
  }
  right.insert(key);
  return Ok();
}

}  // namespace ferry::cuda
