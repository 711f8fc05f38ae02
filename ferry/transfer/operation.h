// The public handle of an operation, and a queue that tells of the ends of many.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"
#include "ferry/transfer/path.h"

namespace ferry::transfer {

class CompletionSink;
class ConnectionCore;
class EndpointCore;
struct OperationState;

// Handle of an operation in flight; copyable. All methods may be called from any thread. Dropping
// the handle does not end the operation: its memory must stay valid until it is done. In a forked
// child every operation counts as ended with kInvalidArgument.
class Operation {
 public:
  Operation(std::shared_ptr<OperationState> state, std::shared_ptr<ConnectionCore> connection,
            std::shared_ptr<EndpointCore> endpoint);

  // Whether it has ended. Only looks: whoever else drives the connection's loop ends it.
  bool Done() const noexcept;
  // Whether it has ended; also lets the connection make progress, so that polling in a loop is as
  // good as waiting.
  bool Poll();
  // Waits for the end and returns how it ended; kTimedOut if `deadline` comes first, and then the
  // operation still goes on (its own deadline is in the verb's options). The waiting thread drives
  // the connection's loop itself.
  Status Wait(Deadline deadline = Deadline::Never());
  // Requests an early end; does not block. The operation ends once nothing touches its memory, here
  // and, for a write, at the peer: at once if it has not begun, otherwise after the slices in
  // flight are acknowledged. The connection fails if the peer, while its lanes are up, acknowledges
  // nothing of those for config.drain_grace, or not all of them within config.peer_timeout.
  void Cancel();
  // As Cancel(), but ends it as its own deadline would: with kTimedOut, and with what the lanes
  // wait for in the error.
  void Expire();
  // Makes work queued on `stream` after this call wait until the operation has ended, with whatever
  // outcome: check Wait() before you rely on the data. Blocks only while the device's queue is
  // full. docs/gotchas.md says which other work a waiting stream can stall. Errors: kUnsupported
  // (no GPU, or its streams cannot wait for flags), kUnavailable (StreamWait::kMax waits exist, or
  // MaxStreams() other streams of this device wait), those of the device.
  Status MakeStreamWait(cuda::StreamRef stream);
  // A descriptor that becomes readable when the operation ends; owned by the operation. From this
  // call to the end the engine's thread drives the connection's loop while no application thread
  // does. Use it to sleep in poll(), not together with Wait(), which is faster without it. For many
  // operations at once there is CompletionQueue, which needs one descriptor for all.
  Result<int> CompletionFd();

  // Implements CompletionQueue::Watch().
  Status TellEnd(const std::shared_ptr<CompletionSink>& sink, std::uint64_t cookie) const;

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

// Operation::CompletionFd() takes a descriptor for each operation; this takes one for all. Any
// thread. Copies are the same queue; operations that are watched keep it alive until their ends.
class CompletionQueue {
 public:
  // Errors: kUnavailable (descriptors).
  static Result<CompletionQueue> Create();

  // Readable while Take() would return something. Owned by the queue. Errors: kInvalidArgument in a
  // forked child, as those of the other calls.
  Result<int> fd() const;
  // Take() returns `cookie` once the operation has ended: from now on, if it has. From this call to
  // the end the engine's thread drives the connection's loop while no application thread does, as
  // with CompletionFd().
  Status Watch(const Operation& operation, std::uint64_t cookie);
  // The cookies of the operations that have ended since the last call, in the order of their ends.
  // Does not block.
  Result<std::vector<std::uint64_t>> Take();

 private:
  explicit CompletionQueue(std::shared_ptr<CompletionSink> sink);

  ProcessShared<CompletionSink> sink_;  // shared with the operations that are watched
};

}  // namespace ferry::transfer
