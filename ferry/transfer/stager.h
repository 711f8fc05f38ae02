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
#include "ferry/transfer/counters.h"

namespace ferry::transfer {

class Stager;

// A piece of pinned memory between a GPU and the network. Goes back to its stager when it goes, at
// which time no copy may be under way; a stager outlives its slots.
class StageSlot {
 public:
  StageSlot() = default;
  StageSlot(StageSlot&& other) noexcept;
  StageSlot& operator=(StageSlot&& other) noexcept;
  ~StageSlot() { Release(); }

  explicit operator bool() const noexcept { return stager_ != nullptr; }
  std::span<std::byte> memory() const noexcept;
  void Release();

 private:
  friend class Stager;
  StageSlot(Stager* stager, std::uint32_t index) : stager_(stager), index_(index) {}

  Stager* stager_ = nullptr;
  std::uint32_t index_ = 0;  // of all slots, of both directions
};

// Which way bytes go through a slot. Each has slots of its own, so that what waits for one way
// never waits for the other.
enum class StageWay : unsigned char {
  kToNetwork,
  kFromNetwork,
  kWithin,  // between GPU memory and GPU memory of a peer's, without a slot
};

struct StagerOptions {
  std::uint64_t slot_bytes = std::uint64_t{256} << 10;
  std::uint32_t slots = 128;  // for each way
  // Whoever copies: kernels, or the copy engines.
  bool by_kernel = true;
};

// Moves slices between the memory of one GPU and pinned slots, for all connections of an endpoint:
// a thread of its own queues whatever is asked for while the copies before are under way, all of a
// way by one kernel, and reports each slot when its bytes are there. Copies of one way are carried
// out in the order of the calls. Any thread.
//
// What was measured by copies between two H200 over 16 lanes of loopback, and decides the form of
// this: one copy of the engine for each slot moves 10 to 20 GB/s, kernels that each copy all slots
// that happen to be ready move 43 to 49, with half the memory. docs/results.md has the table.
class Stager {
 public:
  // Called by whoever releases a slot, with it: must post what it does.
  using Given = UniqueFunction<void(StageSlot)>;
  // Called on the stager's thread, once: the bytes are in place, or why they are not. Must post
  // what it does. No copy of the slot is under way any more, unless the GPU is lost.
  using Done = UniqueFunction<void(Status)>;

  // Errors: those of DeviceApi, of making streams and pinned memory.
  static Result<std::unique_ptr<Stager>> Create(cuda::DeviceApi* api, int ordinal,
                                                const StagerOptions& options);
  // Waits for the copies under way, after which nobody is told anything any more; for a GPU that
  // stands still, a few minutes.
  ~Stager();
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;

  std::uint64_t slot_bytes() const noexcept { return options_.slot_bytes; }
  int ordinal() const noexcept { return ordinal_; }

  // A slot, or nothing; then one is given later, once, in the order of those who wait.
  std::optional<StageSlot> Take(StageWay way, Given given);
  // A slot, where nobody waits and more than half of them are free. For those who have some.
  std::optional<StageSlot> TakeSpare(StageWay way);
  // From GPU memory into the slot, from its beginning and without gaps: blocks of addresses and
  // lengths, whose sum fits the slot. The slot and the memory stay until `done`.
  void Gather(const StageSlot& slot, std::span<const Block> blocks, Done done);
  // From the slot into GPU memory, likewise.
  void Scatter(const StageSlot& slot, std::span<const Block> blocks, Done done);

  // Between addresses that kernels of this GPU reach: Block::dst and Block::src, of which none
  // overlap. Both memories stay until `done`. Not begun by then it fails with kTimedOut.
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
  };
  struct Launch {
    cuda::Event end;
    std::vector<Request> requests;
    Clock::time_point began;
  };
  // All that belongs to one way; the first half under mutex_, the second the thread's.
  struct Side {
    std::vector<std::uint32_t> free;
    std::deque<Given> waiting;
    std::deque<Request> asked;
    StagerCounters counters;

    cuda::Stream stream;
    std::unique_ptr<DeviceExecutor> executor;
    std::vector<cuda::Event> events;
    std::deque<Launch> under_way;  // oldest first
  };

  Stager(cuda::DeviceApi* api, int ordinal, const StagerOptions& options)
      : api_(api), ordinal_(ordinal), options_(options) {}
  Status Init();
  Status InitMemory();
  Status InitSide(StageWay way);
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
  Status Queue(StageWay way, std::span<const Request> requests);
  void RunAlone(StageWay way, Request request);
  bool Reap(StageWay way);
  static void Fail(std::vector<Request> requests, const Error& error);

  cuda::DeviceApi* const api_;
  const int ordinal_;
  const StagerOptions options_;
  HugeMemory memory_;
  cuda::HostRegistration pinned_;  // memory_
  Place place_;                    // likewise
  std::array<Side, 3> sides_;
  std::vector<PlacedList> lists_;  // the thread's, kept for its memory

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // under mutex_
  std::jthread thread_;    // last: it uses the rest
};

}  // namespace ferry::transfer
