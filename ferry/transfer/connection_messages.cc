#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/connection_core.h"

// Tagged messages and notifications. Small messages travel at once; a large one, or one that finds
// no room, is offered, asked for when its receive is there, and then written by all lanes into the
// receive's buffer like any other write.
namespace ferry::transfer {
namespace {

std::span<const std::byte> BytesOf(const auto& body) { return std::as_bytes(std::span(&body, 1)); }

void SendOutcome(Channel* channel, wire::Type type, std::uint64_t operation_id,
                 const Status& status) {
  wire::RefuseBody body;
  body.code = status ? 0 : static_cast<std::uint8_t>(status.error().code());
  channel->SendPlainOnLoop(type, operation_id, BytesOf(body),
                           status ? std::string_view() : status.error().message());
}

Error TooShort(const OperationState& receive, std::uint64_t tag, std::uint64_t bytes) {
  return Error(Code::kInvalidArgument,
               fmt::format("the message with tag {} has {} bytes, the receive's buffer {}; post a "
                           "larger buffer",
                           tag, bytes, receive.buffer.size()));
}

}  // namespace

// ---- sending ------------------------------------------------------------------------------------

void ConnectionCore::BeginSendOnLoop(const Op& operation) {
  const wire::TagBody body{operation->tag, operation->message.size()};
  if (operation->message.size() > std::min(config_.eager_bytes, kMaxEagerBytes)) {
    operation->phase = OperationState::Phase::kOffered;
    channels_.front()->SendSequencedOnLoop(wire::Type::kOffer, operation->id, BytesOf(body), {},
                                           nullptr);
    return;
  }
  operation->phase = OperationState::Phase::kMessage;
  operation->ledger.Begin(1);
  FERRY_CHECK(operation->ledger.Pull().has_value());
  channels_.front()->SendSequencedOnLoop(wire::Type::kSend, operation->id, BytesOf(body),
                                         operation->message, operation);
}

void ConnectionCore::BecomesOfferOnLoop(const Op& operation) {
  const bool stopped = operation->ledger.Resolve() && operation->ledger.error().has_value();
  if (stopped) {
    SendDeliveredOnLoop(operation->id, *operation->ledger.error());
    return EndOnLoop(operation, *operation->ledger.error());
  }
  operation->phase = OperationState::Phase::kOffered;
  if (operation->declined) return EndOnLoop(operation, *operation->declined);
  if (operation->solicited) WriteSolicitedOnLoop(operation, *operation->solicited);
}

Status ConnectionCore::OnSolicitOnLoop(const wire::MessageHeader& header,
                                       wire::MetaReader* reader) {
  wire::KeyBody key;
  if (!reader->Read(&key)) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed solicit", peer_name()));
  }
  const Op operation = FindOnLoop(header.operation);
  if (!operation || operation->kind != OperationKind::kSend) return Ok();  // cancelled meanwhile
  if (operation->message.empty()) {
    return Error(Code::kCorrupt,
                 fmt::format("{} solicited a message that has no bytes to write", peer_name()));
  }
  if (operation->phase == OperationState::Phase::kOffered) WriteSolicitedOnLoop(operation, key);
  if (operation->phase == OperationState::Phase::kMessage) operation->solicited = key;
  return Ok();
}

void ConnectionCore::WriteSolicitedOnLoop(const Op& operation, const wire::KeyBody& key) {
  PlanPart part;
  part.remote = key;
  part.local_base = const_cast<std::byte*>(operation->message.data());
  part.blocks.Add({.dst = 0, .src = 0, .len = operation->message.size()});
  std::vector<PlanPart> parts;
  parts.push_back(std::move(part));
  auto plan = MakePlan(Direction::kWrite, peer_.endpoint, std::move(parts), config_.slice_bytes);
  if (!plan) {
    SendDeliveredOnLoop(operation->id, plan.error());
    return EndOnLoop(operation, plan.error());
  }
  operation->plan = *std::move(plan);
  BeginSlicesOnLoop(operation);
}

void ConnectionCore::SendDeliveredOnLoop(std::uint64_t operation_id, const Status& status) {
  SendOutcome(channels_.front().get(), wire::Type::kDelivered, operation_id, status);
}

void ConnectionCore::SendDeclinedOnLoop(std::uint64_t operation_id, const Status& status) {
  SendOutcome(channels_.front().get(), wire::Type::kDeclined, operation_id, status);
}

// ---- receiving ----------------------------------------------------------------------------------

void ConnectionCore::BeginReceiveOnLoop(const Op& operation) {
  operation->phase = OperationState::Phase::kPosted;
  if (auto message = matcher_.Post(operation)) TakeMessageOnLoop(operation, *std::move(message));
}

void ConnectionCore::TakeMessageOnLoop(const Op& receive, ArrivedMessage message) {
  receive->bytes = message.bytes;
  receive->received_tag = message.tag;
  if (message.bytes > receive->buffer.size()) {
    const Error error = TooShort(*receive, message.tag, message.bytes);
    if (message.offered) SendDeclinedOnLoop(message.peer_operation, error);
    return EndOnLoop(receive, error);
  }
  if (message.offered && message.bytes == 0) {
    SendDeclinedOnLoop(message.peer_operation, Ok());
    return EndOnLoop(receive, Ok());
  }
  if (message.offered) return SolicitOnLoop(receive, message);
  if (!message.data.empty()) {
    std::memcpy(receive->buffer.data(), message.data.data(), message.data.size());
  }
  EndOnLoop(receive, Ok());
}

void ConnectionCore::SolicitOnLoop(const Op& receive, const ArrivedMessage& message) {
  if (landing_.count(message.peer_operation) != 0) {
    const Error error(Code::kCorrupt,
                      fmt::format("{} offered two messages under one number; the connection was "
                                  "closed, reconnect with the same release on both sides",
                                  peer_name()));
    EndOnLoop(receive, error);
    return Fail(error);
  }
  auto landing = regions_->Add(receive->buffer.first(message.bytes), Rights::kWrite, this);
  if (!landing) return EndOnLoop(receive, landing.error());
  receive->phase = OperationState::Phase::kReceiving;
  receive->peer_operation = message.peer_operation;
  receive->landing = *std::move(landing);
  landing_[message.peer_operation] = receive;
  const wire::KeyBody key{receive->landing->id, receive->landing->generation,
                          receive->landing->token};
  channels_.front()->SendPlainOnLoop(wire::Type::kSolicit, message.peer_operation, BytesOf(key));
}

Status ConnectionCore::OnDeliveredOnLoop(const wire::MessageHeader& header,
                                         wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed delivered", peer_name()));
  }
  Status status = Ok();
  if (body.code != 0) {
    status = Error(wire::CodeFromWire(body.code),
                   fmt::format("{} ended the message: {}", peer_name(), reader->Text()));
  }
  const auto it = landing_.find(header.operation);
  if (it == landing_.end()) {
    (void)matcher_.RemoveOffer(header.operation);
    return Ok();
  }
  const Op receive = std::move(it->second);
  landing_.erase(it);
  regions_->Remove(receive->landing);
  if (receive->landing->gate.inside() == 0) {
    EndOnLoop(receive, std::move(status));
    return Ok();
  }
  // A peer that has lost the lane of a slice gives the message up while a part of it is still here.
  // That it is whole, only a peer that breaks the rules says then.
  receive->abort_error =
      status ? Error(Code::kCorrupt,
                     fmt::format("{} declared a message delivered in the middle of writing it",
                                 peer_name()))
             : status.error();
  Revoke(receive->landing,
         [self = shared_from_this(), receive] { self->EndOnLoop(receive, *receive->abort_error); });
  return Ok();
}

Status ConnectionCore::OnDeclinedOnLoop(const wire::MessageHeader& header,
                                        wire::MetaReader* reader) {
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
  if (sent->phase == OperationState::Phase::kOffered)
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
  if (!operation->landing) {  // a small message, arriving now
    channels_.front()->DropMessageOnLoop(operation.get());
    return EndOnLoop(operation, error);
  }
  operation->abort_error = error;
  landing_.erase(operation->peer_operation);
  regions_->Remove(operation->landing);
  Revoke(operation->landing,
         [self = shared_from_this(), operation, error] { self->EndOnLoop(operation, error); });
}

Result<std::shared_ptr<OperationState>> ConnectionCore::TakeReceiveOnLoop(std::uint64_t tag,
                                                                          std::uint64_t bytes) {
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

bool ConnectionCore::MayKeepOnLoop(std::uint64_t bytes) const {
  return matcher_.kept_bytes() + bytes <= config_.unexpected_bytes &&
         matcher_.kept_messages() < config_.max_operations;
}

// Peers may have more operations under way than this side keeps messages.
bool ConnectionCore::DeclineForWantOfRoomOnLoop(std::uint64_t peer_operation) {
  const std::size_t most = 2 * std::size_t{config_.max_operations};
  if (matcher_.kept_messages() < most) return false;
  SendDeclinedOnLoop(
      peer_operation,
      Error(Code::kUnavailable,
            fmt::format("{} messages wait for a receive there already, twice its "
                        "FERRY_MAX_OPERATIONS; send it again when some were received",
                        most)));
  return true;
}

void ConnectionCore::KeepOfferOnLoop(std::uint64_t peer_operation, const wire::TagBody& body) {
  if (DeclineForWantOfRoomOnLoop(peer_operation)) return;
  matcher_.Keep({body.tag, body.bytes, peer_operation, /*offered=*/true, {}});
}

Status ConnectionCore::OnOfferOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::TagBody body;
  if (!reader->Read(&body) || body.bytes == 0) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed offer", peer_name()));
  }
  ArrivedMessage message{body.tag, body.bytes, header.operation, /*offered=*/true, {}};
  if (const Op receive = matcher_.TakeReceive(body.tag)) {
    TakeMessageOnLoop(receive, std::move(message));
  } else if (!DeclineForWantOfRoomOnLoop(header.operation)) {
    matcher_.Keep(std::move(message));
  }
  return Ok();
}

void ConnectionCore::OnWholeMessageOnLoop(const Op& receive, std::uint64_t peer_operation,
                                          std::uint64_t tag, std::uint64_t bytes,
                                          std::vector<std::byte> data) {
  if (receive) return EndOnLoop(receive, Ok());
  ArrivedMessage message{tag, bytes, peer_operation, /*offered=*/false, std::move(data)};
  // A receive may have been posted while the message was on its way in.
  if (const Op late = matcher_.TakeReceive(tag)) {
    TakeMessageOnLoop(late, std::move(message));
  } else {
    matcher_.Keep(std::move(message));
  }
}

// ---- notifications and the rest -----------------------------------------------------------------

bool ConnectionCore::MayNotifyOnLoop(std::uint64_t bytes) const {
  const std::lock_guard lock(notifications_mutex_);
  return notification_bytes_ + bytes <= config_.notification_bytes &&
         notifications_.size() < config_.max_operations;
}

void ConnectionCore::OnNotificationOnLoop(std::vector<std::byte> bytes) {
  {
    const std::lock_guard lock(notifications_mutex_);
    notification_bytes_ += bytes.size();
    notifications_.push_back(std::move(bytes));
  }
  home_->NotifyWaiters();
}

Status ConnectionCore::OnMessageOnLoop(const wire::MessageHeader& header,
                                       wire::MetaReader* reader) {
  switch (header.type) {
    case wire::Type::kOffer: return OnOfferOnLoop(header, reader);
    case wire::Type::kSolicit: return OnSolicitOnLoop(header, reader);
    case wire::Type::kDelivered: return OnDeliveredOnLoop(header, reader);
    case wire::Type::kDeclined: return OnDeclinedOnLoop(header, reader);
    case wire::Type::kPing:
      channels_.front()->SendPlainOnLoop(wire::Type::kPong, header.operation, {});
      return Ok();
    default: return Ok();
  }
}

}  // namespace ferry::transfer
