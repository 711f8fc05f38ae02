// Memory that a user of the provider of plugins has registered.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "ferry/core/check.h"
#include "ferry/net/provider.h"

namespace ferry::tcpx {

// What Provider::Register() returns. Plugins register memory for each comm, so a lane registers it
// with its comm when a frame names it first, and again undoes that when the memory is gone.
struct PluginMemory final : net::RegisteredMemory {
  PluginMemory(std::span<std::byte> the_memory, bool is_on_gpu)
      : memory(the_memory), on_gpu(is_on_gpu) {}
  const std::span<std::byte> memory;
  const bool on_gpu;
  // Watched by lanes that have registered it with their comms.
  const std::shared_ptr<const std::byte> life = std::make_shared<const std::byte>();
};

inline const PluginMemory& PluginMemoryOf(const net::RegisteredRange& range) {
  const auto* const mine = dynamic_cast<const PluginMemory*>(range.memory);
  FERRY_CHECK(mine != nullptr);  // another provider's
  FERRY_CHECK(range.offset <= mine->memory.size(), range.offset, mine->memory.size());
  FERRY_CHECK(range.bytes <= mine->memory.size() - range.offset, range.offset, range.bytes);
  return *mine;
}

}  // namespace ferry::tcpx
