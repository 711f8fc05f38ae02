// Moves received messages from the pool to their destinations in batches.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"

namespace ferry {

enum class UnpackBy : unsigned char {
  kKernel,  // one launch for a batch
  kDma,     // one copy of the engine for each block: for few and large ones
  // This thread, where pool and destinations are memory that the CPU reaches; with a GPU, by way of
  // pinned memory, for checking.
  kHost,
};

struct UnpackerOptions {
  UnpackBy by = UnpackBy::kKernel;
  // From where the pool is to where the destinations are; of no meaning without a GPU.
  cuda::CopyKind kind = cuda::CopyKind::kDeviceToDevice;
  std::uint32_t most_batches = 32;  // under way; 1 to kMostUnpackBatches
  // Under way, of kUnpackPiece bytes or less each, as blocks are cut: for the kernel 16 bytes of
  // pinned memory each.
  std::uint64_t most_pieces = std::uint64_t{1} << 16;
  std::uint32_t groups = 0;  // thread blocks of a kernel; 0: as KernelExecutorOptions has it
};
inline constexpr std::uint32_t kMostUnpackBatches = 48;
inline constexpr std::uint64_t kUnpackPiece = std::uint64_t{16} << 10;

// Takes messages from a pool on the GPU to their places, many at once, and says when the pool may
// be written again. One for a GPU and a thread, for years: it makes its stream, its events and
// its executor's memory when it is made, and nothing afterwards. One thread at a time.
//
// What the network interface has written must be in the pool before Enqueue() is called: it is when
// the CPU has seen the interface's completion, since work that the CPU queues then comes later
// (devices of compute capability 9 and above; NCCL asks for a flush on older ones). What a stream
// writes, or still reads where a message goes, the caller orders by cuda::DeviceApi::WaitFor() on
// stream(). Batches are carried out in their order.
class Unpacker {
 public:
  // The API outlives it; it is null for kHost on memory that the CPU reaches, and `ordinal` has no
  // meaning then. May wait for all that
  // the device does: see LoadCopyKernels(). Errors: kInvalidArgument for options out of range;
  // those of DeviceApi.
  static Result<std::unique_ptr<Unpacker>> Create(cuda::DeviceApi* api, int ordinal,
                                                  const UnpackerOptions& options = {});
  // By an executor of the caller's, whatever options.by says. A kernel executor should have
  // most_pieces, or more, as its most_blocks: Enqueue() waits otherwise.
  static Result<std::unique_ptr<Unpacker>> CreateWith(cuda::DeviceApi* api, int ordinal,
                                                      std::unique_ptr<DeviceExecutor> executor,
                                                      const UnpackerOptions& options = {});
  // Waits until nothing is under way, at most a minute.
  ~Unpacker();
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  // Queues the messages as one batch and returns its ticket: 1, 2, 3 and so on. A request is one
  // message: its blocks, validated (FragmentReader), which may go when this returns, its place, and
  // its pool. Requests have no order among themselves, and must not write what others of the call
  // read or write. There may be none, or only empty ones. Does not wait, but for kHost, which
  // copies here, and for kDma where the device's queue is full (see DeviceApi).
  //
  // Errors: kUnavailable where most_batches or most_pieces are under way: ask Completed(), then try
  // again; kInvalidArgument for a batch of more pieces than that. Nothing has happened after these
  // two. Those of the executor and of DeviceApi are for good: the batch may be queued in part, and
  // all later calls return the error, but for Drain().
  Result<std::uint64_t> Enqueue(std::span<const PlacedList> requests);

  // The ticket of the newest batch that is done, with all before it; 0 for none yet. The pools of
  // these may be written again, and the bytes are in their places for all that is queued or read
  // from now on. Never waits. Errors: those of DeviceApi, kDeviceLost among them, for good.
  Result<std::uint64_t> Completed();

  // Waits until nothing that was enqueued touches any memory, also after an error. Errors:
  // kTimedOut, when it still may; those of DeviceApi: after kDeviceLost nothing does any more.
  Status Drain(Deadline deadline);

  // Batches that Enqueue() has events for, and those under way; as of the last Completed().
  std::size_t room() const noexcept { return ring_.size() - under_way(); }
  std::size_t under_way() const noexcept { return static_cast<std::size_t>(issued_ - done_); }
  // From where the pool is, for one who finds that out later than when this was made: in place of
  // UnpackerOptions::kind. Before the first Enqueue().
  void SetKind(cuda::CopyKind kind) noexcept { kind_ = kind; }
  // Where it queues its work. Not for kHost.
  cuda::StreamRef stream() const noexcept { return stream_; }

 private:
  struct Batch {
    cuda::Event end;  // none for kHost
    std::uint64_t pieces = 0;
  };

  Unpacker(cuda::DeviceApi* api, const UnpackerOptions& options);

  static Status CheckOptions(const UnpackerOptions& options);
  Status MakeStream(int ordinal);
  Status CheckRoom(std::uint64_t pieces, std::size_t requests) const;
  Status Queue(std::span<const PlacedList> requests, const cuda::Event& end);
  // Keeps the first error for all later calls.
  Error Fail(const char* doing, const Error& error);

  cuda::DeviceApi* const api_;  // null for kHost
  const UnpackerOptions options_;
  cuda::CopyKind kind_;
  cuda::Stream stream_;
  std::unique_ptr<DeviceExecutor> executor_;  // null for kHost
  std::vector<Batch> ring_;                   // batch t at t % size
  std::uint64_t issued_ = 0;                  // batches, of all time
  std::uint64_t done_ = 0;
  std::uint64_t pieces_ = 0;  // under way
  std::optional<Error> failed_;
};

}  // namespace ferry
