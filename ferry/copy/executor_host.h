#pragma once
#include "ferry/copy/executor.h"

namespace ferry {

// Copies between host memory on the calling thread. Has no state: any number of threads may use one
// at the same time.
class HostExecutor final : public Executor {
 public:
  std::string_view name() const noexcept override { return "host"; }
  Status Execute(const BlockList& list, std::span<std::byte> dst,
                 std::span<const std::byte> src) override;
};

}  // namespace ferry
