#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/errands.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/transfer/stager.h"

namespace ferry::transfer {

// Tells GPU memory from host memory, and has a stager for each GPU whose memory is used. Any
// thread.
class DeviceMemory {
 public:
  explicit DeviceMemory(const Config& config) : config_(config) {}

  // Of the GPU whose memory this is; null for host memory, pinned memory too. Makes it at the first
  // use of a GPU, which takes tenths of seconds. Lives as long as this. Errors: kInvalidArgument
  // (memory that was freed, or goes beyond its allocation), kUnsupported (managed memory), those of
  // Stager::Create().
  Result<Stager*> StagerOf(std::span<const std::byte> memory);
  // Of every GPU whose memory is used, by ordinal.
  std::vector<StagingCounters> Counters();

  // Of a GPU whose memory has been used; or null.
  Stager* Known(int ordinal);
  Errands& errands() noexcept { return errands_; }

 private:
  Result<Stager*> StagerFor(cuda::DeviceApi* api, int ordinal);

  const Config& config_;
  Errands errands_;  // before the stagers, whose copies may still post some
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Stager>> stagers_;  // by ordinal; under mutex_
};

}  // namespace ferry::transfer
