// The value of `--memory`: host memory or one GPU.
#pragma once
#include <string>
#include <string_view>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"

namespace ferry::tools {

// The forms that Parse() accepts, for --help.
inline constexpr const char* kMemoryForms = "host, cuda (GPU 0) or cuda:N";

// The memory named by `--memory`: "host", "cuda" (GPU 0) or "cuda:N".
struct MemoryChoice {
  int ordinal = -1;  // -1: host memory

  // Errors: kInvalidArgument.
  static Result<MemoryChoice> Parse(std::string_view text);
  std::string ToString() const;
  bool is_host() const noexcept { return ordinal < 0; }
  // Opens the devices that include this GPU; null for host memory. Errors: kUnsupported without
  // GPUs, kInvalidArgument for a GPU that does not exist.
  Result<cuda::DeviceApi*> Open(const Config& config) const;
  // Makes the GPU this thread's current device for as long as the result lives; nothing for host
  // memory. An endpoint over a network plugin is for the GPU that is current when it is created.
  // Errors: those of Open() and of DeviceApi.
  Result<cuda::CurrentDevice> MakeCurrent(const Config& config) const;
};

}  // namespace ferry::tools
