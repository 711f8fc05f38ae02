// Copies of block lists between host memory.
#pragma once
#include <cstddef>
#include <span>

#include "ferry/copy/block_list.h"
#include "ferry/copy/executor.h"

namespace ferry {

// Copies host memory on the calling thread. The blocks must be validated, and their destinations
// must not overlap their sources.
void CopyOnHost(std::span<const Block> blocks, std::byte* dst, const std::byte* src) noexcept;

// Copies between host memory on the calling thread. Stateless: any number of threads may use one at
// the same time.
class HostExecutor final : public Executor {
 public:
  std::string_view name() const noexcept override { return "host"; }
  Status Execute(const BlockList& list, std::span<std::byte> dst,
                 std::span<const std::byte> src) override;
};

}  // namespace ferry
