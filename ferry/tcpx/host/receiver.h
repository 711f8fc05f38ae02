// Receives chunks over several channels of a plugin.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/tcpx/host/chunk.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/unpack_rows.h"
#include "ferry/tcpx/unpack/fragments.h"
#include "ferry/tcpx/unpack/unpacker.h"

namespace ferry::net::plugin {

// The destination of a received chunk.
struct ChunkPlace {
  Place to;
  // In the chunk's order, with as many bytes as the chunk; the rules of FragmentReader apply. Empty
  // for a chunk that is dropped when it has arrived.
  std::vector<PostedRun> runs;
  // For a plugin that receives straight into memory: where the unpacker finds the message.
  Place from{};
};

// A received and validated chunk before it is unpacked.
struct WatchedChunk {
  const Chunk& chunk;
  std::span<const Fragment> fragments;  // in the plugin's pool
  const std::byte* pool;
  const void* request;  // tcpx::Request; null for a plugin with other requests
};
// Called with the next chunk as long as it returns true. Meanwhile the CPU reads all fragments.
using ChunkWatcher = std::function<bool(const WatchedChunk& watched)>;

// The CPU time between the plugin's completion of a chunk and the launch that unpacks it, over all
// launched chunks.
struct LaunchTimes {
  std::uint64_t chunks = 0;
  std::chrono::nanoseconds sum{0};
  std::chrono::nanoseconds longest{0};
};

struct ReceiverOptions {
  // Size of the plugin's bounce pool: fragments outside it are refused. 0: the size that the plugin
  // reports (Plugin::PoolBytes()), or CUDA for the allocation that contains the pool.
  std::uint64_t pool_bytes = 0;
  // Time limit of a chunk, from when it is the oldest of its channel and was posted, until it has
  // arrived.
  std::chrono::milliseconds chunk_timeout{30'000};
  ChunkWatcher watcher;
  // The plugin receives straight into memory: each chunk is copied from its message.
  bool straight = false;
  // How long the destructor waits for copies that are in flight.
  std::chrono::milliseconds end_timeout{60'000};
};

// Receives chunks over several channels of a plugin that leaves messages in pieces in its pool, and
// unpacks them: at once, or, while the GPU is busy, all chunks that have arrived meanwhile, on all
// channels, in one launch. Returns the plugin's memory when the copy is done, in the order in which
// it was taken. One thread at a time; never blocks, except where a deadline is given. Allocates
// nothing on the GPU after its creation.
class Receiver {
 public:
  // The unpacker and the plugin must outlive it; `api` is null where the unpacker copies on the
  // host. A pool in host memory is registered with the unpacker's GPU. Takes the comms, and closes
  // them on failure; register memory afterwards, with comm(). Errors: those of UnpackRows::Open()
  // and of DeviceApi; kInvalidArgument for comms with different pools, kUnsupported for a pool in
  // host memory of unknown size.
  static Result<std::unique_ptr<Receiver>> Create(cuda::DeviceApi* api, Unpacker* unpacker,
                                                  std::vector<std::unique_ptr<ReceiveComm>> comms,
                                                  const ReceiverOptions& options,
                                                  Deadline deadline);
  // Drains, for at most ReceiverOptions::end_timeout. The unpacker's copies may be in flight after
  // that, and the plugin gets the memory that they read, so they may write anything.
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  ReceiveComm& comm(std::size_t channel) noexcept { return *channels_[channel].comm; }

  // The next message of this channel is this chunk, with exactly this many bytes. It is posted when
  // the channel has room.
  void Receive(std::size_t channel, Chunk chunk, ChunkPlace place);
  // Chunks that are not in place yet are dropped when they have arrived. After a Drain() that
  // follows, nothing touches their destinations. They are reported by Progress() all the same.
  void DropAll();
  // Advances all channels, and appends the ids of chunks that are in place for all later readers.
  // Call repeatedly while anything is in flight: a plugin makes no progress by itself. Errors are
  // final: all later calls return the first one. They name channel, chunk, tag and offset:
  // kTimedOut, kCorrupt (the pieces do not form the chunk), those of Unpacker and of the comms.
  Status Progress(std::vector<std::uint64_t>* done);
  // Chunks that are not in place yet.
  std::size_t in_flight() const noexcept { return in_flight_; }
  const LaunchTimes& launch_times() const noexcept { return launch_times_; }
  // Blocks until no copy is in flight, and returns the plugin's memory. The next Progress() reports
  // chunks that are in place by then. Errors are final, as those of Progress(), except
  // kTimedOut: copies may still be in flight.
  Status Drain(Deadline deadline);

 private:
  struct Expected {
    Chunk chunk;
    ChunkPlace place;
  };
  struct Channel {
    std::unique_ptr<ReceiveComm> comm;
    std::optional<UnpackRows> rows;  // none where the plugin receives straight into memory
    std::deque<Expected> waiting;    // not posted yet
    std::deque<Expected> posted;
  };
  // A chunk that has arrived, and is or will be unpacked.
  struct Arrived {
    std::size_t channel = 0;
    Chunk chunk;
    std::uint64_t ticket = 0;  // of the batch; 0 before it is queued
    std::size_t first_block = 0;
    std::size_t blocks = 0;
    Place to;
    Place from;
    Clock::time_point at;
    // Where the GPU reads the rows, of which there are no blocks then.
    const Fragment* rows = nullptr;
    std::size_t row_count = 0;
    std::vector<PostedRun> runs{};
  };

  Receiver(Unpacker* unpacker, const ReceiverOptions& options)
      : unpacker_(unpacker),
        options_(options),
        watch_("receiving", options.chunk_timeout),
        watcher_(options.watcher) {}
  Status PlacePool(cuda::DeviceApi* api);
  Status MeasurePool(const cuda::PointerInfo& info);
  bool IsDue() const;
  static std::byte* PoolOf(const Channel& channel);
  Result<std::span<const Fragment>> FragmentsOf(const Channel& channel,
                                                const ReceiveComm::Arrival& arrival);
  Status PostOn(std::size_t channel);
  Status TakeFrom(std::size_t channel);
  // The oldest posted chunk of the channel lies in these fragments.
  Status Take(std::size_t channel, const ReceiveComm::Arrival& arrival,
              std::span<const Fragment> fragments, Clock::time_point at);
  void Watch(const Channel& channel, const ReceiveComm::Arrival& arrival,
             std::span<const Fragment> fragments);
  Status Unpack();
  // Queues chunks that wait for it, all with rows or all with blocks, and returns their number.
  Result<std::uint64_t> QueueBatch(std::size_t* count);
  // The next `count` chunks are part of this batch; their blocks are no longer needed.
  void MarkUnpacking(std::size_t count, std::uint64_t ticket);
  Status Finish(std::vector<std::uint64_t>* done);
  // For all batches up to `completed`.
  Status GiveBack(std::uint64_t completed, std::vector<std::uint64_t>* done);
  Status Advance(std::vector<std::uint64_t>* done);

  Unpacker* const unpacker_;
  const ReceiverOptions options_;
  std::vector<Channel> channels_;
  ChunkWatch watch_;
  ChunkWatcher watcher_;  // null when it wants no more chunks
  std::uint64_t pool_bytes_ = 0;
  cuda::HostRegistration pool_pin_;  // for a pool in host memory
  Place pool_;
  FragmentReader reader_;
  Fragment whole_;             // the only fragment of a message without a pool
  std::vector<Block> blocks_;  // of chunks without a ticket
  std::vector<PlacedList> lists_;
  std::vector<RowsRequest> requests_;
  std::deque<Arrived> arrived_;
  std::size_t unpacking_ = 0;  // of arrived_, from the first on
  std::size_t in_flight_ = 0;
  LaunchTimes launch_times_;
  std::vector<std::uint64_t> drained_;  // ids not reported yet
  bool was_told_ = false;               // a caller of Drain() has its error
};

}  // namespace ferry::net::plugin
