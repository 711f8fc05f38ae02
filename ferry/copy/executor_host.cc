#include "ferry/copy/executor_host.h"

#include <cstring>

namespace ferry {

Status HostExecutor::Execute(const BlockList& list, std::span<std::byte> dst,
                             std::span<const std::byte> src) {
  FERRY_TRY(list.Validate(dst.size(), src.size()));
  for (const Block& block : list.blocks()) {
    std::memcpy(dst.data() + block.dst, src.data() + block.src, block.len);
  }
  return Ok();
}

}  // namespace ferry
