// The simulated form and the descriptor of the staged copy kernels.
#include "tools/bench/copies/staged_kernels.h"

#include <cstring>

#include "ferry/cuda/address.h"

namespace ferry::tools {
namespace {

Status EmulateStaged(cuda::EmulatedMemory& memory, const void* arguments) {
  const auto& given = *static_cast<const StagedArguments*>(arguments);
  const std::uint64_t bytes = given.tiles * kStagedTile;
  FERRY_TRY_ASSIGN(std::byte* const dst, memory.At(cuda::AddressOf(given.dst), bytes));
  FERRY_TRY_ASSIGN(const std::byte* const src, memory.At(cuda::AddressOf(given.src), bytes));
  std::memcpy(dst, src, bytes);
  return Ok();
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchStaged(cuda::StreamRef stream, const void* arguments);  // staged_kernels.cu
#else
constexpr Status (*LaunchStaged)(cuda::StreamRef, const void*) = nullptr;
#endif

const cuda::Kernel kStagedKernel{
    .name = "staged copy", .launch = LaunchStaged, .emulate = EmulateStaged};

}  // namespace ferry::tools
