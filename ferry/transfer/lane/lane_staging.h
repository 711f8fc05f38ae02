// Copies between a lane's payloads and GPU memory, in both directions.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/unique_function.h"
#include "ferry/transfer/gpu/staged_copy.h"
#include "ferry/transfer/gpu/stager.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/operation_state.h"
#include "ferry/transfer/lane/send_window.h"

namespace ferry::transfer {

class StagingEvents;

// A frame in the outbox. It is ready once its payload has been copied into a slot, or at once if it
// only keeps its place.
struct StagedFrame {
  LaneFrame* frame = nullptr;
  SentFrame record = {};           // for the SendWindow, if the frame is sequenced
  Stager* stager = nullptr;        // null: no copy, it only keeps its place
  std::vector<Block> blocks = {};  // until its copy begins
  RegionPin pin = {};              // until its copy begins
  bool asked = false;              // a slot was requested
  StagedCopyRef copy = nullptr;    // set once begun

  // The region whose memory it reads, if any. The pin moves from the entry to its copy when the
  // copy begins; answers from host memory keep it in the record.
  const RegionState* region() const;
};

// Gathers payloads into slots of pinned memory, a few slices ahead of the socket, and hands frames
// out in the order in which they were added, even if a later copy ends first. Holds a slot only
// while it can use the slot at once or has it in a socket, because all connections share the slots.
// Lives on the lane's loop.
class StagingOutbox {
 public:
  // `events` must outlive this.
  explicit StagingOutbox(StagingEvents* events) : events_(events) {}

  // Whether a slice that is pulled now would be sent soon.
  bool MayStage() const;
  // With a stager, the frame's payload lists GPU addresses.
  void Add(StagedFrame staged);
  // Begins copies in order while there are slots.
  void Fill();
  // Takes the first frame if it is ready. Its copy may have failed.
  std::optional<StagedFrame> TakeReady();
  // Takes the frames of operations that were stopped and whose copies have not begun.
  std::vector<StagedFrame> TakeStopped();
  // The frames that read the region and whose copies have not begun: that can take as long as other
  // peers hold the slots. The caller may replace them. Valid until the outbox changes.
  std::vector<StagedFrame*> WaitingFor(const RegionState* region);
  // Takes everything and returns the slots. No copy may be in flight.
  std::deque<StagedFrame> TakeAll();
  // No further copy begins.
  void Stop() { stopped_ = true; }
  // Waits for the copies in flight. Returns false if one has not ended by the deadline.
  bool AwaitCopies(Deadline deadline) const;

  // Returns the slot of a frame that has left, or of its record; null: does nothing.
  void ReleaseSlot(StagedCopyRef* copy);
  // A frame was handed to the lane: one more slot may be held.
  void AllowMore();

  bool empty() const noexcept { return frames_.empty(); }
  std::size_t size() const noexcept { return frames_.size(); }
  // Bytes of records.
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool HoldsRegion(const RegionState* region) const;

 private:
  bool TakeSlotFor(StagedFrame* staged);
  void OnSlot(Stager* stager, StageSlot slot);
  void BeginCopy(StagedFrame* staged, StageSlot slot);

  StagingEvents* const events_;
  std::deque<StagedFrame> frames_;
  std::uint64_t bytes_ = 0;
  std::size_t slots_out_ = 0;        // held here, and by frames being sent
  std::size_t slots_allowed_ = 1;    // at most
  Clock::time_point last_staged_{};  // last time that a slice was added
  bool stopped_ = false;
};

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
  // the lane is resumed (StagingCalls) when there is one.
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

// What a lane does because of its copies. Both run on its loop, in a task of their own.
struct StagingCalls {
  // Copies have ended since the last call.
  std::function<void()> copies_ended;
  // There is a slot for the frame that waits for one. Returns false if none does any more.
  std::function<bool()> resume_for_slot;
};

// Brings events of the stagers' threads to the lane's loop, and keeps the lane alive until then.
class StagingEvents {
 public:
  StagingEvents(LaneOwner* owner, EventLoop* loop, StagingCalls calls)
      : owner_(owner), loop_(loop), calls_(std::move(calls)) {}

  const StagingCalls& calls() const noexcept { return calls_; }
  // For the end of a copy. Ends at about the same time are reported together.
  UniqueFunction<void()> WhenCopied();
  // For a slot that is granted later: runs `take(StageSlot)` on the loop.
  template <class Take>
  Stager::Given PostSlot(Take take) {
    return [self = owner_->KeepAlive(), loop = loop_, take](StageSlot given) {
      loop->Post([self, take, given = std::move(given)]() mutable { take(std::move(given)); });
    };
  }

 private:
  LaneOwner* const owner_;
  EventLoop* const loop_;
  const StagingCalls calls_;
  std::atomic<bool> posted_{false};  // a task that reports ends is posted
};

// How a lane sends and receives GPU memory. Data to send is gathered into slots of pinned memory;
// received data goes into a slot first, and counts as processed once it is in place. Lives on the
// lane's loop.
class LaneStaging {
 public:
  LaneStaging(LaneOwner* owner, EventLoop* loop, StagingCalls calls)
      : events_(owner, loop, std::move(calls)), outbox_(&events_), inbox_(&events_) {}

  StagingOutbox& outbox() noexcept { return outbox_; }
  StagingInbox& inbox() noexcept { return inbox_; }
  StagingEvents& events() noexcept { return events_; }
  // Waits for all copies in flight, which takes as long as the copies queued on the GPU, well under
  // a millisecond. Logs an error if the GPU is stuck.
  void AwaitCopies();

 private:
  StagingEvents events_;
  StagingOutbox outbox_;
  StagingInbox inbox_;
};

bool IsOver(const StagedCopy& copy);
// The refusal of a slice that no slot has room for.
Error TooLargeToStage(std::uint64_t bytes, const Stager& stager);
// The error of a copy that has not ended within kCopyTimeout.
Error CopyStuck();

}  // namespace ferry::transfer
