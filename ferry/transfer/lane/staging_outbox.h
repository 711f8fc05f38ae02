// Frames of a lane whose payloads are copied from GPU memory before they are sent.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/deadline.h"
#include "ferry/transfer/gpu/stager.h"
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

}  // namespace ferry::transfer
