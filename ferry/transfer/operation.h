#pragma once
#include <cstdint>
#include <memory>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"
#include "ferry/transfer/path.h"

namespace ferry::transfer {

class ConnectionCore;
class EndpointCore;
struct OperationState;

// The caller's view of an operation under way; copyable. Letting go of it does not end the
// operation: its memory must stay valid until it is done. All methods may be called by any thread.
// In a forked child it counts as ended, by kInvalidArgument.
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
  // Asks for an early end. It still ends only when nothing touches its memory any more, here and,
  // for a write, at the peer: at once for what has not begun, otherwise after the slices in flight.
  // The connection is lost if the peer, whose lanes the network has not taken, acknowledges nothing
  // of those for config.drain_grace, or not all within config.peer_timeout.
  void Cancel();
  // Work queued on the stream from now on begins when the operation has ended, however it ends:
  // look at Wait() before you rely on its bytes. Blocks only where the device's queue is full; what
  // a stream that waits may stop: docs/gotchas.md. Errors: kUnsupported (no GPUs, or streams that
  // cannot wait for flags), kUnavailable (there are StreamHold::kMost holds, or MostStreams() other
  // streams of this device, already), those of the device.
  Status HoldBack(cuda::StreamRef stream);
  // A descriptor that becomes readable when the operation ends; owned by the operation. From this
  // call to the end the engine's own thread drives the connection's loop whenever no thread of the
  // application does: ask for it before you sleep, and not where you Wait().
  Result<int> CompletionFd();

  // How its bytes go, and why.
  PathReport path() const;
  // After the end: bytes moved, and for a receive the message's tag.
  std::uint64_t bytes() const noexcept;
  std::uint64_t tag() const noexcept;

 private:
  ProcessShared<OperationState> state_;       // with the engine, until the end
  ProcessShared<ConnectionCore> connection_;  // outlives its Connection handle
  ProcessShared<EndpointCore> endpoint_;      // which owns the loop that a wait drives
};

}  // namespace ferry::transfer
