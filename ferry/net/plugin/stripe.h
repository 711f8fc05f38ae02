// Messages of any size, striped over several channels of a plugin.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/plugin/comm.h"
#include "ferry/net/plugin/receiver.h"
#include "ferry/net/plugin/sender.h"
#include "ferry/unpack/unpacker.h"

// Messages of any size, one-way between two processes: cut into chunks that are distributed over
// several channels of a plugin, which may use several of its devices. Both sides must use the same
// options, and the same sizes in the same order; neither is transmitted. One thread at a time; only
// calls with a deadline block. A plugin makes no progress by itself: call Progress() repeatedly.
// Errors: those of the comms, of Sender and of Receiver.
namespace ferry::net::plugin {

struct StripeOptions {
  std::size_t channels = 1;                         // 1 to kMaxChannels
  std::uint64_t chunk_bytes = 512 * 1024;           // 1 to kMaxChunkBytes
  std::chrono::milliseconds chunk_timeout{30'000};  // as in ReceiverOptions
};
inline constexpr std::size_t kMaxChannels = 64;
inline constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{8} << 20;
// Maximum chunks of a message: each has its own tag, and all are created when the message starts.
inline constexpr std::uint64_t kMaxChunksOfMessage = 10'000;
// Errors: kInvalidArgument.
Status CheckOptions(const StripeOptions& options);

// The memory that contains all messages.
struct StripeMemory {
  std::span<std::byte> bytes;
  bool on_gpu = false;
};

// Cuts messages into chunks and counts the messages that are done.
class ChunkCount {
 public:
  explicit ChunkCount(const StripeOptions& options) : options_(options) {}

  // The chunks of the next message, which starts at `offset`: ids, offsets, sizes and tags. No two
  // chunks in flight have the same tag.
  std::vector<Chunk> Cut(std::uint64_t offset, std::uint64_t bytes);
  std::size_t ChannelOf(const Chunk& chunk) const { return chunk.id % options_.channels; }
  void Done(std::span<const std::uint64_t> ids);

  std::uint64_t begun() const noexcept { return begun_; }
  // Messages that are done along with all before them.
  std::uint64_t done() const noexcept { return begun_ - open_.size(); }

 private:
  struct Open {
    std::uint64_t first = 0;  // chunk
    std::uint64_t chunks = 0;
    std::uint64_t left = 0;
  };
  const StripeOptions options_;
  std::deque<Open> open_;
  std::uint64_t begun_ = 0;
  std::uint64_t next_id_ = 0;
};

class OutStripe {
 public:
  // Connects to the handles of an InStripe, one for each channel. The memory must outlive it.
  // Blocks until the deadline at most.
  static Result<std::unique_ptr<OutStripe>> Connect(Plugin* plugin, std::span<const Handle> handles,
                                                    const StripeMemory& memory,
                                                    const StripeOptions& options,
                                                    Deadline deadline);

  // The next message is this part of the memory, which must stay unchanged until the message is
  // done: the plugin has then accepted it, but it may not be in place on the other side.
  void Send(std::uint64_t offset, std::uint64_t bytes);
  Status Progress();
  std::uint64_t done() const noexcept { return count_.done(); }
  std::uint64_t in_flight() const noexcept { return count_.begun() - count_.done(); }

 private:
  OutStripe(const StripeMemory& memory, const StripeOptions& options)
      : memory_(memory), options_(options), count_(options) {}

  const StripeMemory memory_;
  const StripeOptions options_;
  ChunkCount count_;
  std::unique_ptr<Sender> sender_;
  std::vector<Registration> registrations_;  // by channel; destroyed before their comms
  std::vector<std::uint64_t> done_;
};

class InStripe {
 public:
  static Result<std::unique_ptr<InStripe>> Listen(Plugin* plugin, const StripeOptions& options);
  ~InStripe();
  InStripe(const InStripe&) = delete;
  InStripe& operator=(const InStripe&) = delete;

  // Handles for the other side, one for each channel.
  std::vector<Handle> handles() const;
  // Waits for all channels, until the deadline at most. `api` and `unpacker` as in
  // Receiver::Create(). The memory must outlive it; it is registered as the kind that the plugin
  // unpacks.
  Status Accept(cuda::DeviceApi* api, Unpacker* unpacker, const StripeMemory& memory,
                Deadline deadline);
  // Call before Accept().
  void SetWatcher(ChunkWatcher watcher) { watcher_ = std::move(watcher); }

  // The next message goes to this part of the memory.
  void Receive(std::uint64_t offset, std::uint64_t bytes);
  Status Progress();
  // Messages that are in place.
  std::uint64_t done() const noexcept { return count_.done(); }
  std::uint64_t in_flight() const noexcept { return count_.begun() - count_.done(); }
  LaunchTimes launch_times() const { return receiver_ ? receiver_->launch_times() : LaunchTimes(); }
  // Blocks until no copy is in flight.
  Status Drain(Deadline deadline) { return receiver_ ? receiver_->Drain(deadline) : Ok(); }

 private:
  explicit InStripe(const StripeOptions& options) : options_(options), count_(options) {}

  const StripeOptions options_;
  ChunkCount count_;
  ChunkWatcher watcher_;
  std::vector<std::unique_ptr<Listening>> listening_;
  StripeMemory memory_;
  std::unique_ptr<Receiver> receiver_;
  std::vector<Registration> registrations_;  // by channel; destroyed before their comms
  std::vector<std::uint64_t> done_;
};

}  // namespace ferry::net::plugin
