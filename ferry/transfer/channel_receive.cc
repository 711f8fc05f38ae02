#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/channel.h"
#include "ferry/transfer/connection_core.h"

namespace ferry::transfer {
namespace {

using net::Placement;

}  // namespace

Error Channel::Malformed(const char* what) const {
  return Error(Code::kCorrupt,
               fmt::format("{} sent a malformed frame ({}); the connection was closed, reconnect "
                           "with the same release on both sides",
                           connection_->peer_name(), what));
}

Result<Placement> Channel::OnFrame(std::span<const std::byte> meta, std::uint64_t payload_bytes) {
  // A peer that reads our answers lets us have far fewer of them: this bounds what another can make
  // us hold.
  if (plain_ >= MostPlainFrames()) {
    paused_ = true;
    return Placement{Placement::Action::kPause, {}};
  }
  wire::MetaReader reader(meta);
  wire::MessageHeader header;
  if (!reader.Read(&header)) return Malformed("no header");
  FERRY_TRY(OnAck(header.ack));
  return Dispatch(header, &reader, payload_bytes);
}

Result<Placement> Channel::Dispatch(const wire::MessageHeader& header, wire::MetaReader* reader,
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

Result<Placement> Channel::OnPlainFrame(const wire::MessageHeader& header,
                                        wire::MetaReader* reader) {
  switch (header.type) {
    case wire::Type::kAck: return Placement{};
    case wire::Type::kNack: FERRY_TRY(OnNack(reader)); return Placement{};
    case wire::Type::kReadRequest: return OnReadRequest(header, reader);
    case wire::Type::kReadRefused: FERRY_TRY(OnReadRefused(header, reader)); return Placement{};
    case wire::Type::kOffer:
    case wire::Type::kSolicit:
    case wire::Type::kDelivered:
    case wire::Type::kDeclined:
    case wire::Type::kPing:
    case wire::Type::kPong: break;
    default: return Malformed(wire::TypeName(header.type));
  }
  if (index_ != 0) return Malformed("a message on a lane other than the first");
  FERRY_TRY(connection_->OnMessageOnLoop(header, reader));
  if (header.type == wire::Type::kOffer) FinishedFrame(0);
  return Placement{};
}

// ---- what the peer tells about our frames -------------------------------------------------------

Status Channel::OnAck(std::uint32_t ack) {
  const std::uint32_t count = ack - first_unacked_;
  if (count > unacked_.size()) return Malformed("acknowledges frames that were never sent");
  if (count <= acked_) return Ok();
  acked_ = count;
  SettleFrames();
  PumpOnLoop();
  return Ok();
}

// Lets go of the frames that are both acknowledged and sent.
void Channel::SettleFrames() {
  while (acked_ > 0 && sent_ > 0) {
    Unacked frame = std::move(unacked_.front());
    unacked_.pop_front();
    ++first_unacked_;
    --acked_;
    --sent_;
    unacked_bytes_ -= frame.bytes;
    if (frame.pin) --replies_;
    if (frame.becomes_offer) {
      connection_->BecomesOfferOnLoop(frame.operation);
    } else if (frame.operation) {
      Resolve(frame.operation);
    }
  }
}

Status Channel::OnNack(wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) return Malformed("nack");
  const std::uint32_t index = body.sequence - first_unacked_;
  if (index >= unacked_.size()) return Malformed("refuses a frame that was never sent");
  Unacked& frame = unacked_[index];
  if (!frame.operation) return Ok();
  // The frame is settled by the count that follows.
  const Error error(wire::CodeFromWire(body.code),
                    fmt::format("{} refused a {}: {}", connection_->peer_name(),
                                OperationName(frame.operation->kind), reader->Text()));
  if (frame.is_send && error.code() == Code::kUnavailable) {
    // Kept there as an offer, to be asked for: the message waits at ours.
    frame.becomes_offer = true;
    return Ok();
  }
  const bool over = frame.operation->ledger.Stop(error);
  FERRY_CHECK(!over, frame.operation->id);  // this slice is still under way
  return Ok();
}

Status Channel::OnReadRefused(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body) || reading_.empty() ||
      reading_.front().operation_id != header.operation || reading_.front().slice != body.slice) {
    return Malformed("refuses a read that was not asked for");
  }
  ReadSlice slice = std::move(reading_.front());
  reading_.pop_front();
  reading_bytes_ -= slice.bytes;
  if (slice.operation) {
    Resolve(slice.operation,
            Error(wire::CodeFromWire(body.code),
                  fmt::format("{} refused a read: {}", connection_->peer_name(), reader->Text())));
  }
  PumpOnLoop();
  return Ok();
}

// ---- one-sided access ---------------------------------------------------------------------------

// Reads the rest of the payload into nowhere. The frame counts as dealt with when that is done: the
// peer may have given its pages, which must not change while they are still to be sent.
void Channel::DropRest() {
  lane_->DiscardRest();
  incoming_ = Incoming::kDropped;
}

Placement Channel::Drop(std::uint64_t payload_bytes) {
  incoming_ = payload_bytes > 0 ? Incoming::kDropped : Incoming::kNothing;
  incoming_bytes_ = payload_bytes;
  if (payload_bytes == 0) FinishedFrame(0);
  return {Placement::Action::kDiscard, {}};
}

// Answers a sequenced frame by an error and drops its payload; the connection lives on.
Result<Placement> Channel::RefuseSequenced(std::uint64_t operation_id, const Error& error,
                                           std::uint64_t payload_bytes) {
  if (error.code() == Code::kCorrupt) return Malformed(error.message().c_str());
  wire::RefuseBody body;
  body.sequence = finished_;
  body.code = static_cast<std::uint8_t>(error.code());
  SendPlainOnLoop(wire::Type::kNack, operation_id, std::as_bytes(std::span(&body, 1)),
                  error.message());
  connection_->CountRefusal(error);
  return Drop(payload_bytes);
}

Result<Placement> Channel::OnWrite(const wire::MessageHeader& header, wire::MetaReader* reader,
                                   std::uint64_t payload_bytes) {
  wire::WriteBody body;
  if (!reader->Read(&body) || reader->rest().size() != body.blocks * sizeof(wire::BlockOnWire) ||
      payload_bytes == 0) {
    return Malformed("write");
  }
  auto region = connection_->regions().Open(body.key, Rights::kWrite, connection_);
  if (!region) return RefuseSequenced(header.operation, region.error(), payload_bytes);
  if (auto placed = PlaceBlocks(*region->get(), reader->rest(), payload_bytes, &pieces_); !placed) {
    return RefuseSequenced(header.operation, placed.error(), payload_bytes);
  }
  incoming_ = Incoming::kWrite;
  incoming_region_ = *std::move(region);
  incoming_bytes_ = payload_bytes;
  incoming_operation_ = header.operation;
  return Placement{Placement::Action::kPlace, pieces_, /*revocable=*/true};
}

Result<Placement> Channel::OnReadRequest(const wire::MessageHeader& header,
                                         wire::MetaReader* reader) {
  wire::WriteBody body;
  if (!reader->Read(&body) || reader->rest().size() != body.blocks * sizeof(wire::BlockOnWire)) {
    return Malformed("read request");
  }
  // A peer asks for at most kMaxReplies, and acknowledges after kAckFrames: this only bounds what
  // one that does not can make us hold.
  if (replies_ >= 2 * (kMaxReplies + kAckFrames)) {
    paused_ = true;
    return Placement{Placement::Action::kPause, {}};
  }
  wire::BlockOnWire block;
  std::uint64_t bytes = 0;
  for (wire::MetaReader sum = *reader; sum.Read(&block);) {
    if (block.length > net::kMaxPayloadBytes - bytes) return Malformed("read request");
    bytes += block.length;
  }
  auto region = connection_->regions().Open(body.key, Rights::kRead, connection_);
  Status placed = region ? PlaceBlocks(*region->get(), reader->rest(), bytes, &pieces_)
                         : Status(region.error());
  if (!placed) {
    if (placed.error().code() == Code::kCorrupt) return placed.error();
    wire::RefuseBody refusal;
    refusal.slice = body.slice;
    refusal.code = static_cast<std::uint8_t>(placed.error().code());
    SendPlainOnLoop(wire::Type::kReadRefused, header.operation,
                    std::as_bytes(std::span(&refusal, 1)), placed.error().message());
    connection_->CountRefusal(placed.error());
    return Placement{};
  }
  Frame* const frame = NewFrame(wire::Type::kReadData, header.operation);
  wire::Append(&frame->meta, wire::SliceBody{body.slice, 0});
  frame->payload = pieces_;
  frame->payload_bytes = bytes;
  frame->gift = true;
  frame->sequenced = true;
  unacked_.push_back({});
  unacked_.back().pin = *std::move(region);
  ++replies_;
  SendFrame(frame);
  return Placement{};
}

Result<Placement> Channel::OnReadData(const wire::MessageHeader& header, wire::MetaReader* reader,
                                      std::uint64_t payload_bytes) {
  wire::SliceBody body;
  if (!reader->Read(&body) || reading_.empty() || payload_bytes == 0 ||
      reading_.front().operation_id != header.operation || reading_.front().slice != body.slice ||
      reading_.front().bytes != payload_bytes) {
    return Malformed("read data that was not asked for");
  }
  const ReadSlice& slice = reading_.front();
  if (!slice.operation) {
    reading_bytes_ -= slice.bytes;
    reading_.pop_front();
    PumpOnLoop();
    return Drop(payload_bytes);
  }
  LocalPieces(*slice.operation->plan, slice.slice, &pieces_);
  incoming_ = Incoming::kRead;
  incoming_bytes_ = payload_bytes;
  return Placement{Placement::Action::kPlace, pieces_};
}

void Channel::RevokeOnLoop(const RegionState* region) {
  if (closed_ || incoming_ != Incoming::kWrite || incoming_region_.get() != region) return;
  DropRest();
  incoming_region_.Release();
  (void)RefuseSequenced(
      incoming_operation_,
      Error(Code::kRefused, fmt::format("region {} was deregistered during the write", region->id)),
      incoming_bytes_);
}

bool Channel::HoldsOnLoop(const RegionState* region) const {
  return std::any_of(unacked_.begin(), unacked_.end(),
                     [&](const Unacked& frame) { return frame.pin.get() == region; });
}

// ---- messages (first lane only, which is on the connection's home loop) -------------------------

Placement Channel::PlaceInto(Incoming what, std::span<std::byte> memory) {
  incoming_ = what;
  incoming_bytes_ = memory.size();
  pieces_.assign(1, {memory.data(), memory.size()});
  return {Placement::Action::kPlace, pieces_};
}

Result<Placement> Channel::OnSend(const wire::MessageHeader& header, wire::MetaReader* reader,
                                  std::uint64_t payload_bytes) {
  wire::TagBody body;
  if (index_ != 0 || !reader->Read(&body) || body.bytes != payload_bytes ||
      payload_bytes > kMaxEagerBytes) {
    return Malformed("send");
  }
  incoming_operation_ = header.operation;
  incoming_tag_ = body.tag;
  auto receive = connection_->TakeReceiveOnLoop(body.tag, payload_bytes);
  if (!receive) return RefuseSequenced(header.operation, receive.error(), payload_bytes);
  incoming_receive_ = *std::move(receive);
  if (!incoming_receive_ && !connection_->MayKeepOnLoop(payload_bytes)) {
    auto refused = RefuseSequenced(header.operation, Error(Code::kUnavailable, "kept as an offer"),
                                   payload_bytes);
    connection_->KeepOfferOnLoop(header.operation, body);
    return refused;
  }
  incoming_data_.resize(incoming_receive_ ? 0 : payload_bytes);
  const Placement placement = PlaceInto(
      Incoming::kMessage, incoming_receive_ ? incoming_receive_->buffer.first(payload_bytes)
                                            : std::span(incoming_data_));
  if (payload_bytes == 0) FERRY_TRY(OnPayload());
  return placement;
}

Result<Placement> Channel::OnNotify(std::uint64_t payload_bytes) {
  if (index_ != 0 || payload_bytes > kMaxNotificationBytes) return Malformed("notification");
  if (!connection_->MayNotifyOnLoop(payload_bytes)) {
    return RefuseSequenced(
        incoming_operation_,
        Error(Code::kUnavailable,
              "its queue of notifications is full; it must take some before more can come"),
        payload_bytes);
  }
  incoming_data_.resize(payload_bytes);
  const Placement placement = PlaceInto(Incoming::kNotification, incoming_data_);
  if (payload_bytes == 0) FERRY_TRY(OnPayload());
  return placement;
}

void Channel::DropMessageOnLoop(const OperationState* receive) {
  if (incoming_ != Incoming::kMessage || incoming_receive_.get() != receive) return;
  DropRest();
  incoming_receive_.reset();
  (void)RefuseSequenced(incoming_operation_, Error(Code::kCancelled, "the receive was cancelled"),
                        incoming_bytes_);
}

Status Channel::OnPayload() {
  const Incoming what = std::exchange(incoming_, Incoming::kNothing);
  switch (what) {
    case Incoming::kNothing: break;
    case Incoming::kDropped: FinishedFrame(incoming_bytes_); break;
    case Incoming::kWrite:
      incoming_region_.Release();
      FinishedFrame(incoming_bytes_);
      break;
    case Incoming::kRead: {
      ReadSlice slice = std::move(reading_.front());
      reading_.pop_front();
      reading_bytes_ -= slice.bytes;
      FinishedFrame(incoming_bytes_);
      Resolve(slice.operation);
      PumpOnLoop();
      break;
    }
    case Incoming::kMessage:
      FinishedFrame(incoming_bytes_);
      connection_->OnWholeMessageOnLoop(std::exchange(incoming_receive_, nullptr),
                                        incoming_operation_, incoming_tag_, incoming_bytes_,
                                        std::move(incoming_data_));
      break;
    case Incoming::kNotification:
      FinishedFrame(incoming_bytes_);
      connection_->OnNotificationOnLoop(std::move(incoming_data_));
      break;
  }
  return Ok();
}

}  // namespace ferry::transfer
