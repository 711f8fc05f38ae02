// Replaces a lane of a channel: freezes the old one, exchanges progress, resends the rest.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/engine/lane_engine.h"
#include "ferry/transfer/handshake/parked_lane.h"

// How a channel continues after the network has dropped its lane, or when a better network path is
// available. First both sides stop using the old lane, so that nothing still in flight on it can
// change memory later. Then each side sends the other how many of its frames it has processed. The
// rest is resent: slices over whichever lane is free, messages in order over the new lane. Sequence
// numbers continue at the peer's count, so repeating the exchange changes nothing.
namespace ferry::transfer {

// Attempts are numbered, so that a late message of an earlier attempt changes nothing.
std::optional<LaneProgress> LaneEngine::Freeze(std::uint32_t attempt) {
  if (closed_ || attempt <= attempt_) return std::nullopt;
  attempt_ = attempt;
  if (up_) {
    owner_->LaneFrozen(index_, heard_);
    GoDownOnLoop();
  }
  return LaneProgress{finished_, refusals_.Latest(kMaxRefusals)};
}

// Waits for GPU copies in flight (well under 1 ms), because their slots and memory are given up
// here. Unacknowledged frames are kept: the peer's progress decides about them.
void LaneEngine::GoDownOnLoop() {
  AwaitCopies();
  up_ = false;
  paused_ = false;
  refusals_.MarkAllSaid();
  ack_deferred_ = false;
  loop_->CancelDeferredOnLoop(this);
  DropIncoming();
  // Read data that has not arrived can be requested again at once: only this side knows where it
  // belongs.
  std::vector<std::pair<OperationRef, std::uint32_t>> unread;
  for (ReadSlice& slice : std::exchange(reading_, {})) {
    if (slice.operation) unread.emplace_back(std::move(slice.operation), slice.slice);
  }
  reading_bytes_ = asked_cost_ = 0;
  DropOutbox(&unread);
  GiveBack(unread);
}

// Stops receiving the current payload: from here on nothing of it is written.
void LaneEngine::DropIncoming() {
  lane_->DiscardRest();
  incoming_copy_.reset();
  given_.Release();
  switch (std::exchange(incoming_, Incoming::kNothing)) {
    case Incoming::kNothing:
    case Incoming::kRead: break;
    case Incoming::kWrite: incoming_region_.Release(); break;
    // The frame was refused, and no more of its payload follows.
    case Incoming::kDropped: ++finished_; break;
    case Incoming::kMessage:
      if (incoming_receive_) {
        messages_->PutBackReceive(std::exchange(incoming_receive_, nullptr));
      }
      break;
    case Incoming::kNotification: incoming_data_.clear(); break;
  }
}

// Drops answers to reads: read data is never resent, so only the old lane still needs its memory.
// Not done for a lane that is only frozen here, because the peer may still be receiving over it.
void LaneEngine::DropAnswers() {
  lane_->Abort();
  for (Unacked& frame : unacked_) frame.pin.Release();
  replies_ = 0;
}

// Returns slices that were pulled and are no longer in flight.
void LaneEngine::GiveBack(const std::vector<std::pair<OperationRef, std::uint32_t>>& all) {
  std::unordered_set<const OperationState*> known;
  std::vector<OperationRef> again;  // each once, to queue for the lanes again
  for (const auto& [operation, slice] : all) {
    if (!operation->ledger.error()) counts_.retries.Add();
    if (operation->ledger.Return(slice)) {
      owner_->PostRoundDone(operation);
    } else if (known.insert(operation.get()).second) {
      again.push_back(operation);
    }
  }
  // Done after all slices are returned: a lane drops an operation that has no slice left.
  for (const auto& operation : again) owner_->DealAgain(operation);
}

// The new lane may have failed while it moved here; it is installed all the same, so that its loss
// is handled like any other.
void LaneEngine::Revive(std::uint32_t attempt, std::unique_ptr<ParkedLane> lane,
                        const LaneProgress& peer) {
  if (closed_ || attempt != attempt_) return;  // a later attempt has started
  FERRY_CHECK(!up_, index_);
  if (auto applied = ApplyProgress(peer); !applied) {
    owner_->LaneFailed(applied.error());
    return Close(applied.error());
  }
  std::deque<Unacked> unfinished = std::exchange(unacked_, {});
  unacked_bytes_ = unsent_bytes_ = copying_bytes_ = 0;
  sent_ = replies_ = plain_ = nacks_queued_ = 0;
  ack_queued_ = ack_due_ = ping_queued_ = pong_queued_ = pong_due_ = false;
  const std::optional<Error> failure = lane->failure();
  ReplaceLane(lane->Take());
  up_ = !failure;
  heard_ = false;
  if (up_) lane_->Attach(loop_, this);
  ReclaimFrames(&unfinished);
  SendAgainOnLoop(std::move(unfinished));
  if (failure) return owner_->LaneLost(index_, *failure, std::nullopt);
  owner_->OnLaneUp(index_, lane_->Info());
  // Tells the peer that this side now relies on the lane.
  SendPlain(wire::Type::kPing, 0, {});
  SamplePathOnLoop();
  PumpOnLoop();
}

// Takes back the frames that the old lane held.
void LaneEngine::ReclaimFrames(std::deque<Unacked>* unfinished) {
  std::vector<Frame*> lost;
  for (const auto& frame : frames_) {
    LetGoOfSlot(frame.get());
    if (frame->used && !frame->kept) lost.push_back(frame.get());
  }
  for (Frame* const frame : lost) Recycle(frame);
  for (Unacked& frame : *unfinished) {
    LetGoOfSlot(&frame);
    if (frame.reply) DropReplyRecord();
  }
  replies_ = 0;
}

// Settles the frames that the peer has processed.
Status LaneEngine::ApplyProgress(const LaneProgress& peer) {
  const std::uint32_t count = peer.finished - first_unacked_;
  if (count > unacked_.size()) return Malformed("has processed frames that were never sent");
  for (const wire::RefusalOnWire& refusal : peer.refused) {
    const std::uint32_t index = refusal.sequence - first_unacked_;
    if (index >= count || !unacked_[index].operation) continue;
    const auto code = wire::CodeFromWire(static_cast<std::uint8_t>(refusal.code));
    ApplyRefusal(
        &unacked_[index],
        Error(code, fmt::format("{} refused a {} ({}; the reason was lost with a lane)",
                                context_.peer_name, OperationName(unacked_[index].operation->kind),
                                CodeName(code))));
  }
  acked_ = sent_ = count;
  SettleFrames();
  FERRY_CHECK(acked_ == 0 && first_unacked_ == peer.finished, acked_, first_unacked_);
  return Ok();
}

// The lane's mutex is held only to swap the pointer: BytesReceived() may read it on another thread.
void LaneEngine::ReplaceLane(std::unique_ptr<net::Lane> lane) {
  lane_->Abort();
  const std::lock_guard lock(lane_mutex_);
  bytes_before_ += lane_->BytesReceived();
  lane_ = std::move(lane);
  lane_retransmits_ = 0;
}

// Frames that are kept leave again in order; slices of writes return to their ledgers.
void LaneEngine::SendAgainOnLoop(std::deque<Unacked> unfinished) {
  // Shared with the connection and the other lanes.
  std::vector<std::pair<OperationRef, std::uint32_t>> unwritten;
  for (Unacked& frame : unfinished) {
    frame.becomes_rts = false;
    if (frame.frame != nullptr) {
      Frame* const kept = frame.frame;
      unacked_bytes_ += frame.bytes;
      unacked_.push_back(std::move(frame));
      counts_.retries.Add();
      if (up_) SendFrame(kept);
    } else if (frame.operation) {
      unwritten.emplace_back(std::move(frame.operation), frame.slice);
    }
    // The rest answered reads that the peer requests again.
  }
  GiveBack(unwritten);
}

}  // namespace ferry::transfer
