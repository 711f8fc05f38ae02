// Copies between a lane's payloads and GPU memory, in both directions.
#pragma once
#include <atomic>
#include <utility>

#include "ferry/core/event_loop.h"
#include "ferry/core/unique_function.h"
#include "ferry/transfer/lane/lane_owner.h"
#include "ferry/transfer/lane/staging_inbox.h"
#include "ferry/transfer/lane/staging_outbox.h"

namespace ferry::transfer {

// The lane, as its copies see it. Called on its loop, not from inside one of its calls.
class StagingHost {
 public:
  // Copies have ended since the last call.
  virtual void OnCopiesEnded() = 0;
  // There is a slot for the frame that waits for one. Returns false if none does any more.
  virtual bool ResumeForSlot() = 0;

 protected:
  ~StagingHost() = default;
};

// Brings events of the stagers' threads to the lane's loop, and keeps the lane alive until then.
class StagingEvents {
 public:
  StagingEvents(LaneOwner* owner, EventLoop* loop, StagingHost* host)
      : owner_(owner), loop_(loop), host_(host) {}

  StagingHost* host() const noexcept { return host_; }
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
  StagingHost* const host_;
  std::atomic<bool> posted_{false};  // a task that reports ends is posted
};

// How a lane sends and receives GPU memory. Data to send is gathered into slots of pinned memory;
// received data goes into a slot first, and counts as processed once it is in place. Lives on the
// lane's loop.
class LaneStaging {
 public:
  LaneStaging(LaneOwner* owner, EventLoop* loop, StagingHost* host)
      : events_(owner, loop, host), outbox_(&events_), inbox_(&events_) {}

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
