// The simulated form and the descriptor of the block copy kernel.
#include "ferry/copy/block_kernel.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ferry/cuda/address.h"

namespace ferry {
namespace {

Status EmulateBlockKernel(cuda::EmulatedMemory& memory, const void* arguments) {
  const auto& given = *static_cast<const BlockKernelArguments*>(arguments);
  if (given.count == 0) return Ok();
  std::vector<PackedBlock> blocks(given.count);
  const std::size_t bytes = blocks.size() * sizeof(PackedBlock);
  FERRY_TRY_ASSIGN(const std::byte* list, memory.At(cuda::AddressOf(given.blocks), bytes));
  std::memcpy(blocks.data(), list, bytes);
  for (const PackedBlock& packed : blocks) {
    Block block = Unpack(packed);
    block.dst += given.dst_shift;
    block.src += given.src_shift;
    if (given.words && !AreWords(block.dst | block.src | block.len)) {
      return Error(Code::kInvalidArgument,
                   fmt::format("{} bytes from {:#x} to {:#x} are no words of 16 bytes", block.len,
                               block.src, block.dst));
    }
    FERRY_TRY_ASSIGN(std::byte * dst, memory.At(block.dst, block.len));
    FERRY_TRY_ASSIGN(const std::byte* src, memory.At(block.src, block.len));
    std::memcpy(dst, src, block.len);
  }
  return Ok();
}

}  // namespace

std::uint32_t DeviceGroups(const cuda::DeviceFacts& facts) noexcept {
  return 4 * static_cast<std::uint32_t>(std::max(facts.multiprocessors, 1));
}

#ifdef FERRY_HAVE_CUDA
Status LaunchBlockKernel(cuda::StreamRef stream, const void* arguments);  // block_kernel.cu
#else
constexpr Status (*LaunchBlockKernel)(cuda::StreamRef, const void*) = nullptr;
#endif

const cuda::Kernel kBlockKernel{
    .name = "block copy", .launch = LaunchBlockKernel, .emulate = EmulateBlockKernel};

}  // namespace ferry
