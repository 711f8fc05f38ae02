// The engine's record of one operation, and of its slices.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/transfer/gpu/stream_wait.h"
#include "ferry/transfer/memory/plan.h"
#include "ferry/transfer/memory/region_table.h"
#include "ferry/transfer/operation_kind.h"

namespace ferry::transfer {

// Any thread.
class CompletionSink {
 public:
  explicit CompletionSink(UniqueFd event) : event_(std::move(event)) {}

  int fd() const noexcept { return event_.get(); }
  void Add(std::uint64_t cookie) {
    const std::lock_guard lock(mutex_);
    // The descriptor stays readable until all have been taken.
    if (ended_.empty()) SignalEventFd(event_.get());
    ended_.push_back(cookie);
  }
  std::vector<std::uint64_t> Take() {
    const std::lock_guard lock(mutex_);
    DrainEventFd(event_.get());
    return std::exchange(ended_, {});
  }

 private:
  const UniqueFd event_;
  std::mutex mutex_;
  std::vector<std::uint64_t> ended_;  // under mutex_
};

// Distributes the slices of an operation to lanes, and detects its end. Lanes on several loops pull
// slices, so a faster lane takes more of them. A round is over when every pulled slice is resolved
// and no more may be pulled; exactly one call of Resolve, Return or Stop reports that. Any thread;
// each call takes a mutex for a few instructions.
class SliceLedger {
 public:
  // Starts a round of `slices` > 0; the previous round must be over.
  void Begin(std::uint64_t slices) {
    const std::lock_guard lock(mutex_);
    BeginLocked(slices);
  }
  // Starts a round of one slice that is already pulled: a lane that still knows the operation from
  // the previous round may try to pull at any moment, and must not get this slice.
  void BeginPulled() {
    const std::lock_guard lock(mutex_);
    BeginLocked(1);
    next_ = in_flight_ = 1;
  }

  // Takes the next slice; nullopt if none is left or the ledger was stopped.
  std::optional<std::uint64_t> Pull() {
    const std::lock_guard lock(mutex_);
    if (LeftLocked() == 0) return std::nullopt;
    ++in_flight_;
    if (returned_.empty()) return next_++;
    const std::uint64_t slice = returned_.back();
    returned_.pop_back();
    return slice;
  }

  // The caller no longer touches this pulled slice. Returns true if it was the last one: the round
  // is over.
  [[nodiscard]] bool Resolve() {
    const std::lock_guard lock(mutex_);
    FERRY_CHECK(in_flight_ > 0, next_);
    --in_flight_;
    return CheckOverLocked();
  }

  // Returns a pulled slice that was not transferred and is no longer touched, so that it may be
  // pulled again. Returns true if the ledger was stopped and this was the last one in flight: the
  // round is over.
  [[nodiscard]] bool Return(std::uint64_t slice) {
    const std::lock_guard lock(mutex_);
    FERRY_CHECK(in_flight_ > 0 && slice < next_, slice, next_);
    --in_flight_;
    returned_.push_back(slice);
    return CheckOverLocked();
  }

  // Forbids further pulls; the first error is kept. Returns true if nothing was in flight: the
  // round is over. Does nothing if no round is active.
  [[nodiscard]] bool Stop(Error error) {
    const std::lock_guard lock(mutex_);
    if (over_) return false;
    if (!error_) error_ = std::move(error);
    return CheckOverLocked();
  }

  // Slices that may still be pulled; stale as soon as it returns.
  std::uint64_t left() const {
    const std::lock_guard lock(mutex_);
    return LeftLocked();
  }
  // Whether a round is active.
  bool active() const {
    const std::lock_guard lock(mutex_);
    return !over_;
  }
  std::optional<Error> error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  void BeginLocked(std::uint64_t slices) {
    FERRY_CHECK(slices > 0 && in_flight_ == 0, slices, in_flight_);
    total_ = slices;
    next_ = 0;
    returned_.clear();
    over_ = false;
  }
  std::uint64_t LeftLocked() const { return error_ ? 0 : total_ - next_ + returned_.size(); }
  bool CheckOverLocked() {
    if (over_ || in_flight_ != 0 || LeftLocked() != 0) return false;
    over_ = true;
    return true;
  }

  mutable std::mutex mutex_;
  std::uint64_t total_ = 0;
  std::uint64_t next_ = 0;               // next slice that was never pulled
  std::uint64_t in_flight_ = 0;          // pulled, neither resolved nor returned
  std::vector<std::uint64_t> returned_;  // smaller than next_
  bool over_ = true;
  std::optional<Error> error_;
};

struct StagedCopy;

// What the engine knows of one operation. Shared (OperationRef). Fields without a note are set
// before the operation is handed to the loop and then only read.
struct OperationState {
  OperationKind kind = OperationKind::kWrite;
  std::uint64_t id = 0;
  Deadline deadline = Deadline::Never();
  std::vector<RegionPin> local_pins;    // home loop; released when the operation ends
  std::vector<std::byte> notification;  // kNotify, or joined to a kWrite
  std::span<const std::byte> message;   // kSend
  std::span<std::byte> buffer;          // kRecv
  Stager* stager = nullptr;             // kSend, kRecv: of the GPU whose memory that is
  std::uint64_t tag = 0;                // kSend, kRecv
  std::uint64_t mask = 0;               // kRecv
  bool checksum = false;                // kWrite, kRead: whatever the connection does
  bool rendezvous = false;              // kSend: whatever its size

  // Set before lanes are given the round of slices that needs it.
  std::shared_ptr<const Plan> plan;  // shared with the caller's PreparedTransfer, for reposting
  SliceLedger ledger;
  bool small = false;  // may go over the first lane, with the messages

  // Home loop only.
  enum class Phase : std::uint8_t {
    kNew,
    kSlices,
    kMessage,
    kNotify,
    kRtsSent,
    kPosted,
    kReceiving
  };
  Phase phase() const noexcept { return phase_; }
  // The only way from one phase to the next: its definition has every edge with its reason.
  void Enter(Phase next);
  bool waits_for_stream = false;  // in kNew: set before, until its stream has come so far

  // Aborting. Home loop only.
  bool aborting = false;
  std::optional<Error> abort_error;  // how it ends when nothing touches its memory any more

  // kSend in kMessage: the peer's answer, which may come before the frame is settled. Home loop.
  struct Answer {
    std::optional<wire::CtsBody> cts;
    std::optional<Status> declined;
  };
  Answer answer;
  // kRecv. Home loop.
  struct Receiving {
    std::uint64_t posted_as = 0;           // its place in the Matcher's order
    std::uint64_t peer_operation = 0;      // rendezvous: the sender's
    std::shared_ptr<RegionState> landing;  // the buffer, writable; shared with the region table
    std::vector<std::byte> early;          // what came before the receive, for GPU memory
    std::uint64_t landed = 0;              // bytes of `early` that are in place
    std::shared_ptr<StagedCopy> staged;    // a part on its way there; shared with the stager
  };
  Receiving receiving;

  // `done` is released last; the outcome is then constant.
  struct Outcome {
    Status status = Ok();
    std::uint64_t bytes = 0;  // moved; kRecv: of the message
    std::uint64_t tag = 0;    // kRecv: of the message
  };
  Outcome outcome;
  std::atomic<bool> done{false};

  // Who is told of the end.
  struct Watchers {
    struct Told {
      std::shared_ptr<CompletionSink> sink;  // shared with the CompletionQueue
      std::uint64_t cookie = 0;
    };
    std::mutex mutex;              // guards all below
    UniqueFd event;                // made on demand, signalled at the end
    std::vector<Told> told;        // of the end
    std::vector<StreamWait> held;  // streams that wait for the end
    EventLoop::PassiveWait wait;   // while somebody is to be told and there is no end
  };
  Watchers watchers;

  // Sets the outcome, once. `result` is the operation's end for the caller.
  void Complete(Status result);

 private:
  Phase phase_ = Phase::kNew;
};

// Shared between the caller's Operation, the connection's table, the matcher (a posted receive),
// the lanes that have or may pull slices of it, and tasks on their loops.
using OperationRef = std::shared_ptr<OperationState>;

}  // namespace ferry::transfer
