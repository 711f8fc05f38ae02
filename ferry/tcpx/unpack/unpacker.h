// Moves received messages from the pool to their destinations in batches.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/unpack/fragments.h"

namespace ferry::tcpx {

class RowsQueue;

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
  // Thread blocks of a launch, at most; 0: as KernelExecutorOptions has it. A small batch gets as
  // few as its pieces need, so there is no other kernel for it.
  std::uint32_t groups = 0;
  // The caller's stream, on this GPU: batches run between the work that the caller has queued on it
  // before and what it queues later. Must outlive the unpacker, be idle during Create(), and not be
  // captured. None: a stream of the unpacker's own, of high priority, because a part of the pool
  // stays occupied until its message is copied. Ignored without a GPU.
  std::optional<cuda::StreamRef> stream = std::nullopt;
  // Measures batches on the GPU (times()), which costs one more event for each.
  bool timing = false;
};
inline constexpr std::uint32_t kMaxUnpackBatches = 48;
inline constexpr std::uint64_t kUnpackPiece = std::uint64_t{16} << 10;

// The GPU's time for batches, from when the stream reaches a batch until it is done. On a stream
// that is idle this includes the microseconds in which the CPU queues the batch.
struct BatchTimes {
  std::uint64_t batches = 0;
  std::chrono::nanoseconds total{0};
  std::chrono::nanoseconds longest{0};
  std::chrono::nanoseconds newest{0};
};

// A message whose rows the GPU reads.
struct RowsRequest {
  // In memory that kernels can access, by its mapped address, a multiple of 16: pinned or
  // registered host memory, or the GPU's. Complete when the request is queued, and kept until its
  // batch is done.
  const Fragment* rows = nullptr;
  std::size_t count = 0;
  PostedReceive receive;  // needed only during the call
  Place dst;
  Place src;  // the pool
};

// The most of one batch.
inline constexpr std::size_t kMaxRowsMessages = 128;
inline constexpr std::size_t kMaxRowsRuns = 1024;  // over all messages; kMaxMessageRuns for each

// A message that the GPU has refused: nothing was written to its runs.
struct RefusedRows {
  std::uint64_t ticket = 0;  // of its batch
  std::size_t index = 0;     // in the batch
  Error error;               // kCorrupt naming the faulty row, as FragmentReader::Read()
};

// Copies messages from a pool on the GPU to their destinations, many at once, and reports when the
// pool may be overwritten. One per GPU and thread. Makes its stream, events and executor memory at
// creation, and nothing afterwards. One thread at a time.
//
// The network interface must have written the data to the pool before Enqueue() is called. That
// holds once the CPU has seen the interface's completion, because work that the CPU queues
// afterwards runs later (devices of compute capability 9 and above; NCCL requests a flush on older
// ones). If another stream writes the pool, or still reads a destination, the caller orders it by
// cuda::DeviceApi::WaitFor() on stream(). Batches run in order.
class Unpacker {
 public:
  // `api` must outlive it; null for kHost on memory that the CPU can access, where `ordinal` is
  // ignored. May block until the device is idle: see LoadCopyKernels(). Errors: kInvalidArgument
  // for options out of range, and for another GPU's stream; kUnsupported for kKernel where the GPU
  // cannot run it; those of DeviceApi.
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
  std::uint32_t rows_groups() const noexcept;
  // The refused messages of this batch, in order; the next call for it returns none. The batch must
  // be done. They are kept until they are taken.
  std::vector<RefusedRows> TakeRefused(std::uint64_t ticket);

  // The ticket of the newest batch that is done along with all before it; 0 for none yet. The pools
  // of these batches may be overwritten, and their bytes are visible to work queued, and reads
  // made, from now on. Never blocks. Errors: those of DeviceApi, including kDeviceLost; they are
  // final.
  Result<std::uint64_t> Completed();

  // Blocks until no queued batch touches memory, also after an error, when it waits for everything
  // that the stream was given. Errors: kTimedOut, when some still may; those of DeviceApi: after
  // kDeviceLost none does.
  Status Drain(Deadline deadline);

  // Batches that can still be queued, and those in flight; as of the last Completed().
  std::size_t room() const noexcept { return ring_.size() - in_flight(); }
  std::size_t in_flight() const noexcept { return static_cast<std::size_t>(issued_ - done_); }
  // The stream on which it queues work. Not without a GPU.
  cuda::StreamRef stream() const noexcept { return *stream_; }
  // Counts the batches that Completed() and Drain() have found done. All 0 unless
  // UnpackerOptions::timing, and without a GPU.
  const BatchTimes& times() const noexcept { return times_; }

 private:
  struct Batch {
    cuda::Event begin;  // only for timing
    cuda::Event end;    // none without a GPU
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
  // Queues a batch, between its events, by a function that queues its work.
  Result<std::uint64_t> Queue(std::uint64_t pieces, bool rows, FunctionRef<Status()> queue_work);
  // Keeps the first error for all later calls.
  Error Fail(const char* doing, const Error& error);

  cuda::DeviceApi* const api_;  // null without a GPU, and then so are the next five
  const UnpackerOptions options_;
  cuda::Stream own_stream_;  // none where the caller gave one
  std::optional<cuda::StreamRef> stream_;
  cuda::Event drained_;  // for Drain() after an error
  std::unique_ptr<DeviceExecutor> executor_;
  std::unique_ptr<RowsQueue> rows_;  // null unless reads_rows()
  std::vector<Batch> ring_;          // by SlotOf()
  std::uint64_t issued_ = 0;         // batches since creation
  std::uint64_t done_ = 0;
  std::uint64_t pieces_ = 0;  // in flight
  BatchTimes times_;
  std::optional<Error> failed_;
  std::vector<RefusedRows> refused_;  // not taken yet
};

}  // namespace ferry::tcpx
