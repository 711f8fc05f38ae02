// Tagged messages (eager and rendezvous) and notifications of a connection.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/cuda/address.h"
#include "ferry/transfer/engine/connection_core.h"

// Tagged messages and notifications. A small message is sent at once (eager). A large one, or one
// that finds no room, uses a rendezvous: the sender sends an RTS, the receiver answers with a CTS
// once the receive is posted, and all lanes write the message into the receive's buffer like any
// other write.
namespace ferry::transfer {
namespace {

void SendOutcome(LaneEngine* lane, wire::Type type, std::uint64_t operation_id,
                 const Status& status) {
  wire::RefuseBody body;
  body.code = status ? 0 : static_cast<std::uint8_t>(status.error().code());
  std::vector<std::byte> bytes;
  wire::Append(&bytes, body);
  if (!status) wire::AppendText(&bytes, status.error().message());
  lane->SendSequenced(type, operation_id, bytes, {}, nullptr);
}

Error TooShort(const OperationState& receive, std::uint64_t tag, std::uint64_t bytes) {
  return Error(Code::kInvalidArgument,
               fmt::format("the message with tag {} has {} bytes, the receive's buffer {}; post a "
                           "larger buffer",
                           tag, bytes, receive.buffer.size()));
}

}  // namespace

// ---- sending ------------------------------------------------------------------------------------

// Eager up to the limit of the config; otherwise rendezvous, without copying the message.
void ConnectionCore::BeginSendOnLoop(const Op& operation) {
  const wire::TagBody body{operation->tag, operation->message.size()};
  // GPU memory is staged slice by slice, like a write.
  if (operation->stager != nullptr ||
      operation->message.size() > std::min(config_.eager_bytes, kMaxEagerBytes)) {
    if (!lanes_.front()->MaySendRts()) {
      return EndOnLoop(operation,
                       Error(Code::kUnavailable,
                             fmt::format("too many earlier messages to {} are unacknowledged, "
                                         "including cancelled ones; send it again later",
                                         peer_name())));
    }
    operation->phase = OperationState::Phase::kRtsSent;
    lanes_.front()->SendSequenced(wire::Type::kRts, operation->id, wire::BytesOf(body), {},
                                  nullptr);
    return;
  }
  operation->phase = OperationState::Phase::kMessage;
  operation->ledger.BeginPulled();
  lanes_.front()->SendSequenced(wire::Type::kSend, operation->id, wire::BytesOf(body),
                                operation->message, operation);
}

// The receiver had no room for the eager message and keeps only its envelope. Its CTS or FIN may
// have arrived before the refusal was processed here.
void ConnectionCore::BecomesRts(const Op& operation) {
  const bool stopped = operation->ledger.Resolve() && operation->ledger.error().has_value();
  if (stopped) {
    SendFinOnLoop(operation->id, *operation->ledger.error());
    return EndOnLoop(operation, *operation->ledger.error());
  }
  operation->phase = OperationState::Phase::kRtsSent;
  if (operation->declined) return EndOnLoop(operation, *operation->declined);
  if (operation->cts) WriteRequestedOnLoop(operation, *operation->cts);
}

// A CTS that arrives while the eager frame is still in flight is kept until that frame is settled.
Status ConnectionCore::OnCts(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::CtsBody key;
  if (!reader->Read(&key) || key.most_slice < wire::kMinSlice) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed CTS", peer_name()));
  }
  const Op operation = FindOnLoop(header.operation);
  if (!operation || operation->kind != OperationKind::kSend) return Ok();  // cancelled meanwhile
  if (operation->message.empty()) {
    return Error(
        Code::kCorrupt,
        fmt::format("{} sent a CTS for a message that has no bytes to write", peer_name()));
  }
  if (operation->phase == OperationState::Phase::kRtsSent) WriteRequestedOnLoop(operation, key);
  if (operation->phase == OperationState::Phase::kMessage) operation->cts = key;
  return Ok();
}

// The message becomes a write of one block into the region that the CTS names.
void ConnectionCore::WriteRequestedOnLoop(const Op& operation, const wire::CtsBody& asked) {
  PlanPart part;
  part.remote = asked.key;
  part.stager = operation->stager;
  part.most_slice = asked.most_slice;
  if (part.stager) part.most_slice = std::min(part.most_slice, part.stager->slot_bytes());
  part.local_base = const_cast<std::byte*>(operation->message.data());
  part.blocks.Add({.dst = 0, .src = 0, .len = operation->message.size()});
  std::vector<PlanPart> parts;
  parts.push_back(std::move(part));
  auto plan = MakePlan(Direction::kWrite, peer_.endpoint, std::move(parts), config_.slice_bytes);
  if (!plan) {
    SendFinOnLoop(operation->id, plan.error());
    return EndOnLoop(operation, plan.error());
  }
  operation->plan = *std::move(plan);
  BeginSlicesOnLoop(operation);
}

void ConnectionCore::SendFinOnLoop(std::uint64_t operation_id, const Status& status) {
  SendOutcome(lanes_.front().get(), wire::Type::kFin, operation_id, status);
}

void ConnectionCore::SendDeclinedOnLoop(std::uint64_t operation_id, const Status& status) {
  SendOutcome(lanes_.front().get(), wire::Type::kDeclined, operation_id, status);
}

// ---- receiving ----------------------------------------------------------------------------------

void ConnectionCore::BeginReceiveOnLoop(const Op& operation) {
  operation->phase = OperationState::Phase::kPosted;
  auto message = matcher_.Post(operation);
  if (!message) return;
  CountKeptOnLoop();
  TakeMessageOnLoop(operation, *std::move(message));
}

// A receive was matched with a message: with its data, or with an RTS, which is answered by a CTS
// or refused.
void ConnectionCore::TakeMessageOnLoop(const Op& receive, ArrivedMessage message) {
  receive->bytes = message.bytes;
  receive->received_tag = message.tag;
  if (message.bytes > receive->buffer.size()) {
    const Error error = TooShort(*receive, message.tag, message.bytes);
    if (message.announced) SendDeclinedOnLoop(message.peer_operation, error);
    return EndOnLoop(receive, error);
  }
  if (message.announced && message.bytes == 0) {
    SendDeclinedOnLoop(message.peer_operation, Ok());
    return EndOnLoop(receive, Ok());
  }
  if (message.announced) return SendCtsOnLoop(receive, message);
  if (receive->stager && message.bytes > 0) {
    receive->phase = OperationState::Phase::kReceiving;
    return LandMessageOnLoop(receive,
                             std::make_shared<std::vector<std::byte>>(std::move(message.data)), 0);
  }
  if (!message.data.empty()) {
    std::memcpy(receive->buffer.data(), message.data.data(), message.data.size());
  }
  EndOnLoop(receive, Ok());
}

// Copies the rest, from offset `at`, of a message that arrived before its receive into GPU memory,
// one slot at a time. `data` is shared by the steps.
void ConnectionCore::LandMessageOnLoop(const Op& receive,
                                       std::shared_ptr<std::vector<std::byte>> data,
                                       std::uint64_t at) {
  if (!operations_.Contains(receive->id)) return;
  if (receive->abort_error) return EndOnLoop(receive, *receive->abort_error);
  if (at == data->size()) return EndOnLoop(receive, Ok());
  auto slot = receive->stager->Take(
      StageWay::kFromNetwork, [self = shared_from_this(), receive, data, at](StageSlot given) {
        self->home_->Post([self, receive, data, at, given = std::move(given)]() mutable {
          self->LandPartOnLoop(receive, data, at, std::move(given));
        });
      });
  if (slot) LandPartOnLoop(receive, std::move(data), at, *std::move(slot));
}

void ConnectionCore::LandPartOnLoop(const Op& receive, std::shared_ptr<std::vector<std::byte>> data,
                                    std::uint64_t at, StageSlot slot) {
  if (!operations_.Contains(receive->id) || receive->abort_error) {
    return LandMessageOnLoop(receive, std::move(data), at);
  }
  const auto part = std::span(*data).subspan(at).first(
      std::min<std::uint64_t>(data->size() - at, slot.memory().size()));
  std::copy(part.begin(), part.end(), slot.memory().begin());
  receive->staged = std::make_shared<StagedCopy>();
  receive->staged->slot = std::move(slot);
  const Block block{
      .dst = cuda::AddressOf(receive->buffer.data()) + at, .src = 0, .len = part.size()};
  BeginScatter(receive->stager, receive->staged, {&block, 1},
               [self = shared_from_this(), receive, data, next = at + part.size()] {
                 self->home_->Post([self, receive, data, next] {
                   const auto copy = std::exchange(receive->staged, nullptr);
                   if (!copy) return;  // the connection has ended, and waited for the copy
                   copy->Release();
                   if (!copy->outcome) return self->EndOnLoop(receive, copy->outcome);
                   self->LandMessageOnLoop(receive, data, next);
                 });
               });
}

// Registers the receive's buffer as a region for this one message and sends its key to the sender
// in a CTS.
void ConnectionCore::SendCtsOnLoop(const Op& receive, const ArrivedMessage& message) {
  if (landing_.count(message.peer_operation) != 0) {
    const Error error(Code::kCorrupt,
                      fmt::format("{} sent two RTS with one operation id; the connection was "
                                  "closed, reconnect with the same release on both sides",
                                  peer_name()));
    EndOnLoop(receive, error);
    return Fail(error);
  }
  Stager* const stager = receive->stager;
  auto landing = regions_->Add(receive->buffer.first(message.bytes), Rights::kWrite, this, stager);
  if (!landing) return EndOnLoop(receive, landing.error());
  receive->phase = OperationState::Phase::kReceiving;
  receive->peer_operation = message.peer_operation;
  receive->landing = *std::move(landing);
  landing_[message.peer_operation] = receive;
  const wire::CtsBody body{
      {receive->landing->id, receive->landing->generation, receive->landing->token},
      stager ? stager->slot_bytes() : ~std::uint64_t{0}};
  lanes_.front()->SendSequenced(wire::Type::kCts, message.peer_operation, wire::BytesOf(body), {},
                                nullptr);
}

// The receive ends only when no lane is inside its buffer any more, whatever the FIN says.
Status ConnectionCore::OnFin(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed FIN", peer_name()));
  }
  Status status = Ok();
  if (body.code != 0) {
    status = Error(wire::CodeFromWire(body.code),
                   fmt::format("{} ended the message: {}", peer_name(), reader->Text()));
  }
  const auto it = landing_.find(header.operation);
  if (it == landing_.end()) {
    (void)matcher_.RemoveRts(header.operation);
    CountKeptOnLoop();
    return Ok();
  }
  const Op receive = std::move(it->second);
  landing_.erase(it);
  regions_->Remove(receive->landing);
  if (receive->landing->gate.inside() == 0) {
    EndOnLoop(receive, std::move(status));
    return Ok();
  }
  // A peer that has lost the lane of a slice may withdraw the message while part of it is still
  // being processed here. Only a peer that violates the protocol declares it complete then.
  receive->abort_error =
      status ? Error(Code::kCorrupt,
                     fmt::format("{} sent the FIN of a message in the middle of writing it",
                                 peer_name()))
             : status.error();
  Revoke(receive->landing,
         [self = shared_from_this(), receive] { self->EndOnLoop(receive, *receive->abort_error); });
  return Ok();
}

Status ConnectionCore::OnDeclined(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed declined", peer_name()));
  }
  const Op sent = FindOnLoop(header.operation);
  if (!sent || sent->kind != OperationKind::kSend) return Ok();  // cancelled meanwhile
  Status status = Ok();
  if (body.code != 0) {
    status = Error(wire::CodeFromWire(body.code),
                   fmt::format("{} declined the message: {}", peer_name(), reader->Text()));
  } else if (!sent->message.empty()) {
    return Error(Code::kCorrupt,
                 fmt::format("{} declined a message without a reason", peer_name()));
  }
  if (sent->phase == OperationState::Phase::kRtsSent)
    EndOnLoop(sent, std::move(status));
  else if (sent->phase == OperationState::Phase::kMessage)
    sent->declined = std::move(status);
  return Ok();
}

void ConnectionCore::AbortReceiveOnLoop(const Op& operation, const Error& error) {
  if (operation->phase == OperationState::Phase::kPosted) {
    (void)matcher_.RemoveReceive(operation.get());
    return EndOnLoop(operation, error);
  }
  if (operation->stager && !operation->landing) {
    if (!operation->staged) return EndOnLoop(operation, error);  // it waits for a slot
    operation->abort_error = error;                              // ends after the copy in flight
    return;
  }
  if (!operation->landing) {  // a small message that is arriving
    lanes_.front()->DropMessage(operation.get());
    return EndOnLoop(operation, error);
  }
  operation->abort_error = error;
  landing_.erase(operation->peer_operation);
  regions_->Remove(operation->landing);
  Revoke(operation->landing,
         [self = shared_from_this(), operation, error] { self->EndOnLoop(operation, error); });
}

Result<OperationRef> ConnectionCore::TakeReceive(std::uint64_t tag, std::uint64_t bytes) {
  Op receive = matcher_.TakeReceive(tag);
  if (!receive) return receive;
  receive->received_tag = tag;
  receive->bytes = bytes;
  if (bytes > receive->buffer.size()) {
    const Error error = TooShort(*receive, tag, bytes);
    EndOnLoop(receive, error);
    return error;
  }
  receive->phase = OperationState::Phase::kReceiving;
  return receive;
}

void ConnectionCore::PutBackReceive(const Op& receive) {
  receive->phase = OperationState::Phase::kPosted;
  matcher_.PutBack(receive);
}

bool ConnectionCore::MayKeep(std::uint64_t bytes) const {
  return matcher_.kept_bytes() + bytes <= config_.unexpected_bytes &&
         matcher_.kept_messages() < config_.max_operations &&
         memory_.HasRoom(kKeptRecordBytes + bytes);
}

void ConnectionCore::CountKeptOnLoop() {
  const std::uint64_t now =
      matcher_.kept_bytes() + kKeptRecordBytes * std::uint64_t{matcher_.kept_messages()};
  const std::uint64_t before = std::exchange(kept_bytes_, now);
  if (now > before) memory_.AddTried(now - before);
  if (now < before) memory_.RemoveTried(before - now);
}

// Peers may have more operations in flight than this side keeps messages.
bool ConnectionCore::DeclineForWantOfRoomOnLoop(std::uint64_t peer_operation) {
  const std::size_t most = 2 * std::size_t{config_.max_operations};
  const bool has_room = memory_.HasRoom(kKeptRecordBytes);
  if (has_room && matcher_.kept_messages() < most) return false;
  const char* const limit =
      has_room ? "twice its FERRY_MAX_OPERATIONS"
               : "all that its FERRY_PEER_MEMORY or FERRY_PEER_MEMORY_TOTAL has room for";
  SendDeclinedOnLoop(
      peer_operation,
      Error(Code::kUnavailable,
            fmt::format(
                "the peer already keeps {} messages without a receive, {}; send it again when "
                "some were received",
                matcher_.kept_messages(), limit)));
  return true;
}

Status ConnectionCore::OnRts(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::TagBody body;
  if (!reader->Read(&body) || body.bytes == 0) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed RTS", peer_name()));
  }
  TakeRts(header.operation, body);
  return Ok();
}

void ConnectionCore::TakeRts(std::uint64_t peer_operation, const wire::TagBody& body) {
  ArrivedMessage message{body.tag, body.bytes, peer_operation, /*announced=*/true, {}};
  if (const Op receive = matcher_.TakeReceive(body.tag)) {
    TakeMessageOnLoop(receive, std::move(message));
  } else if (!DeclineForWantOfRoomOnLoop(peer_operation)) {
    matcher_.Keep(std::move(message));
    CountKeptOnLoop();
  }
}

void ConnectionCore::OnWholeMessage(const Op& receive, ArrivedMessage message,
                                    const Status& intact) {
  if (receive) return EndOnLoop(receive, intact);
  if (!intact) return;  // the sender has been told
  // A receive may have been posted while the message was arriving.
  if (const Op late = matcher_.TakeReceive(message.tag)) {
    TakeMessageOnLoop(late, std::move(message));
  } else {
    matcher_.Keep(std::move(message));
    CountKeptOnLoop();
  }
}

// ---- notifications and the rest -----------------------------------------------------------------

bool ConnectionCore::MayNotify(std::uint64_t bytes) const {
  const std::lock_guard lock(notifications_mutex_);
  return notification_bytes_ + bytes <= config_.notification_bytes &&
         notifications_.size() < config_.max_operations &&
         memory_.HasRoom(kKeptRecordBytes + bytes);
}

void ConnectionCore::OnNotification(std::vector<std::byte> bytes) {
  {
    const std::lock_guard lock(notifications_mutex_);
    notification_bytes_ += bytes.size();
    memory_.AddTried(kKeptRecordBytes + bytes.size());
    notifications_.push_back(std::move(bytes));
    notification_ready_.Set(true);
  }
  home_->NotifyWaiters();
}

Status ConnectionCore::OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader) {
  switch (header.type) {
    case wire::Type::kRts: return OnRts(header, reader);
    case wire::Type::kCts: return OnCts(header, reader);
    case wire::Type::kFin: return OnFin(header, reader);
    case wire::Type::kDeclined: return OnDeclined(header, reader);
    default: return Ok();
  }
}

}  // namespace ferry::transfer
