// Frames of the peer whose payloads are still being copied into GPU memory.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/deadline.h"
#include "ferry/transfer/gpu/staged_copy.h"
#include "ferry/transfer/gpu/stager.h"
#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

class StagingEvents;

// A sequenced frame from the peer that has arrived but is not processed yet: its payload, or that
// of an earlier frame, is still being copied.
struct Landing {
  std::uint64_t bytes = 0;
  std::uint64_t operation = 0;
  OperationRef read = nullptr;   // a kReadData: the read that owns the slice
  StagedCopyRef copy = nullptr;  // null: waits its turn
  std::uint64_t copied = 0;      // bytes of a kCopy
  std::size_t blocks = 0;        // blocks of a kCopy
  // Only for payloads that went through a slot: the checksum that was sent with it, its first
  // address, and the slice of a kReadData.
  bool checked = false;
  std::uint32_t crc = 0;
  std::uint64_t address = 0;
  std::uint32_t slice = 0;
};

// Receives payloads into slots, copies them to their destinations and hands the frames out in the
// order of their arrival. Frames that need no copy pass through while earlier ones are copied.
// Lives on the lane's loop.
class StagingInbox {
 public:
  // `events` must outlive this.
  explicit StagingInbox(StagingEvents* events) : events_(events) {}

  // ---- The frame that is arriving.
  //
  // Replaces the GPU addresses in `pieces` by a slot for `bytes`. Returns false if none is free:
  // the lane is resumed (StagingHost) when there is one.
  bool PlaceInSlot(Stager* stager, std::uint64_t bytes, std::vector<iovec>* pieces);
  // Whether it is received into a slot.
  bool placed() const noexcept { return arriving_ != nullptr; }
  // Its first address in GPU memory, while it is placed.
  std::uint64_t address() const { return blocks_.front().dst; }
  // Whether the GPU that copies it computes its checksum.
  bool sums() const { return placed() && arriving_from_->sums(); }
  // It has arrived in the slot: begins the copy, which sums a checked payload if it can.
  void Land(Landing landing, RegionPin pin);
  // It does not go into the slot.
  void Drop() { arriving_.reset(); }
  // Returns a slot that was granted and is not needed.
  void ReleaseSpareSlot() { spare_.Release(); }

  // ---- Frames that have arrived.
  //
  // Whether the limits of copies that the peer may request are kept.
  bool MayCopy() const;
  // A copy without a slot, which has begun.
  void AddCopy(Landing landing);
  // A frame that needs no copy, behind those that do.
  void AddPlain(std::uint64_t bytes);
  // Takes the oldest if its copy is over.
  std::optional<Landing> TakeLanded();
  // Takes the oldest in any case.
  std::optional<Landing> TakeOldest();
  bool AwaitCopies(Deadline deadline) const;
  // Waits for copies into the region, whose memory may be freed afterwards. Returns false if there
  // was none.
  bool AwaitCopiesInto(const RegionState* region) const;

  bool empty() const noexcept { return landings_.empty(); }
  std::size_t size() const noexcept { return landings_.size(); }
  // Bytes of the lists of blocks and of frames.
  std::uint64_t scratch_bytes() const noexcept {
    return (blocks_.capacity() + copied_blocks_) * sizeof(Block) +
           landings_.size() * sizeof(Landing);
  }
  // Frees the list of blocks beyond a small size, unless it is in use.
  void FreeScratch(std::size_t most);

 private:
  void OnSlot(Stager* stager, StageSlot slot);

  StagingEvents* const events_;
  std::deque<Landing> landings_;
  std::uint64_t copied_bytes_ = 0;   // kCopy frames in landings_
  std::size_t copied_blocks_ = 0;    // blocks of those
  std::vector<Block> blocks_;        // target addresses of arriving_
  StagedCopyRef arriving_;           // the frame being received into a slot
  Stager* arriving_from_ = nullptr;  // whose slot that is
  StageSlot spare_;                  // a slot granted for receiving
  Stager* spare_of_ = nullptr;       // the stager that granted it
  bool asked_ = false;               // a slot was requested
};

}  // namespace ferry::transfer
