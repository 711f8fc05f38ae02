// Executors that queue block lists on GPU streams.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "ferry/copy/block_list.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"

namespace ferry {

// The location of one side of a copy. Block offsets are relative to it.
struct Place {
  std::uint64_t address = 0;
  std::uint64_t mapped = 0;  // address of the same bytes for kernels of the executor's device

  static Place OnDevice(const void* address) noexcept;
  // For pinned or registered memory. Errors: those of DeviceApi::MappedAddress().
  static Result<Place> OnHost(cuda::DeviceApi& api, int ordinal, void* address);
  Place operator+(std::uint64_t bytes) const noexcept { return {address + bytes, mapped + bytes}; }
};

// A validated list between two places. May be destroyed when Enqueue() has returned.
struct PlacedList {
  std::span<const Block> blocks;
  Place dst;
  Place src;
};

// Queues block lists on streams of one GPU. Lists and blocks of one call have no order among
// themselves: none may write what another one reads or writes. One thread at a time.
class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;

  // "dma", "host" or "kernel"; static storage.
  virtual std::string_view name() const noexcept = 0;

  // Returns when all work is queued; the bytes are in place when the stream has completed it. Until
  // then the memory must stay valid and the sources unchanged. Host memory must be pinned or
  // registered. Errors: those of DeviceApi; after an error, part of the work may be queued.
  virtual Status Enqueue(cuda::StreamRef stream, cuda::CopyKind kind,
                         std::span<const PlacedList> lists) = 0;
};

// Limits of a call that sums: lists, and the bytes of each.
inline constexpr std::size_t kMaxSummed = 16;
inline constexpr std::uint64_t kMaxSummedBytes = std::uint64_t{16} << 20;
// Cells in which a kernel leaves the parts of one list's sum.
inline constexpr std::size_t kSumCells = 128;
inline constexpr std::size_t kSumSheetBytes = kMaxSummed * kSumCells * sizeof(std::uint32_t);

// Where a call leaves the sums of its lists: kSumSheetBytes of pinned memory, aligned to 4. The
// caller keeps it until the stream has completed the call.
struct SumSheet {
  std::uint32_t* cells = nullptr;
  std::uint64_t mapped = 0;  // address of the cells for kernels of the executor's device
};
// The CRC-32C of list number `list`, of `bytes` bytes. After the stream has completed the call.
std::uint32_t ReadSum(const SumSheet& sheet, std::size_t list, std::uint64_t bytes) noexcept;

// The side of a copy whose addresses give the order of the bytes that are summed.
enum class SumOrder : unsigned char { kDestination, kSource };

// A kernel executor that also computes checksums.
class SummingExecutor : public DeviceExecutor {
 public:
  // As Enqueue(), and sums the bytes of each list as the kernel has read them: what leaves the sum
  // unchanged but not the destination happened on the kernel's way to it. On the side of `order`
  // the blocks of a list lie one after another, in order and without gaps, from the start of the
  // list's place. At most kMaxSummed lists of at most kMaxSummedBytes. Resets the sheet.
  virtual Status EnqueueSummed(cuda::StreamRef stream, SumOrder order,
                               std::span<const PlacedList> lists, const SumSheet& sheet) = 0;
};

// One asynchronous copy for each run of blocks in which each continues the previous one. For few
// large blocks.
std::unique_ptr<DeviceExecutor> MakeDmaExecutor(cuda::DeviceApi* api);

// As "dma", but copies within the GPU go through pinned host memory, each block down and up again:
// slow, but every byte leaves the GPU. A reference for the other executors. Allocates its memory
// here. Errors: those of DeviceApi.
Result<std::unique_ptr<DeviceExecutor>> MakeHostExecutor(cuda::DeviceApi* api, int ordinal);

struct KernelExecutorOptions {
  // Thread blocks for copies to and from the host: two saturate PCIe 5.0, and the rest of the GPU
  // stays free for computation.
  std::uint32_t host_groups = 8;
  std::uint32_t device_groups = 0;  // for copies within the GPU; 0: four for each multiprocessor
  std::size_t most_blocks = std::size_t{1} << 16;  // in flight, over all lists; 16 bytes each
};

// Loads the kernels of these executors on the device of the stream, which should be idle. Otherwise
// CUDA loads them at the first launch, and then waits for all work of the device, including streams
// that wait for flags (docs/gotchas.md). Errors: kUnsupported, naming the device and the fix, where
// this build has no code for the device or CUDA cannot load it; those of DeviceApi.
Status LoadCopyKernels(cuda::DeviceApi* api, cuda::StreamRef stream);
// As LoadCopyKernels(), but returns false instead of kUnsupported: use MakeDmaExecutor() then. The
// first time for a device of the process, logs a warning.
Result<bool> HaveCopyKernels(cuda::DeviceApi* api, cuda::StreamRef stream);

// One kernel launch for all lists of a call (several for more blocks than fit). For many small
// blocks: a kernel accesses pinned host memory directly, at the speed of the bus. Allocates pinned
// memory and events here; Enqueue() allocates nothing, and blocks while the blocks in flight leave
// no room for more. Errors: those of DeviceApi.
Result<std::unique_ptr<DeviceExecutor>> MakeKernelExecutor(
    cuda::DeviceApi* api, int ordinal, const KernelExecutorOptions& options = {});

// The same with checksums.
Result<std::unique_ptr<SummingExecutor>> MakeSummingExecutor(
    cuda::DeviceApi* api, int ordinal, const KernelExecutorOptions& options = {});

}  // namespace ferry
