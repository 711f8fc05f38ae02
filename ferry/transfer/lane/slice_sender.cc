// Sends slices and messages, and settles frames.
#include "ferry/transfer/lane/slice_sender.h"

#include <fmt/core.h>

#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/lane/lane_limits.h"

namespace ferry::transfer {
namespace {

// Whether the frame answers one of the peer.
bool IsAnswer(wire::Type type) {
  return type == wire::Type::kCts || type == wire::Type::kDeclined || type == wire::Type::kShared ||
         type == wire::Type::kUnshared;
}

}  // namespace

SliceSender::SliceSender(const LaneSite& site, FrameSender* frames, LaneStaging* staging)
    : site_(site),
      frames_(frames),
      outbox_(&staging->outbox()),
      inbox_(&staging->inbox()),
      rate_(site.context.config->drain_grace),
      puller_(site) {}

// ---- pulling slices -----------------------------------------------------------------------------

void SliceSender::AddWork(OperationRef operation) {
  puller_.Add(std::move(operation));
  Pump();
}

LaneLoad SliceSender::Load() const {
  LaneLoad load;
  load.unsent = window_.unsent_bytes();
  load.unacknowledged = window_.bytes() + outbox_->bytes();
  load.frames = window_.size() + outbox_->size();
  load.drainable = rate_.drainable();
  load.copying = window_.copying_bytes();
  load.reading = reads_.bytes();
  load.may_stage = outbox_->MayStage();
  // The peer keeps a record of each answer until we acknowledge it. Our acknowledgement must wait
  // for unsent refusals and for copies to GPU memory: with more requests the peer would pause
  // before the frame that frees it.
  load.may_ask = !frames_->acks().has_unsaid() && reads_.size() + inbox_->size() < kMaxReplies &&
                 reads_.cost() < AskBudget(site_.context.lanes);
  return load;
}

bool SliceSender::SendNext(SlicePuller::Queue queue) {
  auto pulled = puller_.Pull(queue, Load());
  if (!pulled) return false;
  const PlanPart& part = PartOf(*pulled->operation->plan, pulled->slice);
  if (part.share != 0) {
    SendCopy(*std::move(pulled));
  } else if (queue == SlicePuller::Queue::kReads) {
    SendRead(*std::move(pulled));
  } else if (part.stager != nullptr) {
    StageWrite(*std::move(pulled));
  } else {
    SendWrite(*std::move(pulled));
  }
  return true;
}

// Restarts the rate measurement if the lane was idle.
void SliceSender::Pump() {
  if (!frames_->up() || puller_.stopped()) return;
  outbox_->Fill();
  if (puller_.empty()) return;
  if (window_.bytes() == 0 && outbox_->bytes() == 0 && reads_.bytes() == 0) {
    rate_.Restart(Clock::now());
  }
  // Alternate, so that host memory does not wait for staging slots.
  for (bool moved = true; moved;) {
    moved = SendNext(SlicePuller::Queue::kWrites);
    moved |= SendNext(SlicePuller::Queue::kStagedWrites);
  }
  while (SendNext(SlicePuller::Queue::kReads)) {
  }
}

void SliceSender::SendWrite(PulledSlice pulled) {
  const Plan& plan = *pulled.operation->plan;
  LaneFrame* const frame = frames_->New(wire::Type::kWrite, pulled.operation->id);
  AppendSlice(plan, pulled.slice, &frame->meta, &frame->payload);
  frame->payload_bytes = plan.slice(pulled.slice).range.bytes;
  frame->over_network = true;
  frame->may_splice = true;  // zero-copy: the memory is kept until the peer acknowledges the slice
  frame->unsent = frame->payload_bytes;
  frame->sequenced = true;
  frame->checked |= pulled.operation->checksum;
  SentFrame record;
  record.operation = std::move(pulled.operation);
  record.bytes = frame->payload_bytes;
  record.slice = pulled.slice;
  window_.AddUnsent(frame->unsent);
  window_.AddSlice(std::move(record), Clock::now());
  FrameSender::Seal(frame);
  frames_->Send(frame);
}

void SliceSender::SendRead(PulledSlice pulled) {
  const Plan& plan = *pulled.operation->plan;
  LaneFrame* const frame = frames_->New(wire::Type::kReadRequest, pulled.operation->id);
  AppendSlice(plan, pulled.slice, &frame->meta, nullptr);
  frame->checked |= pulled.operation->checksum;
  const Slice range = plan.slice(pulled.slice).range;
  const std::uint64_t id = pulled.operation->id;
  reads_.Add(
      {std::move(pulled.operation), id, pulled.slice, range.bytes, AnswerCost(range.blocks)});
  frames_->Send(frame);
}

// A slice that the region's owner copies between GPUs of one machine: the frame only describes it.
void SliceSender::SendCopy(PulledSlice pulled) {
  const Plan& plan = *pulled.operation->plan;
  LaneFrame* const frame = frames_->New(wire::Type::kCopy, pulled.operation->id);
  AppendCopy(plan, pulled.slice, &frame->meta);
  frame->sequenced = true;
  SentFrame record;
  record.copied = plan.slice(pulled.slice).range.bytes;
  record.operation = std::move(pulled.operation);
  record.slice = pulled.slice;
  window_.Add(std::move(record));
  frames_->Send(frame);
}

// ---- GPU memory ---------------------------------------------------------------------------------

// The frame's payload lists GPU addresses until the outbox turns them into blocks.
void SliceSender::StageWrite(PulledSlice pulled) {
  const Plan& plan = *pulled.operation->plan;
  LaneFrame* const frame = frames_->New(wire::Type::kWrite, pulled.operation->id);
  AppendSlice(plan, pulled.slice, &frame->meta, &frame->payload);
  frame->payload_bytes = plan.slice(pulled.slice).range.bytes;
  frame->over_network = true;
  frame->sequenced = true;
  frame->checked |= pulled.operation->checksum;
  StagedFrame staged;
  staged.frame = frame;
  staged.stager = PartOf(plan, pulled.slice).stager;
  staged.record.operation = std::move(pulled.operation);
  staged.record.bytes = frame->payload_bytes;
  staged.record.slice = pulled.slice;
  outbox_->Add(std::move(staged));
}

void SliceSender::SendStaged() {
  while (frames_->up()) {
    auto staged = outbox_->TakeReady();
    if (!staged) break;
    SendStagedFrame(*std::move(staged));
  }
  outbox_->Fill();
}

// Sends an entry whose copy has ended. If the copy failed, or the operation was stopped meanwhile,
// the slice is resolved or the read is refused instead.
void SliceSender::SendStagedFrame(StagedFrame staged) {
  LaneFrame* const frame = staged.frame;
  if (frame->plain) return frames_->Send(frame);
  const auto& operation = staged.record.operation;
  if (staged.copy) {
    frame->staged = staged.copy;
    const Status gathered = staged.copy->outcome;
    if (!gathered || (operation && operation->ledger.error())) {
      const std::uint64_t read = OperationIn(*frame);
      outbox_->ReleaseSlot(&frame->staged);
      frames_->pool().Recycle(frame);
      if (operation) {
        return Resolve(operation, gathered ? std::nullopt : std::optional(gathered.error()));
      }
      return frames_->Send(frames_->NewReadRefusal(read, staged.record.slice, gathered.error()));
    }
    staged.copy->pin.Release();
  }
  outbox_->AllowMore();
  frame->may_splice = true;
  frame->unsent = staged.record.bytes;
  window_.AddUnsent(frame->unsent);
  if (staged.record.reply) {
    frames_->memory().HoldRecord();
    window_.Add(std::move(staged.record));
  } else {
    window_.AddSlice(std::move(staged.record), Clock::now());
  }
  FrameSender::Seal(frame);
  frames_->Send(frame);
}

void SliceSender::DropStopped() {
  for (const StagedFrame& staged : outbox_->TakeStopped()) {
    frames_->pool().Recycle(staged.frame);
    Resolve(staged.record.operation);
  }
  SendStaged();
  Pump();
}

// ---- messages and control frames ----------------------------------------------------------------

void SliceSender::SendSequenced(wire::Type type, std::uint64_t operation_id,
                                std::span<const std::byte> body, std::span<const std::byte> payload,
                                OperationRef operation) {
  LaneFrame* const frame = frames_->New(type, operation_id);
  frame->meta.insert(frame->meta.end(), body.begin(), body.end());
  if (!payload.empty()) {
    frame->payload.push_back({const_cast<std::byte*>(payload.data()), payload.size()});
    frame->payload_bytes = payload.size();
  }
  frame->sequenced = true;
  frames_->pool().Keep(frame);
  if (IsAnswer(type)) frames_->pool().HoldKept(frame, kKeptFrameBytes + frame->meta.capacity());
  SentFrame record;
  record.operation = std::move(operation);
  record.bytes = payload.size();
  record.frame = frame;
  record.is_send = type == wire::Type::kSend;
  window_.Add(std::move(record));
  FrameSender::Seal(frame);
  // Without a lane, the replacement sends it.
  if (frames_->up()) frames_->Send(frame);
}

// ---- what has become of frames ------------------------------------------------------------------

void SliceSender::OnSent(LaneFrame* frame) {
  window_.RemoveUnsent(frame->unsent);
  if (frame->staged && frame->spliced_to != 0) {
    window_.next_sent().staged = std::exchange(frame->staged, nullptr);
  } else {
    outbox_->ReleaseSlot(&frame->staged);
  }
  if (!frame->sequenced) return;
  window_.next_sent().spliced_to = frame->spliced_to;
  window_.next_sent().payload = frame->payload_number;
  if (frame->payload_number != 0) window_.next_sent().sent_at = Clock::now();
  window_.MarkSent();
  if (auto settled = SettleFrames(); !settled) site_.owner->LaneFailed(settled.error());
}

Status SliceSender::OnAck(std::uint32_t ack) {
  switch (window_.Acknowledge(ack)) {
    case SendWindow::Ack::kInvalid:
      return MalformedFrame(site_, "acknowledges frames that were never sent");
    case SendWindow::Ack::kStale: break;
    case SendWindow::Ack::kProgress:
      FERRY_TRY(SettleFrames());
      Pump();
      break;
  }
  return Ok();
}

// A payload whose pages the kernel still holds cannot have been read by the peer.
Status SliceSender::SettleFrames() {
  bool kept = false;
  while (const SentFrame* const settled = window_.settled()) {
    if (!frames_->HasDelivered(settled->spliced_to)) {
      return MalformedFrame(site_, "acknowledges a payload before TCP has");
    }
    auto frame = window_.TakeSettled();
    if (frame->bytes > 0 && frame->operation) {
      const auto now = Clock::now();
      rate_.Add(frame->bytes, now);
      if (frame->since != Clock::time_point{}) rate_.AddSlice(frame->ahead, frame->since, now);
    }
    if (frame->reply) frames_->memory().ReleaseRecord();
    outbox_->ReleaseSlot(&frame->staged);
    if (frame->frame != nullptr) {
      frames_->pool().Recycle(frame->frame);
      kept = true;
    }
    if (frame->becomes_rts) {
      site_.messages->BecomesRts(frame->operation);
    } else if (frame->operation) {
      Resolve(frame->operation);
    }
  }
  if (kept) site_.messages->OnAcknowledged();
  return Ok();
}

Status SliceSender::OnNack(wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) return MalformedFrame(site_, "nack");
  SentFrame* const frame = window_.Find(body.sequence);
  if (frame == nullptr) return MalformedFrame(site_, "refuses a frame that was never sent");
  if (!frame->operation) return Ok();
  ApplyRefusal(frame, Error(wire::CodeFromWire(body.code),
                            fmt::format("{} refused a {}: {}", site_.context.peer_name,
                                        OperationName(frame->operation->kind), reader->Text())));
  return Ok();
}

// The acknowledgement that follows settles the frame.
void SliceSender::ApplyRefusal(SentFrame* frame, const Error& error) {
  if (frame->is_send && error.code() == Code::kUnavailable) {
    // The sender keeps the message like one that waits for a CTS.
    frame->becomes_rts = true;
    return;
  }
  const bool over = frame->operation->ledger.Stop(error);
  FERRY_CHECK(!over, frame->operation->id);  // this slice is still in flight
}

Status SliceSender::OnReadRefused(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body) || reads_.Find(header.operation, body.slice) == nullptr) {
    return MalformedFrame(site_, "refuses a read that was not requested");
  }
  const ReadSlice slice = reads_.TakeOldest();
  if (slice.operation) {
    Resolve(slice.operation,
            Error(wire::CodeFromWire(body.code),
                  fmt::format("{} refused a read: {}", site_.context.peer_name, reader->Text())));
  }
  Pump();
  return Ok();
}

void SliceSender::OnReadEnd(const ReadEnd& end) {
  rate_.Add(end.bytes, Clock::now());
  if (end.operation) Resolve(end.operation, end.error);
  Pump();
}

void SliceSender::Resolve(const OperationRef& operation, const std::optional<Error>& error) {
  // Stop() cannot end the round here: the slice being resolved is still in flight.
  if (error && operation->ledger.Stop(*error)) FERRY_CHECK(false, operation->id);
  if (operation->ledger.Resolve()) site_.owner->PostRoundDone(operation);
}

void SliceSender::AbandonReads(const OperationRef& operation) {
  for (std::size_t count = reads_.Abandon(operation.get()); count > 0; --count) Resolve(operation);
}

}  // namespace ferry::transfer
