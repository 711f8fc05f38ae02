// Completes the headers of frames and sends control frames.
#include "ferry/transfer/lane/frame_sender.h"

#include <fmt/core.h>

#include <cstring>

#include "ferry/core/trace.h"
#include "ferry/core/units.h"
#include "ferry/transfer/lane/frame_checksum.h"
#include "ferry/transfer/lane/lane_limits.h"

namespace ferry::transfer {

FrameSender::FrameSender(const LaneSite& site)
    : site_(site),
      memory_(site.context.memory, site.context.lanes),
      pool_(&memory_),
      acks_(site.max_sequenced(), site.context.window_bytes, site.context.config->slice_bytes) {}

void FrameSender::SetLane(net::Lane* lane) {
  lane_ = lane;
  if (lane != nullptr) return;
  acks_.OnLaneDown();
  site_.loop->CancelDeferredOnLoop(this);
}

void FrameSender::ForgetQueued() { control_.Reset(); }

void FrameSender::Seal(LaneFrame* frame) {
  if (!frame->checked || frame->payload_bytes == 0) return;
  // A GPU has summed what it has read, so that what happens to the slot afterwards is found, too.
  const bool summed = frame->staged && frame->staged->summed;
  SealPayload(summed ? frame->staged->crc : Crc32cOf(frame->payload), &frame->meta);
}

// Every frame acknowledges all frames that came before it, up to the first refusal that is not
// sent yet.
void FrameSender::Send(LaneFrame* frame) {
  const std::uint32_t ack = acks_.Take();
  std::memcpy(frame->meta.data() + offsetof(wire::MessageHeader, ack), &ack, sizeof ack);
  if (frame->checked) SealMetadata(&frame->meta);
  frame->handed_over = {};
  if (frame->payload_bytes > 0 && ActiveTrace() != nullptr) frame->handed_over = Clock::now();
  lane_->Send(frame);
}

void FrameSender::TracePayload(const char* what, std::uint64_t bytes,
                               Clock::time_point since) const {
  if (since == Clock::time_point{}) return;
  Trace* const trace = ActiveTrace();
  if (trace == nullptr) return;
  trace->AddInTurn(fmt::format("lane {} {}", site_.index, what), FormatSize(bytes), since,
                   Clock::now());
}

void FrameSender::SendPlain(wire::Type type, std::uint64_t operation_id,
                            std::span<const std::byte> body, std::string_view text) {
  if (lane_ == nullptr || !control_.Add(type)) return;
  LaneFrame* const frame = New(type, operation_id);
  frame->meta.insert(frame->meta.end(), body.begin(), body.end());
  wire::AppendText(&frame->meta, text);
  frame->plain = true;
  pool_.HoldPlain(frame, kPlainBytes + frame->meta.size());
  Send(frame);
}

// Sends what was merged into the frame while it was queued.
void FrameSender::OnPlainSent(wire::Type type) {
  switch (control_.OnSent(type)) {
    case ControlFrames::Next::kNothing: break;
    case ControlFrames::Next::kAck: return SendAck();
    case ControlFrames::Next::kPong: return SendPlain(wire::Type::kPong, 0, {});
    case ControlFrames::Next::kRefusals: return SendPendingNacks();
  }
}

// ---- acknowledgements ---------------------------------------------------------------------------

void FrameSender::SendAck() {
  if (acks_.due()) SendPlain(wire::Type::kAck, 0, {});
}

void FrameSender::FlushAck() {
  if (lane_ == nullptr) return;
  SendAck();
  lane_->Flush();  // includes frames queued before
  if (lane_ == nullptr) return;
  // An acknowledgement that was queued earlier may acknowledge less.
  SendAck();
  lane_->Flush();
}

void FrameSender::CountFinished(std::uint64_t payload_bytes) {
  switch (acks_.CountFinished(payload_bytes)) {
    case AckSchedule::When::kNow: return SendAck();
    case AckSchedule::When::kWhenIdle:
      return site_.loop->DeferOnLoop(EventLoop::Defer::kIdle, this);
    case AckSchedule::When::kScheduled: break;
  }
}

void FrameSender::RunDeferredOnLoop(EventLoop::Defer /*when*/) {
  acks_.OnIdle();
  SendAck();
}

// ---- refusals -----------------------------------------------------------------------------------

void FrameSender::Refuse(std::uint32_t sequence, std::uint64_t operation_id, const Error& error) {
  SendNack(sequence, operation_id, error);
  site_.owner->CountRefusal(error);
}

void FrameSender::SendNack(std::uint32_t sequence, std::uint64_t operation_id, const Error& error) {
  const auto code = static_cast<std::uint8_t>(error.code());
  // Without a lane, the replacement lane sends it.
  const bool now = lane_ == nullptr || (control_.may_refuse() && !acks_.has_unsaid());
  if (now) SendNackFrame({sequence, code}, operation_id, error.message());
  acks_.AddRefusal(sequence, code, now);
}

void FrameSender::SendNackFrame(const wire::RefusalOnWire& refusal, std::uint64_t operation_id,
                                std::string_view text) {
  wire::RefuseBody body;
  body.sequence = refusal.sequence;
  body.code = static_cast<std::uint8_t>(refusal.code);
  SendPlain(wire::Type::kNack, operation_id, wire::BytesOf(body), text.substr(0, kMaxRefusalText));
}

// Sends the refusals for which there was no room. Each is sent before its frame may be
// acknowledged, and does not carry that acknowledgement itself.
void FrameSender::SendPendingNacks() {
  if (!acks_.has_unsaid()) return;
  while (control_.may_refuse()) {
    const auto refusal = acks_.NextUnsaid();
    if (!refusal) break;
    const Code code = wire::CodeFromWire(static_cast<std::uint8_t>(refusal->code));
    SendNackFrame(
        *refusal, 0,
        fmt::format("{}; too many refusals at once to keep the reason of each", CodeName(code)));
    acks_.SaidNext();
  }
  if (!acks_.has_unsaid()) SendAck();  // was delayed until the last refusal was sent
}

LaneFrame* FrameSender::NewReadRefusal(std::uint64_t operation_id, std::uint32_t slice,
                                       const Error& error) {
  site_.owner->CountRefusal(error);
  wire::RefuseBody refusal;
  refusal.slice = slice;
  refusal.code = static_cast<std::uint8_t>(error.code());
  LaneFrame* const frame = New(wire::Type::kReadRefused, operation_id);
  wire::Append(&frame->meta, refusal);
  wire::AppendText(&frame->meta, std::string_view(error.message()).substr(0, kMaxRefusalText));
  frame->plain = true;
  (void)control_.Add(wire::Type::kReadRefused);  // always true: such a frame is never merged
  pool_.HoldAnswer(frame, AnswerCost(0), AnswerMemory::kGuaranteed);
  return frame;
}

void FrameSender::Close() {
  pool_.Clear();
  acks_.ForgetRefusals();
  memory_.Close();
}

}  // namespace ferry::transfer
