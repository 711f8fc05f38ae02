// Host memory that a user of the provider of plugins has registered.
#pragma once
#include <cstddef>
#include <span>

#include "ferry/core/check.h"
#include "ferry/net/provider.h"

namespace ferry::net::plugin {

// What Provider::Register() returns. Plugins register memory for each comm, so a lane registers it
// with its comm while queued frames name it.
struct PluginMemory final : RegisteredMemory {
  explicit PluginMemory(std::span<std::byte> the_memory) : memory(the_memory) {}
  const std::span<std::byte> memory;
};

inline const PluginMemory& PluginMemoryOf(const RegisteredRange& range) {
  const auto* const mine = dynamic_cast<const PluginMemory*>(range.memory);
  FERRY_CHECK(mine != nullptr);  // another provider's
  FERRY_CHECK(range.offset <= mine->memory.size(), range.offset, mine->memory.size());
  FERRY_CHECK(range.bytes <= mine->memory.size() - range.offset, range.offset, range.bytes);
  return *mine;
}

}  // namespace ferry::net::plugin
