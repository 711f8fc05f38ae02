// Copies block lists between host memory.
#include "ferry/copy/executor_host.h"

#include <cstring>

namespace ferry {

void CopyOnHost(std::span<const Block> blocks, std::byte* dst, const std::byte* src) noexcept {
  for (const Block& block : blocks) std::memcpy(dst + block.dst, src + block.src, block.len);
}

Status HostExecutor::Execute(const BlockList& list, std::span<std::byte> dst,
                             std::span<const std::byte> src) {
  FERRY_TRY(list.Validate(dst.size(), src.size()));
  CopyOnHost(list.blocks(), dst.data(), src.data());
  return Ok();
}

}  // namespace ferry
