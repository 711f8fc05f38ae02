// Ways to call an unpack kernel, from the slowest to the fastest, for `ferry copy-bench --unpack
// --ladder`.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "ferry/copy/block_kernel.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/unpack/unpacker.h"
#include "tools/bench/unpack/unpack_bed.h"

namespace ferry::tools {

// What is done for each chunk. All but the last two launch one kernel for each.
enum class Rung : unsigned char {
  kAllAnew,       // a stream, memory for descriptors, a wait, and both are freed
  kKeptLauncher,  // the stream is kept
  kAsynchronous,  // there is one wait, at the end
  kPreallocated,  // memory is kept, too: Unpacker
  kOneLaunch,     // one launch for all chunks: a batch of Unpacker
  kCopyEngine,    // no kernel: a copy by the engine for each fragment
};
inline constexpr int kRungs = 6;

// The same chunks by each rung. One thread.
class UnpackLadder {
 public:
  // Makes what the rungs keep. `bed` must outlive it. Errors: kInvalidArgument for more than
  // kMaxUnpackBatches chunks; those of Unpacker::Create().
  static Result<std::unique_ptr<UnpackLadder>> Create(cuda::DeviceApi* api, int ordinal,
                                                      UnpackBed* bed);

  // Unpacks all chunks of the bed, and blocks until they are in place. Errors: kTimedOut, when some
  // of the work is still queued; those of DeviceApi.
  Status Climb(Rung rung, Deadline deadline);

 private:
  // A chunk's descriptors, as the launcher is given them.
  struct Descriptors {
    cuda::PinnedBuffer blocks;
    BlockKernelArguments arguments;
  };

  explicit UnpackLadder(cuda::DeviceApi* api) : api_(api) {}
  Result<Descriptors> Describe(int ordinal, const PlacedList& chunk, std::uint32_t groups) const;
  Status Launch(cuda::StreamRef stream, const Descriptors& chunk);
  Status Finish(cuda::StreamRef stream, Deadline deadline);

  cuda::DeviceApi* const api_;
  std::vector<PlacedList> chunks_;
  std::vector<Descriptors> descriptors_;  // of each chunk
  cuda::Stream stream_;
  std::vector<cuda::DeviceBuffer> launched_;  // memory for descriptors that the GPU may still read
  std::unique_ptr<tcpx::Unpacker> kernel_;
  std::unique_ptr<tcpx::Unpacker> engine_;
};

}  // namespace ferry::tools
