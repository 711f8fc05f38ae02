// The engine's record of one operation.
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
#include "ferry/core/result.h"
#include "ferry/transfer/gpu/stream_wait.h"
#include "ferry/transfer/lane/completion_sink.h"
#include "ferry/transfer/lane/operation_drain.h"
#include "ferry/transfer/lane/slice_ledger.h"
#include "ferry/transfer/memory/plan.h"
#include "ferry/transfer/memory/region_table.h"
#include "ferry/transfer/operation_kind.h"

namespace ferry::transfer {

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
  Phase phase = Phase::kNew;
  bool waits_for_stream = false;  // in kNew: set before, until its stream has come so far

  // Aborting. Home loop only.
  bool aborting = false;
  OperationDrain drain;              // of slices in flight
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
};

// Shared between the caller's Operation, the connection's table, the matcher (a posted receive),
// the lanes that have or may pull slices of it, and tasks on their loops.
using OperationRef = std::shared_ptr<OperationState>;

}  // namespace ferry::transfer
