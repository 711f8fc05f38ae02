// Receives chunks over several channels of a plugin.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/plugin/chunk.h"
#include "ferry/net/plugin/comm.h"
#include "ferry/net/plugin/unpack_rows.h"
#include "ferry/unpack/fragments.h"
#include "ferry/unpack/unpacker.h"

namespace ferry::net::plugin {

// Where a chunk that is received goes.
struct ChunkPlace {
  Place to;
  // In the chunk's order, as many bytes as the chunk; FragmentReader's rules hold.
  std::vector<PostedRun> runs;
};

// Sees what has come for a chunk, and was found to be right, before it is unpacked: where its
// pieces lie in the plugin's pool.
using ChunkWatcher = std::function<void(const Chunk& chunk, std::span<const Fragment> fragments,
                                        const std::byte* pool)>;

// What the CPU does between the plugin's word that a chunk has come and the launch that takes it to
// its place, of chunks that have had theirs.
struct LaunchTimes {
  std::uint64_t chunks = 0;
  std::chrono::nanoseconds sum{0};
  std::chrono::nanoseconds longest{0};
};

struct ReceiverOptions {
  // Of the plugin's bounce pool: fragments that do not lie within are refused. 0: as the plugin
  // tells it (Plugin::PoolBytes()), or CUDA of the allocation that the pool lies in.
  std::uint64_t pool_bytes = 0;
  // From when a chunk is the oldest of its channel, and this has room for it, until it has come.
  std::chrono::milliseconds chunk_timeout{30'000};
  ChunkWatcher watcher;
};

// Receives chunks over several channels of a plugin that leaves messages in pieces in its pool, and
// unpacks them: at once, or while the GPU is busy those that have come by then, of all channels, in
// one launch. The plugin's memory is given back when the copy is done, and not before, in the order
// in which it was taken. One thread at a time; nothing waits. Makes nothing on the GPU after it was
// made.
class Receiver {
 public:
  // The unpacker and the plugin outlive it; `api` is null where the unpacker copies by the host. A
  // pool in host memory is registered with the unpacker's GPU, and the unpacker is told of it.
  // Takes the comms, and closes them where it fails: register memory afterwards, with comm().
  // Errors: those of UnpackRows::Open() and of DeviceApi; kInvalidArgument for comms of different
  // pools, kUnsupported for a pool in host memory of which nothing tells how large it is.
  static Result<std::unique_ptr<Receiver>> Create(cuda::DeviceApi* api, Unpacker* unpacker,
                                                  std::vector<std::unique_ptr<ReceiveComm>> comms,
                                                  const ReceiverOptions& options,
                                                  Deadline deadline);
  // Drains, for at most a minute.
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  std::size_t channels() const noexcept { return channels_.size(); }
  ReceiveComm& comm(std::size_t channel) noexcept { return *channels_[channel].comm; }

  // The next message of this channel will be this chunk, of exactly so many bytes. It is posted
  // when the channel has room.
  void Receive(std::size_t channel, Chunk chunk, ChunkPlace place);
  // Does what can be done now, and appends the ids of chunks that are in place, for all who look
  // from now on. To be called again and again while anything is to come: a plugin moves nothing by
  // itself. Errors are for good: the first is returned by all later calls. They name channel,
  // chunk, tag and offset: kTimedOut, kCorrupt (the pieces do not make the chunk), those of
  // Unpacker and of the comms.
  Status Progress(std::vector<std::uint64_t>* done);
  // Chunks that are not in place.
  std::size_t under_way() const noexcept { return under_way_; }
  const LaunchTimes& launch_times() const noexcept { return launch_times_; }
  // Waits until no copy is under way, and gives the plugin's memory back. Chunks that are in place
  // then are told by the next Progress().
  Status Drain(Deadline deadline);

 private:
  struct Expected {
    Chunk chunk;
    ChunkPlace place;
  };
  struct Channel {
    std::unique_ptr<ReceiveComm> comm;
    UnpackRows rows;
    std::deque<Expected> waiting;  // not posted
    std::deque<Expected> posted;
  };
  // That has come, and is to be unpacked, or is.
  struct Arrived {
    std::size_t channel = 0;
    Chunk chunk;
    std::uint64_t ticket = 0;  // the batch's; 0 until there is one
    std::size_t first_block = 0;
    std::size_t blocks = 0;
    Place to;
    Clock::time_point at;
  };

  Receiver(Unpacker* unpacker, const ReceiverOptions& options)
      : unpacker_(unpacker), options_(options), watch_("receiving", options.chunk_timeout) {}
  Status PlacePool(cuda::DeviceApi* api);
  Status MeasurePool(const cuda::PointerInfo& info);
  bool IsDue() const;
  Status PostOn(std::size_t channel);
  Status TakeFrom(std::size_t channel);
  Status Unpack();
  // So many more have this ticket, and need their blocks no longer.
  void MarkUnpacking(std::size_t count, std::uint64_t ticket);
  Status Finish(std::vector<std::uint64_t>* done);
  // Of batches up to this one.
  Status GiveBack(std::uint64_t completed, std::vector<std::uint64_t>* done);
  Status Advance(std::vector<std::uint64_t>* done);

  Unpacker* const unpacker_;
  const ReceiverOptions options_;
  std::vector<Channel> channels_;
  ChunkWatch watch_;
  std::uint64_t pool_bytes_ = 0;
  cuda::HostRegistration pool_pin_;  // of a pool in host memory
  Place pool_;
  FragmentReader reader_;
  std::vector<Block> blocks_;  // of those that have no ticket
  std::vector<PlacedList> lists_;
  std::deque<Arrived> arrived_;
  std::size_t unpacking_ = 0;  // of these, from the first on
  std::size_t under_way_ = 0;
  LaunchTimes launch_times_;
  std::vector<std::uint64_t> drained_;  // ids that nobody was told of
};

}  // namespace ferry::net::plugin
