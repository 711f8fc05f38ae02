// Copies slices between GPU memory and pinned slots, for all connections of an endpoint.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/core/mapping.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"
#include "ferry/cuda/device_api.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/counters.h"

namespace ferry::transfer {

class Stager;

// Where the bytes of a slot lie.
enum class SlotMemory : unsigned char {
  kPinned,
  kGpu,  // registered with the provider; see Stager::sends_from_gpu()
};

// A slot: a piece of pinned memory between a GPU and the network, and of GPU memory where the
// provider sends from there. The destructor returns it to its stager; no copy may be in flight
// then. The stager must outlive its slots.
class StageSlot {
 public:
  StageSlot() = default;
  StageSlot(StageSlot&& other) noexcept;
  StageSlot& operator=(StageSlot&& other) noexcept;
  ~StageSlot() { Release(); }

  explicit operator bool() const noexcept { return stager_ != nullptr; }
  std::span<std::byte> memory() const noexcept;
  // The first `bytes` of its GPU memory. Needs Stager::sends_from_gpu().
  net::RegisteredRange on_gpu(std::uint64_t bytes) const noexcept;
  void Release();

 private:
  friend class Stager;
  StageSlot(Stager* stager, std::uint32_t index) : stager_(stager), index_(index) {}

  Stager* stager_ = nullptr;
  std::uint32_t index_ = 0;  // among the slots of all directions
};

// Direction of the bytes through a slot. Each direction has its own slots, so that a wait for one
// direction never blocks the other.
enum class StageWay : unsigned char {
  kToNetwork,
  kFromNetwork,
  kWithin,  // between two GPUs, without a slot
};

struct StagerOptions {
  std::uint64_t slot_bytes = std::uint64_t{256} << 10;
  std::uint32_t slots = 128;  // per direction
  // Copy with kernels where the GPU can run those of this build; otherwise with the copy engines.
  bool by_kernel = true;
  // Carries the payloads; null: one that does not reach GPU memory. Must outlive the stager.
  net::Provider* provider = nullptr;
};

// Moves slices between the memory of one GPU and pinned slots, for all connections of an endpoint.
// Its own thread collects the requests that arrive while earlier copies run, queues all of one
// direction as one kernel launch, and reports each slot when its bytes are in place. Copies of one
// direction run in the order of the calls. Any thread.
//
// Measured with copies between two H200 over 16 lanes of loopback: one copy-engine copy per slot
// moves 10 to 20 GB/s; kernels that each copy all slots that happen to be ready move 43 to 49 GB/s,
// with half the memory. Hence this design; docs/results.md has the table.
class Stager {
 public:
  // Called by the thread that releases a slot, with that slot. Must only post.
  using Given = UniqueFunction<void(StageSlot)>;
  // Called once on the stager's thread, with ok once the bytes are in place, or with the error.
  // Must only post. Afterwards no copy of the slot is in flight, unless the GPU is lost.
  using Done = UniqueFunction<void(Status)>;

  // Starts the thread. Errors: those of DeviceApi, for creating streams and pinned memory.
  static Result<std::unique_ptr<Stager>> Create(cuda::DeviceApi* api, int ordinal,
                                                const StagerOptions& options);
  // Blocks until the copies in flight have ended, for at most a few minutes if the GPU is stuck. No
  // callback runs afterwards.
  ~Stager();
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;

  std::uint64_t slot_bytes() const noexcept { return options_.slot_bytes; }
  // Whether its copies can compute checksums.
  bool sums() const noexcept { return by_kernel_; }
  // The provider sends slots from GPU memory. Gathering them there costs a copy within the GPU,
  // which is little beside the network, also for a slice that is one block.
  bool sends_from_gpu() const noexcept { return registered_ != nullptr; }
  // The provider places payloads in memory of this GPU, without slots.
  bool receives_into_gpu() const noexcept { return receives_into_gpu_; }
  int ordinal() const noexcept { return ordinal_; }

  // Returns a slot; if none is free, returns nullopt and calls `given` later, once, in order of the
  // requests.
  std::optional<StageSlot> Take(StageWay way, Given given);
  // Returns a slot only if nobody waits and more than half of them are free. For callers that
  // already have some.
  std::optional<StageSlot> TakeSpare(StageWay way);
  // Copies from GPU memory into the slot, from its start and without gaps. `blocks`: addresses and
  // lengths, whose sum must fit the slot. The slot and the memory must stay valid until `done`.
  // Needs sums() if `crc` is not null: before `done` with ok, the CRC-32C of the bytes is stored
  // there, as the GPU has read them from their source.
  void Gather(const StageSlot& slot, std::span<const Block> blocks, Done done,
              std::uint32_t* crc = nullptr, SlotMemory into = SlotMemory::kPinned);
  // Copies from the slot into GPU memory; otherwise as Gather.
  void Scatter(const StageSlot& slot, std::span<const Block> blocks, Done done,
               std::uint32_t* crc = nullptr);

  // Copies between addresses that kernels of this GPU can access (Block::dst, Block::src; no
  // overlap). Both memories must stay valid until `done`. Fails with kTimedOut if it has not begun
  // by `begin_by`.
  void Move(std::vector<Block> blocks, Clock::time_point begin_by, Done done);

  cuda::DeviceApi* api() const noexcept { return api_; }
  StagerCounters Counters(StageWay way) const;
  StagingCounters Counters() const;

 private:
  friend class StageSlot;
  struct Request {
    std::uint32_t slot = 0;
    std::vector<Block> blocks;  // one side an address, the other an offset in the slot
    Done done;
    Clock::time_point begin_by = Clock::time_point::max();
    std::uint32_t* crc = nullptr;  // where its checksum goes; null: not wanted
    SlotMemory memory = SlotMemory::kPinned;
  };
  // What a launch needs while it is in flight.
  struct Ticket {
    cuda::Event end;
    SumSheet sums;
  };
  struct Launch {
    Ticket ticket;
    std::vector<Request> requests;
    Clock::time_point began;
  };
  // State of one direction. The first half is under mutex_, the second half belongs to the thread.
  struct Side {
    std::vector<std::uint32_t> free;
    std::deque<Given> waiting;
    std::deque<Request> asked;
    StagerCounters counters;

    cuda::Stream stream;
    std::unique_ptr<DeviceExecutor> executor;
    SummingExecutor* summing = nullptr;  // the executor, if it can sum
    cuda::PinnedBuffer sheets;           // of the tickets
    std::vector<Ticket> tickets;         // of launches that are not in flight
    std::deque<Launch> in_flight;        // oldest first
  };

  Stager(cuda::DeviceApi* api, int ordinal, const StagerOptions& options)
      : api_(api), ordinal_(ordinal), options_(options) {}
  Status Init();
  Status InitMemory();
  Status InitSide(StageWay way);
  Status InitExecutor(StageWay way);
  Side& side(StageWay way) { return sides_[static_cast<std::size_t>(way)]; }
  std::span<std::byte> MemoryOf(std::uint32_t slot) const;
  StageSlot TakeFreeLocked(Side* from);
  void Return(std::uint32_t slot);
  void Ask(StageWay way, Request request);

  void Run();
  bool IsIdleLocked() const;
  bool Spin(int* spins, Deadline* last);
  bool LaunchMore(StageWay way);
  void LaunchOne(StageWay way, std::vector<Request> requests);
  Status Queue(StageWay way, std::span<const Request> requests, const SumSheet& sums);
  static void StoreSums(std::span<const Request> requests, const SumSheet& sums);
  void RunAlone(StageWay way, Request request);
  bool Reap(StageWay way);
  static void Fail(std::vector<Request> requests, const Error& error);

  cuda::DeviceApi* const api_;
  const int ordinal_;
  const StagerOptions options_;
  bool has_kernels_ = false;  // the GPU can run them
  bool by_kernel_ = false;    // slots are copied by them
  HugeMemory memory_;
  cuda::HostRegistration pinned_;  // memory_
  Place place_;                    // of memory_
  bool receives_into_gpu_ = false;
  cuda::DeviceBuffer gpu_memory_;                      // of the slots towards the network
  Place gpu_place_;                                    // of those
  std::unique_ptr<net::RegisteredMemory> registered_;  // the same; null: not sent from there
  std::array<Side, 3> sides_;
  std::vector<PlacedList> lists_;  // used by the thread; kept to reuse its memory

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // under mutex_
  std::jthread thread_;    // last: it uses the rest
};

}  // namespace ferry::transfer
