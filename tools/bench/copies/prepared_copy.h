// Block lists stored in GPU memory and copied by one launch: the yardstick of copies and unpacking.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ferry/copy/device_executor.h"

namespace ferry::tools {

struct PrepareOptions {
  std::uint32_t groups = 0;  // thread blocks; 0: as the kernel executor
  // The kernel may start before the previous kernel of the stream has ended, and then waits for it:
  // saves the launch latency between two kernels. Ignored before compute capability 9.
  bool early = true;
};

// Block lists that are copied many times, stored in GPU memory once: the pages of one layer after
// another, or the same weights again. Must outlive all work that it has queued. Any thread, on any
// stream of its GPU.
class PreparedCopy {
 public:
  virtual ~PreparedCopy() = default;

  // Queues one kernel, which reads over the bus only blocks in host memory. The shifts, in bytes,
  // are added to all destination and all source addresses; the results must be in the same
  // allocations or registrations. The requirements on memory are those of
  // DeviceExecutor::Enqueue(). Errors: kInvalidArgument for a stream of another GPU and for shifts
  // that leave the address space; those of DeviceApi.
  virtual Status Enqueue(cuda::StreamRef stream, std::int64_t dst_shift = 0,
                         std::int64_t src_shift = 0) const = 0;

  // Bytes and pieces of one Enqueue().
  virtual std::uint64_t bytes() const noexcept = 0;
  virtual std::size_t pieces() const noexcept = 0;  // 16 bytes of GPU memory each
};

// Validates the lists, joins blocks that continue each other on both sides, even from different
// lists, distributes them over the kernel's warps, and blocks until the result is in GPU memory, at
// most a minute. The lists may be destroyed afterwards. Not checked: that no block writes what
// another one reads. Errors: those of BlockList::Validate(), which numbers the blocks over all
// lists; those of DeviceApi.
Result<std::unique_ptr<PreparedCopy>> PrepareCopy(cuda::DeviceApi* api, int ordinal,
                                                  cuda::CopyKind kind,
                                                  std::span<const PlacedList> lists,
                                                  const PrepareOptions& options = {});

}  // namespace ferry::tools
