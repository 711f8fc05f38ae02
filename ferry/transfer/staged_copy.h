#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"
#include "ferry/transfer/gpu_sharing.h"
#include "ferry/transfer/region_table.h"
#include "ferry/transfer/stager.h"

namespace ferry::transfer {

// A copy between a slot and GPU memory, or between GPUs, with all that must stay until it is over.
// Shared between the channel, which may let go of it at any time, and the stager.
struct StagedCopy {
  StageSlot slot;
  RegionPin pin;                            // of a peer's access
  std::shared_ptr<const PeerMemory> peer;   // with the connection: its other side, without a slot
  std::shared_ptr<const RegionPin> keeper;  // likewise, of a peer in this process: its region's
  Status outcome = Ok();                    // once it is over
  std::atomic<bool> over{false};

  // Once its bytes are elsewhere: in the socket, or in their place.
  void Release() {
    slot.Release();
    pin.Release();
    keeper.reset();
    peer.reset();
  }
};

// A GPU that has not copied a slice by then is not going to.
inline constexpr auto kCopyPatience = std::chrono::seconds(10);
// Waits for the end of a copy, which takes as long as the GPU has copies queued, well under a
// millisecond. False when that takes too long.
inline bool AwaitStagedCopy(const StagedCopy& copy,
                            Deadline deadline = Deadline::After(kCopyPatience)) {
  while (!copy.over.load(std::memory_order_acquire)) {
    if (deadline.expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

// Marks the copy as over, then calls `told`, which must post what it does.
inline Stager::Done EndOf(std::shared_ptr<StagedCopy> copy, UniqueFunction<void()> told) {
  return [copy = std::move(copy), told = std::move(told)](Status outcome) mutable {
    copy->outcome = std::move(outcome);
    copy->over.store(true, std::memory_order_release);
    told();
  };
}
// Begin a copy of `copy->slot`, and call `told` when it is over.
inline void BeginGather(Stager* stager, const std::shared_ptr<StagedCopy>& copy,
                        std::span<const Block> blocks, UniqueFunction<void()> told) {
  stager->Gather(copy->slot, blocks, EndOf(copy, std::move(told)));
}
inline void BeginScatter(Stager* stager, const std::shared_ptr<StagedCopy>& copy,
                         std::span<const Block> blocks, UniqueFunction<void()> told) {
  stager->Scatter(copy->slot, blocks, EndOf(copy, std::move(told)));
}

inline void BeginMove(Stager* stager, const std::shared_ptr<StagedCopy>& copy,
                      std::vector<Block> blocks, Clock::time_point begin_by,
                      UniqueFunction<void()> told) {
  stager->Move(std::move(blocks), begin_by, EndOf(copy, std::move(told)));
}

}  // namespace ferry::transfer
