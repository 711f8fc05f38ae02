// The GPU of a provider's lanes.
#pragma once
#include <memory>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/unpack/unpacker.h"

namespace ferry::tcpx {

class LaneBufferPool;

// The GPU whose memory the lanes of a provider send and receive; none without `api`.
struct LaneGpu {
  cuda::DeviceApi* api = nullptr;
  int ordinal = 0;
  std::shared_ptr<LaneBufferPool> buffers = nullptr;  // shared with lanes; with `api`
  // How what arrives in pieces is put into its memory. kAuto: by the kernel, or by kDma where the
  // kernel cannot read the plugin's pool.
  UnpackBy by = UnpackBy::kAuto;

  explicit operator bool() const noexcept { return api != nullptr; }
  // Plugins ask CUDA which GPU is current, and want it to be the comm's: to be held while they are
  // called.
  Result<cuda::CurrentDevice> MakeCurrent() const {
    if (api == nullptr) return cuda::CurrentDevice();
    return api->MakeCurrent(ordinal);
  }
};

}  // namespace ferry::tcpx
