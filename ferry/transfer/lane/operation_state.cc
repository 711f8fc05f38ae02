// The state of an operation: how it ends, and who is told.
#include "ferry/transfer/lane/operation_state.h"

#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/loop/edges.h"

namespace ferry::transfer {

// An operation may end in any phase.
void OperationState::Enter(Phase next) {
  static constexpr Edge<Phase> kEdges[] = {
      // A write or read begins: lanes pull its slices.
      {Phase::kNew, Phase::kSlices},
      // A notification without a write is sent.
      {Phase::kNew, Phase::kNotify},
      // A small message is sent at once.
      {Phase::kNew, Phase::kMessage},
      // A message is announced by an RTS, and waits for the peer's CTS.
      {Phase::kNew, Phase::kRtsSent},
      // A receive is posted.
      {Phase::kNew, Phase::kPosted},
      // All slices of a write are acknowledged, so its notification cannot overtake the data.
      {Phase::kSlices, Phase::kNotify},
      // The peer had no room for the message and has kept its envelope, as after an RTS.
      {Phase::kMessage, Phase::kRtsSent},
      // The peer's CTS names the buffer, into which lanes write the message.
      {Phase::kRtsSent, Phase::kSlices},
      // A message matches: it is written into the buffer, arrives in one frame, or came before the
      // receive and is copied into GPU memory.
      {Phase::kPosted, Phase::kReceiving},
      // The lane of that frame was lost before its end; the peer sends the message again.
      {Phase::kReceiving, Phase::kPosted},
  };
  FERRY_CHECK(HasEdge(kEdges, phase_, next), id, static_cast<int>(phase_), static_cast<int>(next));
  phase_ = next;
}

void OperationState::Complete(Status result) {
  FERRY_CHECK(!done.load(), id);
  outcome.status = std::move(result);
  done.store(true, std::memory_order_release);
  const std::lock_guard lock(watchers.mutex);
  if (watchers.event) SignalEventFd(watchers.event.get());
  for (const Watchers::Told& told : watchers.told) told.sink->Add(told.cookie);
  watchers.told.clear();
  watchers.wait = {};
  watchers.held.clear();
}

}  // namespace ferry::transfer
