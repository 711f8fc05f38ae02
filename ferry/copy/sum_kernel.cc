// The simulated form and the descriptor of the summing copy kernel.
#include "ferry/copy/sum_kernel.h"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "ferry/core/crc32c_parts.h"
#include "ferry/cuda/address.h"

namespace ferry {
namespace {

Status SumBlock(cuda::EmulatedMemory& memory, const SumKernelArguments& given, const Block& block) {
  FERRY_TRY_ASSIGN(std::byte * dst, memory.At(block.dst, block.len));
  FERRY_TRY_ASSIGN(const std::byte* src, memory.At(block.src, block.len));
  // Reads the source once, as the kernel does: its owner may write to it meanwhile.
  std::array<std::byte, kSumPiece> held;
  std::memcpy(held.data(), src, block.len);
  std::memcpy(dst, held.data(), block.len);
  const std::uint64_t at = given.by_source ? block.src : block.dst;
  for (std::size_t row = 0; row < kMaxSummed; ++row) {
    const std::uint64_t offset = at - given.starts[row];
    if (offset >= given.lengths[row]) continue;
    FERRY_TRY_ASSIGN(std::byte * cell, memory.At(cuda::AddressOf(given.cells + row * kSumCells),
                                                 sizeof(std::uint32_t)));
    std::uint32_t sum = 0;
    std::memcpy(&sum, cell, sizeof sum);
    sum ^= Crc32cPart(std::span(held).first(block.len), offset);
    std::memcpy(cell, &sum, sizeof sum);
    return Ok();
  }
  return Error(Code::kInvalidArgument,
               fmt::format("{} bytes at {:#x} are in no list", block.len, at));
}

Status EmulateSumKernel(cuda::EmulatedMemory& memory, const void* arguments) {
  const auto& given = *static_cast<const SumKernelArguments*>(arguments);
  if (given.count == 0) return Ok();
  std::vector<PackedBlock> blocks(given.count);
  const std::size_t bytes = blocks.size() * sizeof(PackedBlock);
  FERRY_TRY_ASSIGN(const std::byte* list, memory.At(cuda::AddressOf(given.blocks), bytes));
  std::memcpy(blocks.data(), list, bytes);
  for (const PackedBlock& packed : blocks) {
    const Block block = Unpack(packed);
    if (block.len > kSumPiece) {
      return Error(Code::kInvalidArgument, fmt::format("a piece of {} bytes", block.len));
    }
    if (block.len > 0) FERRY_TRY(SumBlock(memory, given, block));
  }
  return Ok();
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchSumKernel(cuda::StreamRef stream, const void* arguments);  // sum_kernel.cu
#else
constexpr Status (*LaunchSumKernel)(cuda::StreamRef, const void*) = nullptr;
#endif

const cuda::Kernel kSumKernel{
    .name = "summing copy", .launch = LaunchSumKernel, .emulate = EmulateSumKernel};

}  // namespace ferry
