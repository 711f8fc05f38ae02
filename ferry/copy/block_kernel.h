// Packed blocks and the arguments of the block copy kernel.
#pragma once
#include <cstdint>

#include "ferry/copy/block_list.h"
#include "ferry/cuda/device_api.h"

namespace ferry {

// A block of addresses in 16 bytes, which one GPU thread reads at once: the lower kAddressBits of
// `dst` and `src` are the addresses; above them are the lower and upper half of the length.
struct alignas(16) PackedBlock {
  static constexpr unsigned kAddressBits = 48;
  static constexpr unsigned kHalfBits = 64 - kAddressBits;
  std::uint64_t dst = 0;
  std::uint64_t src = 0;
};
// All memory of a process lies below this: user space has 47 bits on x86-64 and 48 on arm64, unless
// a program asks mmap() for more.
inline constexpr std::uint64_t kAddressLimit = std::uint64_t{1} << PackedBlock::kAddressBits;
inline constexpr std::uint64_t kLongestPacked = std::uint64_t{1} << 30;

// Addresses must be below kAddressLimit, the length at most kLongestPacked.
constexpr PackedBlock Pack(const Block& block) noexcept {
  return {block.dst | block.len << PackedBlock::kAddressBits,
          block.src | block.len >> PackedBlock::kHalfBits << PackedBlock::kAddressBits};
}
constexpr Block Unpack(const PackedBlock& packed) noexcept {
  const std::uint64_t low = packed.dst >> PackedBlock::kAddressBits;
  const std::uint64_t high = packed.src >> PackedBlock::kAddressBits;
  return {packed.dst & (kAddressLimit - 1), packed.src & (kAddressLimit - 1),
          high << PackedBlock::kHalfBits | low};
}

// Whether all blocks consist of whole 16-byte words; `bits` is an OR of their addresses and
// lengths.
constexpr bool AreWords(std::uint64_t bits) noexcept { return bits % 16 == 0; }

// Copies blocks between addresses, one warp per block, with any lengths and alignments; touches no
// byte outside them. Host memory must be mapped for the device and is given by its mapped address.
struct BlockKernelArguments {
  // In device or mapped memory; unchanged until the kernel ends.
  const PackedBlock* blocks = nullptr;
  std::uint64_t dst_shift = 0;  // added to all addresses, modulo 2^64
  std::uint64_t src_shift = 0;
  std::uint32_t count = 0;   // with 0, `blocks` may be null
  std::uint32_t groups = 1;  // thread blocks of kBlockKernelThreads
  // Set if all shifted addresses and all lengths are multiples of 16.
  bool words = false;
  // The kernel may start and read its list while the previous kernel of the stream still runs; it
  // copies when that one has ended. Needs compute capability 9 and a list in device memory.
  bool early = false;
};
inline constexpr std::uint32_t kBlockKernelThreads = 256;
inline constexpr std::uint32_t kBlockKernelWarps = kBlockKernelThreads / 32;

// Thread blocks for copies within this GPU: four for each multiprocessor.
std::uint32_t DeviceGroups(const cuda::DeviceFacts& facts) noexcept;

// Blocks are copied in rounds; in each round a warp gets at most this many consecutive blocks.
inline constexpr std::uint32_t kWarpBlocks = 32;

// A warp's part of a round of `here` blocks; parts differ by at most one block.
struct WarpShare {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr WarpShare
    ShareOf(std::uint32_t warp, std::uint32_t warps, std::uint32_t here) noexcept {
  const std::uint32_t each = here / warps;
  const std::uint32_t more = here % warps;
  return {warp * each + (warp < more ? warp : more), each + (warp < more ? 1 : 0)};
}

extern const cuda::Kernel kBlockKernel;

}  // namespace ferry
