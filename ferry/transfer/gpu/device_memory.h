// Detects GPU memory and owns one stager per GPU in use.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/loop/background_tasks.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/transfer/gpu/stager.h"

namespace ferry::transfer {

// Tells GPU memory from host memory, and owns a stager for each GPU whose memory is used. Any
// thread.
class DeviceMemory {
 public:
  // `provider`: carries the payloads of connections; may be null.
  explicit DeviceMemory(const Config& config, net::Provider* provider = nullptr)
      : config_(config), provider_(provider) {}

  // Returns the stager of the GPU that owns `memory`; null for host memory, pinned memory included.
  // The first use of a GPU creates its stager, which blocks for tenths of a second. The stager is
  // owned by this object. Errors: kInvalidArgument (memory was freed, or is longer than its
  // allocation), kUnsupported (managed memory), those of Stager::Create().
  Result<Stager*> StagerOf(std::span<const std::byte> memory);
  // Counters of each GPU in use, by ordinal.
  std::vector<StagingCounters> Counters();

  // The stager of a GPU, or null if none of its memory has been used.
  Stager* Known(int ordinal);
  BackgroundTasks& background_tasks() noexcept { return background_tasks_; }

 private:
  Result<Stager*> StagerFor(cuda::DeviceApi* api, int ordinal);

  const Config& config_;
  net::Provider* const provider_;
  BackgroundTasks background_tasks_;  // before the stagers, whose copies may still post tasks
  std::mutex making_;                 // of one stager at a time; before mutex_
  std::mutex mutex_;                  // held briefly: loops look for stagers, too
  std::map<int, std::unique_ptr<Stager>> stagers_;  // by ordinal; under mutex_
};

}  // namespace ferry::transfer
