// A copy between a staging slot and GPU memory, with the objects it depends on.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/gpu/stager.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

// A copy between a slot and GPU memory, or between GPUs, with everything that must outlive it. A
// lane may drop it at any time.
struct StagedCopy {
  StageSlot slot;
  RegionPin pin;                           // for an access by a peer
  std::shared_ptr<const PeerMemory> peer;  // remote side, without a slot
  std::shared_ptr<const RegionPin>
      region_owner;       // region of a peer in this process; for the same copies
  bool summed = false;    // the GPU computes the checksum; set before the copy begins
  std::uint32_t crc = 0;  // of the bytes as the GPU has read them, if `summed`
  Status outcome = Ok();  // this and `crc` are valid once the copy is over
  std::atomic<bool> over{false};

  // Call once its bytes have left: they are in the socket, or in their final place.
  void Release() {
    slot.Release();
    pin.Release();
    region_owner.reset();
    peer.reset();
  }
};

// Shared between the stager, until the copy is over, and the lane or message that it belongs to.
using StagedCopyRef = std::shared_ptr<StagedCopy>;

// Timeout for one slice: a GPU that has not copied it by then is considered stuck.
inline constexpr auto kCopyTimeout = std::chrono::seconds(10);
// Blocks until a copy has ended, which takes as long as the copies queued on the GPU, well under a
// millisecond. Returns false on timeout.
inline bool AwaitStagedCopy(const StagedCopy& copy,
                            Deadline deadline = Deadline::After(kCopyTimeout)) {
  while (!copy.over.load(std::memory_order_acquire)) {
    if (deadline.expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

// A completion callback that marks the copy as over, then calls `told`. `told` runs on the stager's
// thread and must only post.
inline Stager::Done EndOf(StagedCopyRef copy, UniqueFunction<void()> told) {
  return [copy = std::move(copy), told = std::move(told)](Status outcome) mutable {
    copy->outcome = std::move(outcome);
    copy->over.store(true, std::memory_order_release);
    told();
  };
}
// Start a copy of `copy->slot`; `told` is called when it is over.
inline void BeginGather(Stager* stager, const StagedCopyRef& copy, std::span<const Block> blocks,
                        UniqueFunction<void()> told, SlotMemory into = SlotMemory::kPinned) {
  stager->Gather(copy->slot, blocks, EndOf(copy, std::move(told)),
                 copy->summed ? &copy->crc : nullptr, into);
}
inline void BeginScatter(Stager* stager, const StagedCopyRef& copy, std::span<const Block> blocks,
                         UniqueFunction<void()> told) {
  stager->Scatter(copy->slot, blocks, EndOf(copy, std::move(told)),
                  copy->summed ? &copy->crc : nullptr);
}

inline void BeginMove(Stager* stager, const StagedCopyRef& copy, std::vector<Block> blocks,
                      Clock::time_point begin_by, UniqueFunction<void()> told) {
  stager->Move(std::move(blocks), begin_by, EndOf(copy, std::move(told)));
}

}  // namespace ferry::transfer
