// The public handle of an operation, and the engine's state behind it.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/fd.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"
#include "ferry/transfer/plan.h"
#include "ferry/transfer/region.h"
#include "ferry/transfer/slice_ledger.h"
#include "ferry/transfer/stream_hold.h"

namespace ferry::transfer {

class ConnectionCore;
class EndpointCore;
struct StagedCopy;

enum class OperationKind : std::uint8_t { kWrite, kRead, kSend, kRecv, kNotify };
const char* OperationName(OperationKind kind) noexcept;

// The engine's state of one operation. Owners: the caller's Operation, the connection's table and
// the lanes that carry its slices. Fields without a note are set before the operation is handed to
// the loop and are read-only afterwards.
struct OperationState {
  OperationKind kind = OperationKind::kWrite;
  std::uint64_t id = 0;
  Deadline deadline = Deadline::Never();
  std::vector<RegionPin> local_pins;    // home loop; released when the operation ends
  std::vector<std::byte> notification;  // kNotify, or attached to a kWrite
  std::span<const std::byte> message;   // kSend
  std::span<std::byte> buffer;          // kRecv
  Stager* stager = nullptr;             // kSend, kRecv: stager of the GPU that owns the memory
  std::uint64_t tag = 0;                // kSend, kRecv
  std::uint64_t mask = 0;               // kRecv
  std::uint64_t posted_as = 0;          // kRecv: its position in the Matcher's order
  bool checksum = false;                // kWrite, kRead: on, whatever config.checksum says

  // Set before lanes receive the round of slices that uses it.
  std::shared_ptr<const Plan> plan;  // shared with the caller's PreparedTransfer
  SliceLedger ledger;
  bool small = false;  // may use the first lane, with the messages

  // Home loop only.
  enum class Phase : std::uint8_t {
    kNew,
    kSlices,
    kMessage,
    kNotify,
    kOffered,
    kPosted,
    kReceiving
  };
  Phase phase = Phase::kNew;
  bool waits_for_stream = false;  // in kNew: its stream has not reached the mark
  bool aborting = false;
  // While the operation is being aborted (connection_drain.cc).
  Clock::time_point drain_began{};                // when lanes were first asked
  Clock::time_point drain_since{};                // the last progress, or drain_began
  Clock::time_point drain_looked{};               // last check for progress
  std::vector<std::uint64_t> drain_acknowledged;  // by lane, at that check; 0 for lanes without it
  std::optional<Error> abort_error;
  std::optional<wire::SolicitBody> solicited;  // kSend in kMessage: the CTS or FIN that
  std::optional<Status> declined;              // arrived before its frame had been sent
  std::uint64_t peer_operation = 0;            // kRecv in kReceiving: the sender's operation id
  std::shared_ptr<RegionState> landing;  // kRecv in kReceiving: the buffer, as a writable region
  std::shared_ptr<StagedCopy> staged;    // kRecv in kReceiving: the copy into GPU memory

  // The outcome. `done` is stored last, with release order; the fields above it are constant
  // afterwards.
  std::atomic<bool> done{false};
  Status status = Ok();
  std::uint64_t bytes = 0;         // moved; kRecv: message size
  std::uint64_t received_tag = 0;  // kRecv

  std::mutex event_mutex;
  UniqueFd event;                // under event_mutex: made on demand, signalled at the end
  std::vector<StreamHold> held;  // under event_mutex: streams that wait for the end
  EventLoop::PassiveWait wait;   // under event_mutex: while `event` exists and the operation runs

  // Sets the outcome; call exactly once. `result`: the status that the caller sees.
  void Complete(Status result);
};

// Handle of an operation in flight; copyable. All methods may be called from any thread. Dropping
// the handle does not end the operation: its memory must stay valid until it is done. In a forked
// child every operation counts as ended with kInvalidArgument.
class Operation {
 public:
  Operation(std::shared_ptr<OperationState> state, std::shared_ptr<ConnectionCore> connection,
            std::shared_ptr<EndpointCore> endpoint);

  // Whether it has ended. Makes no progress itself: another thread must drive the connection's
  // loop.
  bool Done() const noexcept { return state_->done.load(std::memory_order_acquire); }
  // Whether it has ended. Also drives the connection's loop once, so that calling it in a loop is
  // as fast as Wait().
  bool Poll();
  // Blocks until the operation has ended and returns its outcome. Returns kTimedOut if `deadline`
  // passes first; the operation continues then (its own deadline is in PostOptions). The calling
  // thread drives the connection's loop while it waits.
  Status Wait(Deadline deadline = Deadline::Never());
  // Requests an early end; does not block. The operation ends once nothing touches its memory, here
  // and, for a write, at the peer: at once if it has not begun, otherwise after the slices in
  // flight are acknowledged. The connection fails if the peer, while its lanes are up, acknowledges
  // nothing of those for config.drain_grace, or not all of them within config.peer_timeout.
  void Cancel();
  // Makes work queued on `stream` after this call wait until the operation has ended, with whatever
  // outcome: check Wait() before you rely on the data. Blocks only while the device's queue is
  // full. docs/gotchas.md says which other work a waiting stream can stall. Errors: kUnsupported
  // (no GPU, or its streams cannot wait for flags), kUnavailable (StreamHold::kMost waits exist, or
  // MostStreams() other streams of this device wait), those of the device.
  Status HoldBack(cuda::StreamRef stream);
  // A descriptor that becomes readable when the operation ends; owned by the operation. From this
  // call to the end the engine's thread drives the connection's loop while no application thread
  // does. Use it to sleep in poll(), not together with Wait(), which is faster without it.
  Result<int> CompletionFd();

  // The path that its bytes take, and why.
  PathReport path() const;
  // Valid after the end: bytes moved, and for a receive the message's tag.
  std::uint64_t bytes() const noexcept;
  std::uint64_t tag() const noexcept;

 private:
  ProcessShared<OperationState> state_;       // shared with the engine, until the end
  ProcessShared<ConnectionCore> connection_;  // keeps the connection beyond its handle
  ProcessShared<EndpointCore> endpoint_;      // owns the loop that a wait drives
};

}  // namespace ferry::transfer
