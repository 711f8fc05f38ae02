// The receiving half of a lane: dispatches the peer's frames and answers them.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/crc32c.h"
#include "ferry/core/trace.h"
#include "ferry/cuda/address.h"
#include "ferry/transfer/engine/lane_engine.h"
#include "ferry/transfer/engine/lane_limits.h"

namespace ferry::transfer {
namespace {

using net::Placement;

Error TooLargeToStage(std::uint64_t bytes, const Stager& stager) {
  return Error(Code::kUnsupported,
               fmt::format("a slice of {} bytes exceeds the limit of {} bytes for GPU memory "
                           "there; use the region's key unchanged, which carries the limit",
                           bytes, stager.slot_bytes()));
}

}  // namespace

Error LaneEngine::Malformed(const char* what) const {
  return Error(Code::kCorrupt,
               fmt::format("{} sent a malformed frame ({}); the connection was closed, reconnect "
                           "with the same release on both sides",
                           context_.peer_name, what));
}

Result<Placement> LaneEngine::OnFrame(std::span<const std::byte> meta,
                                      std::uint64_t payload_bytes) {
  wire::MetaReader reader(meta);
  wire::MessageHeader header;
  if (!up_ || MustPause()) return Placement{Placement::Action::kPause, {}};
  heard_ = true;
  if (!reader.Read(&header)) return Malformed("no header");
  FERRY_TRY(CheckMetadata(meta, header));
  FERRY_TRY(OnAck(header.ack));
  // The frames kept until the peer acknowledges them must be bounded. An honest peer's burst of
  // messages, all declined, stays below this limit: its later frames acknowledge the earlier
  // answers.
  if (kept_ >= 4 * MaxSequenced() ||
      (kept_bytes_ > HeldMemory::kGuaranteed && context_.memory->overfull())) {
    return Malformed("no acknowledgements");
  }
  incoming_crc_ = header.crc;
  incoming_checked_ = (header.flags & wire::kChecked) != 0;
  auto placed = Dispatch(header, &reader, payload_bytes);
  HoldScratch();
  // A paused frame is offered again.
  if (placed && placed->action != Placement::Action::kPause) {
    given_.Release();
    incoming_since_ = {};
    if (payload_bytes > 0 && ActiveTrace() != nullptr) incoming_since_ = Clock::now();
    counts_.frames_received.Add();
    counts_.bytes_received.Add(meta.size());
  }
  return placed;
}

Result<Placement> LaneEngine::Dispatch(const wire::MessageHeader& header, wire::MetaReader* reader,
                                       std::uint64_t payload_bytes) {
  switch (header.type) {
    case wire::Type::kWrite: return OnWrite(header, reader, payload_bytes);
    case wire::Type::kReadData: return OnReadData(header, reader, payload_bytes);
    case wire::Type::kSend: return OnSend(header, reader, payload_bytes);
    case wire::Type::kNotify:
      incoming_operation_ = header.operation;
      return OnNotify(payload_bytes);
    default: break;
  }
  if (payload_bytes != 0) return Malformed("payload where none belongs");
  return OnPlainFrame(header, reader);
}

Result<Placement> LaneEngine::OnPlainFrame(const wire::MessageHeader& header,
                                           wire::MetaReader* reader) {
  switch (header.type) {
    case wire::Type::kAck: return Placement{};
    case wire::Type::kNack: FERRY_TRY(OnNack(reader)); return Placement{};
    case wire::Type::kReadRequest: return OnReadRequest(header, reader);
    case wire::Type::kCopy: return OnCopy(header, reader);
    case wire::Type::kReadRefused: FERRY_TRY(OnReadRefused(header, reader)); return Placement{};
    case wire::Type::kPing: SendPlain(wire::Type::kPong, header.operation, {}); return Placement{};
    case wire::Type::kPong: return Placement{};
    case wire::Type::kLaneLost: {
      wire::JoinBody body;
      if (!reader->Read(&body)) return Malformed("lane lost");
      owner_->PeerGaveUpLane(body.lane);
      return Placement{};
    }
    case wire::Type::kRts:
    case wire::Type::kCts:
    case wire::Type::kFin:
    case wire::Type::kDeclined: break;
    case wire::Type::kShare:
    case wire::Type::kShared:
    case wire::Type::kUnshare:
    case wire::Type::kUnshared: return OnSharing(header, reader);
    default: return Malformed(wire::TypeName(header.type));
  }
  if (index_ != 0) return Malformed("a message on a lane other than the first");
  FERRY_TRY(messages_->OnMessage(header, reader));
  FinishedFrame(0);
  return Placement{};
}

// ---- what the peer tells about our frames -------------------------------------------------------

Status LaneEngine::OnAck(std::uint32_t ack) {
  const std::uint32_t count = ack - first_unacked_;
  if (count > unacked_.size()) return Malformed("acknowledges frames that were never sent");
  if (count <= acked_) return Ok();
  acked_ = count;
  SettleFrames();
  PumpOnLoop();
  return Ok();
}

// Releases the frames that are both acknowledged and sent.
void LaneEngine::SettleFrames() {
  while (acked_ > 0 && sent_ > 0) {
    Unacked frame = std::move(unacked_.front());
    unacked_.pop_front();
    ++first_unacked_;
    --acked_;
    --sent_;
    unacked_bytes_ -= frame.bytes;
    copying_bytes_ -= frame.copied;
    if (frame.bytes > 0 && frame.operation) {
      MeasureRate(frame.bytes);
      MeasureDrain(frame);
    }
    if (frame.reply) DropReplyRecord();
    LetGoOfSlot(&frame);
    if (frame.frame != nullptr) Recycle(frame.frame);
    if (frame.becomes_rts) {
      messages_->BecomesRts(frame.operation);
    } else if (frame.operation) {
      Resolve(frame.operation);
    }
  }
}

Status LaneEngine::OnNack(wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) return Malformed("nack");
  const std::uint32_t index = body.sequence - first_unacked_;
  if (index >= unacked_.size()) return Malformed("refuses a frame that was never sent");
  Unacked& frame = unacked_[index];
  if (!frame.operation) return Ok();
  ApplyRefusal(&frame, Error(wire::CodeFromWire(body.code),
                             fmt::format("{} refused a {}: {}", context_.peer_name,
                                         OperationName(frame.operation->kind), reader->Text())));
  return Ok();
}

// The acknowledgement that follows settles the frame.
void LaneEngine::ApplyRefusal(Unacked* frame, const Error& error) {
  if (frame->is_send && error.code() == Code::kUnavailable) {
    // The sender keeps the message like one that waits for a CTS.
    frame->becomes_rts = true;
    return;
  }
  const bool over = frame->operation->ledger.Stop(error);
  FERRY_CHECK(!over, frame->operation->id);  // this slice is still in flight
}

Status LaneEngine::OnReadRefused(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body) || reading_.empty() ||
      reading_.front().operation_id != header.operation || reading_.front().slice != body.slice) {
    return Malformed("refuses a read that was not requested");
  }
  const ReadSlice slice = TakeReading();
  if (slice.operation) {
    Resolve(slice.operation,
            Error(wire::CodeFromWire(body.code),
                  fmt::format("{} refused a read: {}", context_.peer_name, reader->Text())));
  }
  PumpOnLoop();
  return Ok();
}

// ---- one-sided access ---------------------------------------------------------------------------

Accessor LaneEngine::accessor() {
  return {context_.connection, context_.peer, context_.number, index_, &opened_};
}

// Reads the rest of the payload and discards it. The frame counts as processed only afterwards: the
// peer may have sent its pages zero-copy, and they must not change while they are still queued.
void LaneEngine::DropRest() {
  lane_->DiscardRest();
  incoming_ = Incoming::kDropped;
}

Placement LaneEngine::Drop(std::uint64_t payload_bytes) {
  incoming_ = payload_bytes > 0 ? Incoming::kDropped : Incoming::kNothing;
  incoming_bytes_ = payload_bytes;
  if (payload_bytes == 0) FinishedFrame(0);
  return {Placement::Action::kDiscard, {}};
}

// Refuses a sequenced frame with an error and drops its payload; the connection stays up.
Result<Placement> LaneEngine::RefuseSequenced(std::uint64_t operation_id, const Error& error,
                                              std::uint64_t payload_bytes) {
  if (error.code() == Code::kCorrupt) return Malformed(error.message().c_str());
  SendNack(operation_id, error);
  return Drop(payload_bytes);
}

// Sequence number of the frame being received.
std::uint32_t LaneEngine::IncomingSequence() const {
  return finished_ + static_cast<std::uint32_t>(landings_.size());
}

void LaneEngine::SendNack(std::uint64_t operation_id, const Error& error) {
  SendNackOf(IncomingSequence(), operation_id, error);
}

void LaneEngine::SendNackOf(std::uint32_t sequence, std::uint64_t operation_id,
                            const Error& error) {
  SayNackOf(sequence, operation_id, error);
  owner_->CountRefusal(error);
}

void LaneEngine::SayNackOf(std::uint32_t sequence, std::uint64_t operation_id, const Error& error) {
  const auto code = static_cast<std::uint8_t>(error.code());
  // Without a lane, the replacement lane sends it.
  const bool now = !up_ || (nacks_queued_ < kMaxNacks && !refusals_.has_unsaid());
  if (now) SendNackFrame({sequence, code}, operation_id, error.message());
  refusals_.Add(sequence, code, now);
}

void LaneEngine::SendNackFrame(const wire::RefusalOnWire& refusal, std::uint64_t operation_id,
                               std::string_view text) {
  if (closed_ || !up_) return;
  wire::RefuseBody body;
  body.sequence = refusal.sequence;
  body.code = static_cast<std::uint8_t>(refusal.code);
  ++nacks_queued_;
  SendPlain(wire::Type::kNack, operation_id, std::as_bytes(std::span(&body, 1)),
            text.substr(0, kMaxRefusalText));
}

// Sends the refusals for which there was no room. Each is sent before its frame may be
// acknowledged, and does not carry that acknowledgement itself.
void LaneEngine::SayPendingNacks() {
  if (!refusals_.has_unsaid()) return;
  while (nacks_queued_ < kMaxNacks) {
    const auto refusal = refusals_.NextUnsaid();
    if (!refusal) break;
    const Code code = wire::CodeFromWire(static_cast<std::uint8_t>(refusal->code));
    SendNackFrame(
        *refusal, 0,
        fmt::format("{}; too many refusals at once to keep the reason of each", CodeName(code)));
    refusals_.SaidNext();
  }
  if (!refusals_.has_unsaid()) SendAck();  // was delayed until the last refusal was sent
}

// The payload goes directly into the region's memory, or into a slot if that is GPU memory. The
// placement is revocable: deregistering stops it in the middle.
Result<Placement> LaneEngine::OnWrite(const wire::MessageHeader& header, wire::MetaReader* reader,
                                      std::uint64_t payload_bytes) {
  wire::WriteBody body;
  if (!reader->Read(&body) || reader->rest().size() != body.blocks * sizeof(wire::BlockOnWire) ||
      payload_bytes == 0) {
    return Malformed("write");
  }
  auto region = context_.regions->Open(body.key, Rights::kWrite, accessor());
  if (!region) return RefuseSequenced(header.operation, region.error(), payload_bytes);
  if (auto placed = PlaceBlocks(*region->get(), reader->rest(), payload_bytes, &pieces_); !placed) {
    return RefuseSequenced(header.operation, placed.error(), payload_bytes);
  }
  if (Stager* const stager = region->get()->stager; stager != nullptr) {
    if (payload_bytes > stager->slot_bytes()) {
      return RefuseSequenced(header.operation, TooLargeToStage(payload_bytes, *stager),
                             payload_bytes);
    }
    auto placed = PlaceInSlot(stager, payload_bytes);
    if (!placed || placed->action == Placement::Action::kPause) return placed;
  }
  incoming_ = Incoming::kWrite;
  incoming_region_ = *std::move(region);
  incoming_bytes_ = payload_bytes;
  incoming_operation_ = header.operation;
  return Placement{Placement::Action::kPlace, pieces_, /*revocable=*/true};
}

// The cost of the answer is reserved before the region is opened; a paused request is offered again
// and starts over.
Result<Placement> LaneEngine::OnReadRequest(const wire::MessageHeader& header,
                                            wire::MetaReader* reader) {
  wire::WriteBody body;
  if (!reader->Read(&body) || reader->rest().size() != body.blocks * sizeof(wire::BlockOnWire)) {
    return Malformed("read request");
  }
  wire::BlockOnWire block;
  std::uint64_t bytes = 0;
  for (wire::MetaReader sum = *reader; sum.Read(&block);) {
    if (block.length > net::kMaxPayloadBytes - bytes) return Malformed("read request");
    bytes += block.length;
  }
  const std::uint64_t cost = AnswerCost(body.blocks);
  const auto reserved = ReserveAnswer(cost);
  if (!reserved) {
    paused_ = true;
    return Placement{Placement::Action::kPause, {}};
  }
  auto region = context_.regions->Open(body.key, Rights::kRead, accessor());
  Status placed = region ? PlaceBlocks(*region->get(), reader->rest(), bytes, &pieces_)
                         : Status(region.error());
  Stager* const stager = placed ? region->get()->stager : nullptr;
  if (stager != nullptr && bytes > stager->slot_bytes()) placed = TooLargeToStage(bytes, *stager);
  if (!placed) {
    if (*reserved) context_.memory->RemoveTried(cost);
    if (placed.error().code() == Code::kCorrupt) return placed.error();
    RefuseRead(header.operation, body.slice, placed.error());
    return Placement{};
  }
  Frame* const frame = NewFrame(wire::Type::kReadData, header.operation);
  wire::Append(&frame->meta, wire::SliceBody{body.slice, 0});
  frame->payload_bytes = bytes;
  frame->sequenced = true;
  frame->checked |= incoming_checked_;
  HoldAnswer(frame, cost, *reserved);
  if (stager != nullptr || !outbox_.empty()) {
    StageAnswer(frame, *std::move(region), body.slice);
    return Placement{};
  }
  frame->payload = pieces_;
  frame->may_splice = true;
  Unacked record;
  record.reply = true;
  record.pin = *std::move(region);
  AddReplyRecord(std::move(record));
  Checksum(frame);
  SendFrame(frame);
  return Placement{};
}

// Answers arrive in request order, so only the oldest request may match.
Result<Placement> LaneEngine::OnReadData(const wire::MessageHeader& header,
                                         wire::MetaReader* reader, std::uint64_t payload_bytes) {
  wire::SliceBody body;
  if (!reader->Read(&body) || reading_.empty() || payload_bytes == 0 ||
      reading_.front().operation_id != header.operation || reading_.front().slice != body.slice ||
      reading_.front().bytes != payload_bytes) {
    return Malformed("read data that was not requested");
  }
  const ReadSlice& slice = reading_.front();
  if (!slice.operation) {
    (void)TakeReading();
    PumpOnLoop();
    return Drop(payload_bytes);
  }
  LocalPieces(*slice.operation->plan, slice.slice, &pieces_);
  if (Stager* const stager = PartOf(*slice.operation->plan, slice.slice).stager) {
    auto placed = PlaceInSlot(stager, payload_bytes);
    if (!placed || placed->action == Placement::Action::kPause) return placed;
  }
  incoming_ = Incoming::kRead;
  incoming_bytes_ = payload_bytes;
  return Placement{Placement::Action::kPlace, pieces_};
}

// Afterwards no frame of this lane writes to the region; answers in flight keep their pins.
void LaneEngine::Revoke(const RegionState* region) {
  AwaitLandingsIn(region);
  RefuseWaiting(region);
  if (closed_ || incoming_ != Incoming::kWrite || incoming_region_.get() != region) return;
  DropRest();
  incoming_copy_.reset();
  incoming_region_.Release();
  (void)RefuseSequenced(
      incoming_operation_,
      Error(Code::kRefused, fmt::format("region {} was deregistered during the write", region->id)),
      incoming_bytes_);
}

bool LaneEngine::Holds(const RegionState* region) {
  if (!closed_ && !up_ && lane_ != nullptr) DropAnswers();
  return std::any_of(unacked_.begin(), unacked_.end(),
                     [&](const Unacked& frame) { return frame.pin.get() == region; }) ||
         std::any_of(outbox_.begin(), outbox_.end(),
                     [&](const Staged& staged) { return PinOf(staged).get() == region; });
}

// ---- messages (first lane only, which is on the connection's home loop) -------------------------

Placement LaneEngine::PlaceInto(Incoming what, std::span<std::byte> memory) {
  incoming_ = what;
  incoming_bytes_ = memory.size();
  pieces_.assign(1, {memory.data(), memory.size()});
  return {Placement::Action::kPlace, pieces_};
}

Result<Placement> LaneEngine::OnSend(const wire::MessageHeader& header, wire::MetaReader* reader,
                                     std::uint64_t payload_bytes) {
  wire::TagBody body;
  if (index_ != 0 || !reader->Read(&body) || body.bytes != payload_bytes ||
      payload_bytes > kMaxEagerBytes) {
    return Malformed("send");
  }
  incoming_operation_ = header.operation;
  incoming_tag_ = body.tag;
  auto receive = messages_->TakeReceive(body.tag, payload_bytes);
  if (!receive) return RefuseSequenced(header.operation, receive.error(), payload_bytes);
  incoming_receive_ = *std::move(receive);
  const bool staged = incoming_receive_ && incoming_receive_->stager && payload_bytes > 0;
  if (staged) messages_->PutBackReceive(std::exchange(incoming_receive_, nullptr));
  if (staged || (!incoming_receive_ && !messages_->MayKeep(payload_bytes))) {
    // This is not a refusal: the sender keeps the message until our CTS requests it.
    SayNackOf(IncomingSequence(), header.operation,
              Error(Code::kUnavailable, "kept at the sender until it is requested"));
    const Placement dropped = Drop(payload_bytes);
    messages_->TakeRts(header.operation, body);
    return dropped;
  }
  incoming_data_.resize(incoming_receive_ ? 0 : payload_bytes);
  const Placement placement = PlaceInto(
      Incoming::kMessage, incoming_receive_ ? incoming_receive_->buffer.first(payload_bytes)
                                            : std::span(incoming_data_));
  if (payload_bytes == 0) FERRY_TRY(OnPayload());
  return placement;
}

Result<Placement> LaneEngine::OnNotify(std::uint64_t payload_bytes) {
  if (index_ != 0 || payload_bytes > kMaxNotificationBytes) return Malformed("notification");
  if (!messages_->MayNotify(payload_bytes)) {
    return RefuseSequenced(
        incoming_operation_,
        Error(Code::kUnavailable,
              "its notification queue is full; it must take notifications before more can arrive"),
        payload_bytes);
  }
  incoming_data_.resize(payload_bytes);
  const Placement placement = PlaceInto(Incoming::kNotification, incoming_data_);
  if (payload_bytes == 0) FERRY_TRY(OnPayload());
  return placement;
}

void LaneEngine::DropMessage(const OperationState* receive) {
  if (incoming_ != Incoming::kMessage || incoming_receive_.get() != receive) return;
  DropRest();
  incoming_receive_.reset();
  (void)RefuseSequenced(incoming_operation_, Error(Code::kCancelled, "the receive was cancelled"),
                        incoming_bytes_);
}

Status LaneEngine::OnPayload() {
  const Incoming what = std::exchange(incoming_, Incoming::kNothing);
  if (what == Incoming::kNothing) return Ok();
  counts_.bytes_received.Add(incoming_bytes_);
  TracePayload("receives", incoming_bytes_, incoming_since_);
  if (what != Incoming::kDropped) counts_.payload_bytes_received.Add(incoming_bytes_);
  const Status intact = what == Incoming::kDropped ? Ok() : CheckPayload(what);
  // The sender gets the error before the frame counts as processed. A read is our own operation.
  if (!intact && what != Incoming::kRead) SendNack(incoming_operation_, intact.error());
  const bool lands = intact && incoming_copy_ != nullptr;
  if (what == Incoming::kWrite && lands) Land(nullptr);
  incoming_region_.Release();
  if (!lands) {
    incoming_copy_.reset();
    FinishedFrame(incoming_bytes_);
  }
  switch (what) {
    case Incoming::kNothing:
    case Incoming::kDropped:
    case Incoming::kWrite: break;
    case Incoming::kRead: {
      ReadSlice slice = TakeReading();
      MeasureRate(slice.bytes);
      if (lands) {
        Land(std::move(slice.operation));
      } else {
        Resolve(slice.operation, intact ? std::nullopt : std::optional(intact.error()));
      }
      PumpOnLoop();
      break;
    }
    case Incoming::kMessage:
      messages_->OnWholeMessage(std::exchange(incoming_receive_, nullptr),
                                {incoming_tag_, incoming_bytes_, incoming_operation_,
                                 /*announced=*/false, std::move(incoming_data_)},
                                intact);
      break;
    case Incoming::kNotification:
      if (intact) messages_->OnNotification(std::move(incoming_data_));
      break;
  }
  HoldScratch();
  return Ok();
}

// Checked before any of it is used: a corrupted address must not decide where bytes are written.
Status LaneEngine::CheckMetadata(std::span<const std::byte> meta,
                                 const wire::MessageHeader& header) const {
  if ((header.flags & wire::kChecked) == 0) {
    return context_.checksums ? Status(Malformed("no checksum, although checksums were agreed"))
                              : Ok();
  }
  wire::MessageHeader summed = header;
  summed.meta_crc = 0;
  const std::uint32_t sent = header.meta_crc;
  const std::uint32_t found =
      Crc32c(meta.subspan(sizeof header), Crc32c(std::as_bytes(std::span(&summed, 1))));
  if (found == sent) return Ok();
  owner_->CountMismatch();
  return Error(Code::kCorrupt,
               fmt::format("the metadata of a frame of {} bytes from {} has CRC32C {:08x}, but "
                           "{:08x} was sent with it over lane {}; the network corrupts data, so "
                           "the connection was closed: check cables and network cards",
                           meta.size(), context_.peer_name, found, sent, index_));
}

// Checks the CRC of the payload that was just put in place.
Status LaneEngine::CheckPayload(Incoming what) const {
  if (!incoming_checked_ || incoming_bytes_ == 0) return Ok();
  const std::uint32_t found = Crc32cOf(pieces_);
  if (found == incoming_crc_) return Ok();
  owner_->CountMismatch();
  // The sender computes the checksum before the bytes leave the source, and this side cannot know
  // who writes to the source in between.
  const char* const cause = what == Incoming::kRead
                                ? "the owner of the memory may have written to it while it was read"
                                : "the sender may have written to its memory while it was sent";
  return Error(
      Code::kCorrupt,
      fmt::format(
          "{} bytes at {} have CRC32C {:08x}, but {:08x} was sent with them over lane {}; {}, or "
          "the network corrupted them: do not use the destination, try again while nobody writes "
          "to the source, and if it fails again, check cables, network cards and memory",
          incoming_bytes_, PlaceName(what), found, incoming_crc_, index_, cause));
}

// The destination of the payload being received, for messages.
std::string LaneEngine::PlaceName(Incoming what) const {
  switch (what) {
    case Incoming::kWrite: {
      const RegionState& region = *incoming_region_.get();
      const std::uint64_t first =
          incoming_copy_ ? incoming_blocks_.front().dst : cuda::AddressOf(pieces_.front().iov_base);
      return fmt::format("offset {} of region {}", first - cuda::AddressOf(region.memory.data()),
                         region.id);
    }
    case Incoming::kRead:
      return fmt::format("slice {} of read {}", reading_.front().slice,
                         reading_.front().operation_id);
    case Incoming::kMessage: return fmt::format("the message with tag {}", incoming_tag_);
    default: return "a notification";
  }
}

}  // namespace ferry::transfer
