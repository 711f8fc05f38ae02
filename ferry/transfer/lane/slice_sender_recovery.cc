// What the sending half of a lane does when the lane is lost, replaced or closed.
#include <fmt/core.h>

#include <unordered_set>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/lane/slice_sender.h"

// First both sides stop using the old lane, so that nothing still in flight on it can change memory
// later. Then each side sends the other how many of its frames it has processed. The rest is
// resent: slices over whichever lane is free, messages in order over the new lane. Sequence numbers
// continue at the peer's count, so repeating the exchange changes nothing.
namespace ferry::transfer {
namespace {

// Whether the peer writes the slice into our memory.
bool IsCopyHere(const OperationState& operation, std::uint32_t slice) {
  return operation.kind == OperationKind::kRead && PartOf(*operation.plan, slice).share != 0;
}

}  // namespace

// Unacknowledged frames are kept: the peer's progress decides about them. Read data that has not
// arrived can be requested again at once: only this side knows where it belongs.
void SliceSender::OnLaneDown() {
  std::vector<PulledSlice> slices;
  for (ReadSlice& read : reads_.TakeAll()) {
    if (read.operation) slices.push_back({std::move(read.operation), read.slice});
  }
  for (PulledSlice& slice : TakeOutbox()) slices.push_back(std::move(slice));
  GiveBack(slices);
}

// Requires that no copy is in flight. Returns the slices of writes; the peer requests its reads
// again.
std::vector<PulledSlice> SliceSender::TakeOutbox() {
  std::vector<PulledSlice> slices;
  for (StagedFrame& staged : outbox_->TakeAll()) {
    if (staged.frame->plain) frames_->DropPlain();
    frames_->pool().Recycle(staged.frame);
    if (staged.record.operation) {
      slices.push_back({std::move(staged.record.operation), staged.record.slice});
    }
  }
  return slices;
}

// Returns slices that were pulled and are no longer in flight.
void SliceSender::GiveBack(const std::vector<PulledSlice>& slices) {
  std::unordered_set<const OperationState*> known;
  std::vector<OperationRef> again;  // each once, to queue for the lanes again
  for (const auto& [operation, slice] : slices) {
    if (!operation->ledger.error()) site_.counts->retries.Add();
    if (operation->ledger.Return(slice)) {
      site_.owner->PostRoundDone(operation);
    } else if (known.insert(operation.get()).second) {
      again.push_back(operation);
    }
  }
  // Done after all slices are returned: a lane drops an operation that has no slice left.
  for (const auto& operation : again) site_.owner->DealAgain(operation);
}

Status SliceSender::Settle(const LaneProgress& peer) {
  const std::uint32_t count = peer.finished - window_.first();
  if (count > window_.size())
    return MalformedFrame(site_, "has processed frames that were never sent");
  for (const wire::RefusalOnWire& refusal : peer.refused) {
    SentFrame* const frame = window_.Find(refusal.sequence);
    const bool was_processed = refusal.sequence - window_.first() < count;
    if (!was_processed || !frame->operation) continue;
    const auto code = wire::CodeFromWire(static_cast<std::uint8_t>(refusal.code));
    ApplyRefusal(frame,
                 Error(code, fmt::format("{} refused a {} ({}; the reason was lost with a lane)",
                                         site_.context.peer_name,
                                         OperationName(frame->operation->kind), CodeName(code))));
  }
  window_.Resume(count);
  FERRY_TRY(SettleFrames());
  FERRY_CHECK(window_.first() == peer.finished, window_.first(), peer.finished);
  return Ok();
}

// Takes back the frames that the old lane held. Those that are kept leave again in order; slices of
// writes return to their ledgers. The rest answered reads that the peer requests again.
void SliceSender::SendAgain() {
  std::deque<SentFrame> unfinished = window_.TakeAll();
  frames_->ForgetQueued();
  for (const auto& frame : frames_->pool().all()) outbox_->ReleaseSlot(&frame->staged);
  frames_->pool().RecycleUnkept();
  std::vector<PulledSlice> unwritten;
  for (SentFrame& frame : unfinished) {
    outbox_->ReleaseSlot(&frame.staged);
    if (frame.reply) frames_->memory().ReleaseRecord();
    frame.becomes_rts = false;
    if (LaneFrame* const kept = frame.frame; kept != nullptr) {
      window_.Add(std::move(frame));
      site_.counts->retries.Add();
      if (frames_->up()) frames_->Send(kept);
    } else if (frame.operation) {
      unwritten.push_back({std::move(frame.operation), frame.slice});
    }
  }
  GiveBack(unwritten);
}

void SliceSender::Stop() {
  puller_.Stop();
  outbox_->Stop();
}

std::vector<OperationRef> SliceSender::Close(const Error& error) {
  std::vector<OperationRef> late;
  for (SentFrame& frame : window_.TakeAll()) {
    if (frame.operation && IsCopyHere(*frame.operation, frame.slice)) {
      late.push_back(std::move(frame.operation));
    } else if (frame.operation) {
      Resolve(frame.operation, error);
    }
    frame.pin.Release();
    outbox_->ReleaseSlot(&frame.staged);
  }
  for (const auto& [operation, slice] : TakeOutbox()) Resolve(operation, error);
  for (const auto& frame : frames_->pool().all()) outbox_->ReleaseSlot(&frame->staged);
  for (const ReadSlice& read : reads_.TakeAll()) {
    if (read.operation) Resolve(read.operation, error);
  }
  return late;
}

}  // namespace ferry::transfer
