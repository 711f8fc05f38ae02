// The CUDA driver functions that the runtime does not offer.
#pragma once
#include <cudaTypedefs.h>

#include "ferry/core/result.h"

// Driver functions without a counterpart in the runtime. Not linked: they are looked up in the
// libcuda.so.1 that the runtime has loaded, so a program also runs without one.
namespace ferry::cuda::real {

struct Driver {
  PFN_cuGetErrorName_v6000 get_error_name = nullptr;
  PFN_cuGetErrorString_v6000 get_error_string = nullptr;
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 primary_context_retain = nullptr;
  PFN_cuCtxPushCurrent_v4000 context_push = nullptr;
  PFN_cuCtxPopCurrent_v4000 context_pop = nullptr;
  PFN_cuCtxGetDevice_v2000 context_device = nullptr;
  PFN_cuPointerGetAttributes_v7000 pointer_get_attributes = nullptr;
  // Null where streams cannot wait for flags.
  PFN_cuStreamWaitValue32_v11070 stream_wait_value32 = nullptr;
  PFN_cuStreamWriteValue32_v11070 stream_write_value32 = nullptr;
  // Null where the driver does not support tensor maps.
  PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encode_tiled = nullptr;
};

// Loaded once; lives as long as the program. Errors: kUnsupported where there is no driver, or it
// lacks a function.
Result<const Driver*> LoadDriver();

// The error of a driver call.
Error DriverError(const Driver& driver, CUresult result, std::string_view tried,
                  SourceLoc at = SourceLoc::Current());

}  // namespace ferry::cuda::real
