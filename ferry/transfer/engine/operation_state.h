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
#include "ferry/transfer/engine/slice_ledger.h"
#include "ferry/transfer/gpu/stream_wait.h"
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
  std::uint64_t posted_as = 0;          // kRecv: its place in the Matcher's order
  bool checksum = false;                // kWrite, kRead: whatever the connection does

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
  bool aborting = false;
  // Aborting (connection_drain.cc).
  Clock::time_point drain_began{};                // the first time that lanes were asked
  Clock::time_point drain_since{};                // the last progress, or drain_began
  Clock::time_point drain_looked{};               // the last look for some
  std::vector<std::uint64_t> drain_acknowledged;  // by lane, as it was then; 0 of those without
  std::optional<Error> abort_error;
  std::optional<wire::CtsBody> cts;      // kSend in kMessage: asked for, or
  std::optional<Status> declined;        // settled, before its frame had left
  std::uint64_t peer_operation = 0;      // kRecv in kReceiving: the sender's
  std::shared_ptr<RegionState> landing;  // kRecv in kReceiving: the buffer, writable
  std::shared_ptr<StagedCopy> staged;    // kRecv in kReceiving: on its way into GPU memory

  // The outcome. `done` is released last; the fields before it are then constant.
  std::atomic<bool> done{false};
  Status status = Ok();
  std::uint64_t bytes = 0;         // moved; kRecv: of the message
  std::uint64_t received_tag = 0;  // kRecv

  std::mutex event_mutex;
  UniqueFd event;                // under event_mutex: made on demand, signalled at the end
  std::vector<StreamWait> held;  // under event_mutex: streams that wait for the end
  EventLoop::PassiveWait wait;   // under event_mutex: while there is an event and no end

  // Sets the outcome, once. `result` is the operation's end for the caller.
  void Complete(Status result);
};

// Shared between the caller's Operation, the connection's table, the matcher (a posted receive),
// the lanes that have or may pull slices of it, and tasks on their loops.
using OperationRef = std::shared_ptr<OperationState>;

}  // namespace ferry::transfer
