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
#include "ferry/tcpx/unpack/rows_queue.h"

namespace ferry::tcpx {

enum class UnpackBy : unsigned char {
  kAuto,    // kKernel where the GPU can run the kernels of this build, otherwise kDma
  kKernel,  // one launch for a batch
  kDma,     // one engine copy for each block: for few large ones
  // This thread copies, where the CPU can access pool and destinations; with a GPU, through pinned
  // memory, as a reference.
  kHost,
};

// "kernel", "dma" or "host".
const char* UnpackName(UnpackBy by) noexcept;

struct UnpackerOptions {
  UnpackBy by = UnpackBy::kAuto;
  // From the pool's memory to the destinations' memory; ignored without a GPU.
  cuda::CopyKind kind = cuda::CopyKind::kDeviceToDevice;
  std::uint32_t most_batches = 32;  // in flight; 1 to kMaxUnpackBatches
  // Pieces in flight; blocks are cut into pieces of at most kUnpackPiece bytes. The kernel needs 16
  // bytes of pinned memory for each.
  std::uint64_t most_pieces = std::uint64_t{1} << 16;
  std::uint32_t groups = 0;  // thread blocks of a kernel; 0: as KernelExecutorOptions has it
};
inline constexpr std::uint32_t kMaxUnpackBatches = 48;
inline constexpr std::uint64_t kUnpackPiece = std::uint64_t{16} << 10;

// Copies messages from a pool on the GPU to their destinations, many at once, and reports when the
// pool may be overwritten. One per GPU and thread. Allocates its stream, events and executor memory
// at creation, and nothing afterwards. One thread at a time.
//
// The network interface must have written the data to the pool before Enqueue() is called. That
// holds once the CPU has seen the interface's completion, because work that the CPU queues
// afterwards runs later (devices of compute capability 9 and above; NCCL requests a flush on older
// ones). If a stream writes the pool, or still reads a destination, the caller orders it by
// cuda::DeviceApi::WaitFor() on stream(). Batches run in order.
class Unpacker {
 public:
  // `api` must outlive it; null for kHost on memory that the CPU can access, where `ordinal` is
  // ignored. May block until the device is idle: see LoadCopyKernels(). Errors: kInvalidArgument
  // for options out of range; kUnsupported for kKernel where the GPU cannot run it; those of
  // DeviceApi.
  static Result<std::unique_ptr<Unpacker>> Create(cuda::DeviceApi* api, int ordinal,
                                                  const UnpackerOptions& options = {});
  // Uses the caller's executor instead of options.by. A kernel executor should have most_blocks of
  // at least most_pieces, or Enqueue() blocks.
  static Result<std::unique_ptr<Unpacker>> CreateWith(cuda::DeviceApi* api, int ordinal,
                                                      std::unique_ptr<DeviceExecutor> executor,
                                                      const UnpackerOptions& options = {});
  // Waits until no batch is in flight, at most a minute.
  ~Unpacker();
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  // Queues the messages as one batch and returns its ticket: 1, 2, 3 and so on. A request is one
  // message: its blocks, validated (FragmentReader) and needed only during this call, its
  // destination and its pool. Requests have no order among themselves: none may write what another
  // one of the call reads or writes. There may be none, or only empty ones. Does not block, except
  // kHost, which copies here, and kDma where the device's queue is full (see DeviceApi).
  //
  // Errors: kUnavailable where most_batches or most_pieces are in flight: call Completed(), then
  // try again; kInvalidArgument for a batch with more pieces than most_pieces. Nothing has happened
  // after these two. Errors of the executor and of DeviceApi are final: the batch may be queued in
  // part, and all later calls except Drain() return the error.
  Result<std::uint64_t> Enqueue(std::span<const PlacedList> requests);

  // As Enqueue(), for messages whose rows the GPU reads and checks itself: nothing of a message is
  // written unless all its rows are right. Refused messages are known when the batch is done
  // (TakeRefused()). There are no pieces to count; a batch has at most kMaxRowsMessages messages
  // and kMaxRowsRuns runs, a message kMaxMessageRuns. Errors as Enqueue(), and also kCorrupt for a
  // message that does not fit its receive, and kUnsupported unless reads_rows(); nothing has
  // happened after these.
  Result<std::uint64_t> EnqueueRows(std::span<const RowsRequest> requests);
  // Whether EnqueueRows() can be used: with a kernel, not with an executor of the caller's.
  bool reads_rows() const noexcept { return rows_ != nullptr; }
  // Thread blocks of the last EnqueueRows(); 0 before the first.
  std::uint32_t rows_groups() const noexcept { return rows_ ? rows_->last_groups() : 0; }
  // The refused messages of this batch, in order; the next call for it returns none. The batch must
  // be done. They are kept until they are taken.
  std::vector<RefusedRows> TakeRefused(std::uint64_t ticket);

  // The ticket of the newest batch that is done along with all before it; 0 for none yet. The pools
  // of these batches may be overwritten, and their bytes are visible to work queued, and reads
  // made, from now on. Never blocks. Errors: those of DeviceApi, including kDeviceLost; they are
  // final.
  Result<std::uint64_t> Completed();

  // Blocks until no queued work touches memory, also after an error. Errors: kTimedOut, when some
  // still may; those of DeviceApi: after kDeviceLost none does.
  Status Drain(Deadline deadline);

  // Batches that can still be queued, and those in flight; as of the last Completed().
  std::size_t room() const noexcept { return ring_.size() - in_flight(); }
  std::size_t in_flight() const noexcept { return static_cast<std::size_t>(issued_ - done_); }
  // The stream on which it queues work. Not for kHost.
  cuda::StreamRef stream() const noexcept { return stream_; }

 private:
  struct Batch {
    cuda::Event end;  // none for kHost
    std::uint64_t pieces = 0;
    bool rows = false;  // of EnqueueRows()
  };

  Unpacker(cuda::DeviceApi* api, const UnpackerOptions& options);

  static Status CheckOptions(const UnpackerOptions& options);
  static Result<std::unique_ptr<Unpacker>> CreateIdle(cuda::DeviceApi* api, int ordinal,
                                                      const UnpackerOptions& options);
  Status MakeExecutor();
  Status CheckRoom(std::uint64_t pieces, std::size_t requests) const;
  std::size_t SlotOf(std::uint64_t ticket) const noexcept { return ticket % ring_.size(); }
  // The oldest batch in flight is done.
  void FinishOldest();
  Status Queue(std::span<const PlacedList> requests, const cuda::Event& end);
  // Keeps the first error for all later calls.
  Error Fail(const char* doing, const Error& error);

  cuda::DeviceApi* const api_;  // null for kHost
  const UnpackerOptions options_;
  cuda::Stream stream_;
  std::unique_ptr<DeviceExecutor> executor_;  // null for kHost
  std::unique_ptr<RowsQueue> rows_;           // null unless reads_rows()
  std::vector<Batch> ring_;                   // by SlotOf()
  std::uint64_t issued_ = 0;                  // batches since creation
  std::uint64_t done_ = 0;
  std::uint64_t pieces_ = 0;  // in flight
  std::optional<Error> failed_;
  std::vector<RefusedRows> refused_;  // not taken yet
};

}  // namespace ferry::tcpx
