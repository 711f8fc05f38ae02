// The value of `--memory`: host memory or one GPU.
#pragma once
#include <string>
#include <string_view>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"

namespace ferry::tools {

// For --help; what Parse() takes.
inline constexpr const char* kMemoryForms = "host, cuda (GPU 0) or cuda:N";

// What `--memory` names: "host", "cuda" (GPU 0) or "cuda:N".
struct MemoryChoice {
  int ordinal = -1;  // -1: host memory

  // Errors: kInvalidArgument.
  static Result<MemoryChoice> Parse(std::string_view text);
  std::string ToString() const;
  bool is_host() const noexcept { return ordinal < 0; }
  // The GPUs that have this one; null for host memory. Errors: kUnsupported without GPUs,
  // kInvalidArgument for one that there is not.
  Result<cuda::DeviceApi*> Open(const Config& config) const;
};

}  // namespace ferry::tools
