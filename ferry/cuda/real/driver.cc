// Finds the CUDA driver's functions at run time.
#include "ferry/cuda/real/driver.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "ferry/cuda/error.h"

namespace ferry::cuda::real {
namespace {

// The API version whose function variants are requested, as in the types above.
constexpr unsigned kDriverVersion = 12000;

template <class Function>
Status Find(const char* name, Function* function) {
  void* found = nullptr;
  auto outcome = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &outcome);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return CudaError(error, cudaGetErrorName(error), cudaGetErrorString(error),
                     fmt::format("finding {} in libcuda.so.1", name));
  }
  if (outcome != cudaDriverEntryPointSuccess || found == nullptr) {
    return Error(
        Code::kUnsupported,
        fmt::format("the NVIDIA driver has no {} of CUDA 12.0; install a newer driver", name));
  }
  *function = reinterpret_cast<Function>(found);
  return Ok();
}

// Through the runtime and not by linking libcuda.so.1, so that a program starts without a driver.
Result<const Driver*> Load() {
  Driver driver;
  FERRY_TRY(Find("cuGetErrorName", &driver.get_error_name));
  FERRY_TRY(Find("cuGetErrorString", &driver.get_error_string));
  FERRY_TRY(Find("cuDeviceGet", &driver.device_get));
  FERRY_TRY(Find("cuDevicePrimaryCtxRetain", &driver.primary_context_retain));
  FERRY_TRY(Find("cuCtxPushCurrent", &driver.context_push));
  FERRY_TRY(Find("cuCtxPopCurrent", &driver.context_pop));
  FERRY_TRY(Find("cuCtxGetDevice", &driver.context_device));
  FERRY_TRY(Find("cuPointerGetAttributes", &driver.pointer_get_attributes));
  // Optional: only callers that need them get an error.
  if (!Find("cuStreamWaitValue32", &driver.stream_wait_value32) ||
      !Find("cuStreamWriteValue32", &driver.stream_write_value32)) {
    driver.stream_wait_value32 = nullptr;
    driver.stream_write_value32 = nullptr;
  }
  if (!Find("cuTensorMapEncodeTiled", &driver.tensor_map_encode_tiled)) {
    driver.tensor_map_encode_tiled = nullptr;
  }
  return new Driver(driver);  // never destroyed
}

}  // namespace

Result<const Driver*> LoadDriver() {
  static const Result<const Driver*> driver = Load();
  return driver;
}

Error DriverError(const Driver& driver, CUresult result, std::string_view tried, SourceLoc at) {
  const char* name = nullptr;
  const char* text = nullptr;
  (void)driver.get_error_name(result, &name);
  (void)driver.get_error_string(result, &text);
  // Both APIs use the same error numbers.
  return CudaError(static_cast<int>(result), name != nullptr ? name : "CUDA_ERROR_UNKNOWN",
                   text != nullptr ? text : "unknown error", tried, at);
}

}  // namespace ferry::cuda::real
