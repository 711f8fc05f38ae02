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

// Where one side of a copy lies. Offsets of blocks count from here.
struct Place {
  std::uint64_t address = 0;
  std::uint64_t mapped = 0;  // the same bytes, as kernels of the executor's device know them

  static Place OnDevice(const void* address) noexcept;
  // Of pinned or registered memory. Errors: those of DeviceApi::MappedAddress().
  static Result<Place> OnHost(cuda::DeviceApi& api, int ordinal, void* address);
  Place operator+(std::uint64_t bytes) const noexcept { return {address + bytes, mapped + bytes}; }
};

// A validated list between two places. The list may go when Enqueue() has returned.
struct PlacedList {
  std::span<const Block> blocks;
  Place dst;
  Place src;
};

// Queues block lists on streams of one GPU. Work of one call has no order among itself, and lists
// of one call must not write what others of it read or write. One thread at a time.
class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;

  // "dma", "host", "kernel", "bounce" or "auto"; lives as long as the program.
  virtual std::string_view name() const noexcept = 0;

  // Returns when all is queued; the bytes are in place when the stream has come this far. The
  // memory must live, and sources stay as they are, until then. Host memory is pinned or
  // registered. Errors: those of DeviceApi; after one, some of it may be queued.
  virtual Status Enqueue(cuda::StreamRef stream, cuda::CopyKind kind,
                         std::span<const PlacedList> lists) = 0;
};

// One asynchronous copy for each run of blocks of which each continues the one before it. For few
// large blocks.
std::unique_ptr<DeviceExecutor> MakeDmaExecutor(cuda::DeviceApi* api);

// As "dma", but what stays within the GPU goes by way of pinned host memory, each block down and up
// again: slow, and sees every byte leave the GPU. For checking the others. Makes its memory here.
// Errors: those of DeviceApi.
Result<std::unique_ptr<DeviceExecutor>> MakeHostExecutor(cuda::DeviceApi* api, int ordinal);

struct KernelExecutorOptions {
  // Of the GPU, for copies to and from the host: two are enough for PCIe 5.0, and what is left is
  // for those who compute.
  std::uint32_t host_groups = 8;
  std::uint32_t device_groups = 0;  // for copies within the GPU; 0: four for each multiprocessor
  std::size_t most_blocks = std::size_t{1} << 16;  // under way, of all lists; 16 bytes each
};

// Loads what these executors launch, on the device of the stream, which should be idle. CUDA does
// so at the first launch otherwise, and then waits for all that the device does, streams that wait
// for flags included (docs/gotchas.md). Errors: those of DeviceApi.
Status LoadCopyKernels(cuda::DeviceApi* api, cuda::StreamRef stream);

// One kernel for all lists of a call (more for more blocks than fit). For many small blocks: a
// kernel reads and writes pinned host memory by itself, at the speed of the bus. Makes its memory,
// pinned, and its events here; Enqueue() makes nothing, and waits where the blocks under way leave
// no room for more. Errors: those of DeviceApi.
Result<std::unique_ptr<DeviceExecutor>> MakeKernelExecutor(
    cuda::DeviceApi* api, int ordinal, const KernelExecutorOptions& options = {});

struct BounceExecutorOptions {
  std::size_t slot_bytes = std::size_t{8} << 20;
  std::uint32_t slots = 2;  // for each way
  // Blocks that lie together on the host, in the list's order, go through a slot when they are this
  // many bytes; blocks that continue each other on both sides go by the engine alone when they are
  // that many.
  std::uint64_t least_run = std::uint64_t{512} << 10;
  std::uint64_t engine_block = std::uint64_t{256} << 10;  // no more than slot_bytes
  // Of the GPU, for gathering and scattering: enough to be many times faster than PCIe.
  std::uint32_t groups = 32;
};

// For many small blocks both ways at once, where the host's side of a list has long runs, as a
// staging slot is: a kernel gathers the blocks of a run in GPU memory, or scatters them from there,
// and the copy engine moves the run as one. Other blocks, and copies within the GPU, go by a kernel
// executor of its own. Makes its memory (slots for each way), streams and events here; Enqueue()
// makes nothing. Errors: those of DeviceApi, kInvalidArgument for options of 0.
Result<std::unique_ptr<DeviceExecutor>> MakeBounceExecutor(
    cuda::DeviceApi* api, int ordinal, const BounceExecutorOptions& options = {});

struct PrepareOptions {
  std::uint32_t groups = 0;  // thread blocks; 0: as many as the kernel executor takes
  // The kernel may come to the GPU before the one before it in the stream has ended, and then waits
  // for that: saves the time of a launch between two. GPUs before compute capability 9 cannot.
  bool early = true;
};

// Lists that are copied many times, written down in GPU memory once: pages of one layer after
// another, or the same weights again. It must live until all that it has queued is done. Any
// threads, on any streams of its GPU.
class PreparedCopy {
 public:
  virtual ~PreparedCopy() = default;

  // Puts one kernel on the stream, which reads nothing over the bus but blocks that lie there. The
  // shifts, in bytes, are added to the addresses of all destinations and of all sources; where they
  // lead must be in the same allocations or registrations. For the memory holds what
  // DeviceExecutor::Enqueue() says. Errors: kInvalidArgument for a stream of another GPU and for
  // shifts that leave the address space; those of DeviceApi.
  virtual Status Enqueue(cuda::StreamRef stream, std::int64_t dst_shift = 0,
                         std::int64_t src_shift = 0) const = 0;

  // Of one Enqueue().
  virtual std::uint64_t bytes() const noexcept = 0;
  virtual std::size_t pieces() const noexcept = 0;  // 16 bytes of GPU memory each
};

// Checks the lists, joins blocks that continue each other on both sides, wherever they are in the
// lists, shares them out among the kernel's warps, and waits until the GPU has it in writing, at
// most a minute. The lists may go then. Not checked: that no block writes what another one reads.
// Errors: those of BlockList::Validate(), which counts the blocks of all lists; those of DeviceApi.
Result<std::unique_ptr<PreparedCopy>> PrepareCopy(cuda::DeviceApi* api, int ordinal,
                                                  cuda::CopyKind kind,
                                                  std::span<const PlacedList> lists,
                                                  const PrepareOptions& options = {});

}  // namespace ferry
