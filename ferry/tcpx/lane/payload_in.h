// Receives the payloads of one lane over a comm of a plugin.
#pragma once
#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/net/io_cursor.h"
#include "ferry/net/provider.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/unpack_rows.h"
#include "ferry/tcpx/lane/chunk.h"
#include "ferry/tcpx/lane/lane_buffers.h"
#include "ferry/tcpx/lane/lane_gpu.h"
#include "ferry/tcpx/lane/step_log.h"
#include "ferry/tcpx/uccl_variables.h"
#include "ferry/tcpx/unpack/fragments.h"
#include "ferry/tcpx/unpack/unpacker.h"

namespace ferry::tcpx {

// Receives one payload after the other over a comm, in chunks, at most ReceiveComm::kWindow of them
// posted, and copies them to their placements. The plugin never has the address of a placement: it
// receives into its pool or, where it receives straight into memory, into slots of this object,
// which live until the comm is closed. From there this side copies: the GPU, if there is one,
// straight to the placement in its memory, at once or, while it is busy, all chunks that have
// arrived meanwhile in one launch; a placement in host memory gets what the GPU does not reach from
// slots. The plugin's memory is returned when the copy is done. So when DropRest() or the
// destructor returns, nothing touches the placement, although receives of a plugin cannot be
// cancelled. One thread at a time, with the GPU current; only DropRest() and the destructor block,
// until copies in flight have ended, for kCopyTimeout at most. After a wait that was not long
// enough no call waits until the GPU has ended those copies.
//
// A GPU that has not ended its copies by then is stuck, and an error is logged. Should it go on, it
// still writes what has come to the placement: the user must not use the placement before the GPU
// is idle or lost. What the copies read stays as it is, if the object goes by End().
class PayloadIn {
 public:
  // A GPU that has not copied what has come by then is considered stuck.
  static constexpr std::chrono::seconds kCopyTimeout{10};
  // Where a payload goes.
  struct Target {
    std::span<const iovec> memory;  // empty: the payload is dropped
    bool gpu = false;
  };

  // `api` may be null; `gpu` may be none. Errors: those of UnpackRows::Open(), of mmap(2) and of
  // DeviceApi; kUnsupported for a plugin that receives into GPU memory where there is no GPU.
  static Result<std::unique_ptr<PayloadIn>> Create(cuda::DeviceApi* api, const LaneGpu& gpu,
                                                   std::unique_ptr<ReceiveComm> comm,
                                                   const ChunkTerms& chunks);
  ~PayloadIn();
  // Destroys it. If the GPU is stuck, everything is kept open until its copies have ended and
  // another lane begins or ends, or the provider is destroyed; after that, for the life of the
  // process.
  static void End(std::unique_ptr<PayloadIn> in);
  PayloadIn(const PayloadIn&) = delete;
  PayloadIn& operator=(const PayloadIn&) = delete;

  // To be held during calls of the plugin, this object's and others, on this thread, whose own
  // device is current again afterwards. An error is ignored: a lost GPU ends what needs it, and not
  // what is in host memory.
  [[nodiscard]] cuda::CurrentDevice MakeGpuCurrent() const {
    auto current = gpu_.MakeCurrent();
    return current ? *std::move(current) : cuda::CurrentDevice();
  }
  // The next payload has this size and goes to the target, whose array and memory must stay valid
  // until it is in place or DropRest(). Not while busy(). Receives nothing yet. Errors:
  // kUnsupported for a target in GPU memory without a GPU.
  Status Begin(std::uint64_t bytes, const Target& target);
  // The same for a payload of at most a chunk that has come by other means.
  Status BeginCopy(std::span<const std::byte> payload, const Target& target);
  // The rest of the payload is received, but dropped.
  void DropRest();
  // Call repeatedly while busy(): a plugin makes no progress by itself. Errors are final: all later
  // calls return the first one. Those of a chunk name it: kCorrupt (its pieces do not form it),
  // those of Unpacker and of the comm.
  Status Progress();
  bool busy() const noexcept { return bytes_left() > 0; }
  // Those of the payload that are not in place or dropped yet.
  std::uint64_t bytes_left() const noexcept { return left_; }
  // Bytes that are in place or dropped, since the creation.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }
  // The chunk that has been the oldest for how long, for errors; empty where there is none.
  std::string Waits() const { return reporter_.Waits(); }
  // Shared with the facts about the lane, which outlive it.
  std::shared_ptr<const net::LaunchCounts> launches() const { return launches_; }

 private:
  // How the wait for copies ended the last time.
  enum class Copies : std::uint8_t {
    kEnd,
    kStuck,   // some had not ended in time
    kFailed,  // the GPU is lost: there is nothing to wait for, and it was logged
  };

  // A chunk from its cut until it is in place.
  struct Incoming {
    Chunk chunk;
    // Relative to `to`, in the chunk's order; the rules of FragmentReader apply. Empty for a chunk
    // that needs no copy when it has arrived: it is dropped, or it is in its slot already.
    std::vector<PostedRun> runs;
    Place to;
    Place from;  // the pool, or the chunk's message where there is none
    // Set when it has arrived.
    Clock::time_point arrival_time;
    std::uint64_t ticket = 0;        // of the batch that copies it
    const Fragment* rows = nullptr;  // where the GPU reads them, and there are no blocks
    std::size_t row_count = 0;
    std::size_t first_block = 0;  // of blocks_
    std::size_t blocks = 0;
    Clock::time_point launch_time;  // when its copy was queued
  };

  PayloadIn(const LaneGpu& gpu, const ChunkTerms& chunks, std::unique_ptr<ReceiveComm> comm)
      : gpu_(gpu),
        chunks_(chunks),
        comm_(std::move(comm)),
        straight_(comm_->device_handle().type == abi::kDeviceTypeHost),
        reporter_("receiving", LogLevel::kWarn, comm_->device(), chunks) {}
  Status Init(cuda::DeviceApi* api);
  Status ChooseUnpacking();
  Status RegisterSlots();

  Status Advance();
  Status Post();
  Incoming CutNext();
  void PlaceNext(std::size_t bytes, Incoming* next);
  std::vector<PostedRun> TakeRuns(std::size_t bytes, std::uint64_t* lowest);
  Status Take();
  Status Read(const ReceiveComm::Arrival& arrival, Incoming* incoming);
  void LogSteps(const Chunk& chunk, std::span<const Fragment> fragments,
                const ReceiveComm::Arrival& arrival) const;
  bool IsDue() const;
  Status Launch();
  // Queues chunks that have arrived, all with rows or all with blocks, and returns their number.
  Result<std::uint64_t> QueueBatch(std::size_t* count);
  // A batch of the next chunks, as it was queued.
  struct Batch {
    std::size_t count = 0;
    std::uint64_t ticket = 0;
    Clock::time_point begin;  // of the call that queued it
  };
  // Its chunks are launched, and their blocks no longer needed.
  void MarkLaunched(const Batch& batch);
  void LogLaunch(const Batch& batch, Clock::time_point end) const;
  Status Finish();
  // For all batches up to `completed`.
  Status GiveBack(std::uint64_t completed);
  void CopyToHost(const Chunk& chunk);
  void FinishPayload();
  void AwaitCopies();
  void CheckStuck();
  std::uint64_t SlotOf(std::uint64_t chunk) const {
    return chunk % ReceiveComm::kWindow * chunks_.bytes;
  }
  Unpacker& unpacker() const noexcept { return *buffers_->unpacker; }

  LaneGpu gpu_;
  const ChunkTerms chunks_;
  const bool logs_host_payloads_ = ReadUcclLogSwitches().each_host_payload;
  Copies copies_ = Copies::kEnd;
  std::unique_ptr<LaneBuffers> buffers_;
  std::unique_ptr<ReceiveComm> comm_;  // closed after the rows and registrations below are gone
  const bool straight_;                // into memory, and not into a pool
  std::optional<UnpackRows> rows_;     // none where straight_
  std::optional<Registration> registration_;
  std::optional<Registration> gpu_registration_;
  ChunkReporter reporter_;
  const LoggedChunks logged_;
  std::optional<PoolReader> pool_reader_;  // where steps are logged
  std::optional<Error> failed_;
  std::uint64_t next_chunk_ = 0;
  std::uint64_t payload_ = 0;  // its number, over the comm
  // Chunks in order: copies of the first launched_ of them are queued, the first arrived_ have
  // arrived, and the first posted_ are posted. One more is cut if the plugin had no capacity for
  // it.
  std::deque<Incoming> incoming_;
  std::size_t launched_ = 0;
  std::size_t arrived_ = 0;
  std::size_t posted_ = 0;
  FragmentReader reader_;
  std::vector<Block> blocks_;  // of chunks that have arrived and are not launched
  std::vector<PlacedList> lists_;
  std::vector<RowsRequest> requests_;
  // The current payload.
  std::span<const std::byte> host_begin_;  // for the log; empty for GPU memory
  net::IoCursor place_;  // where the next bytes go; at its end for a payload that is dropped
  bool to_gpu_ = false;
  bool from_slots_ = false;  // this thread copies each chunk when it is in its slot
  std::uint64_t total_ = 0;
  std::uint64_t uncut_ = 0;
  std::uint64_t left_ = 0;              // not in place yet
  std::uint64_t copied_by_ticket_ = 0;  // of BeginCopy(); 0: none
  std::uint64_t received_bytes_ = 0;
  // Shared as launches() says.
  const std::shared_ptr<net::LaunchCounts> launches_ = std::make_shared<net::LaunchCounts>();
};

}  // namespace ferry::tcpx
