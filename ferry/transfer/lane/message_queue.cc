// Sends and receives tagged messages, eager and by rendezvous, and keeps notifications.
#include "ferry/transfer/lane/message_queue.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/cuda/address.h"
#include "ferry/transfer/gpu/staged_copy.h"

namespace ferry::transfer {

// ---- Matcher ------------------------------------------------------------------------------------

namespace {

// Limit of mask tables that are kept for reuse although no receive has their mask at present.
constexpr std::size_t kIdleMasks = 8;

bool Takes(const OperationState& receive, std::uint64_t tag) {
  return ((receive.tag ^ tag) & receive.mask) == 0;
}

}  // namespace

// ---- queues -------------------------------------------------------------------------------------

template <class T>
void Matcher::Queue<T>::Add(Sequence sequence, T item) {
  if (empty()) {
    first_sequence_ = sequence;
    first_ = std::move(item);
    return;
  }
  if (sequence < first_sequence_) {
    std::swap(sequence, first_sequence_);
    std::swap(item, first_);
  }
  if (!rest_) rest_ = std::make_unique<Rest>();
  rest_->emplace_hint(rest_->end(), sequence, std::move(item));
}

template <class T>
T Matcher::Queue<T>::Take(Sequence sequence) {
  T taken{};
  if (sequence == first_sequence_) {
    taken = std::exchange(first_, T());
    first_sequence_ = 0;
    if (!rest_) return taken;
    first_sequence_ = rest_->begin()->first;
    first_ = std::move(rest_->begin()->second);
    rest_->erase(rest_->begin());
  } else if (rest_) {
    if (auto node = rest_->extract(sequence)) taken = std::move(node.mapped());
  }
  if (rest_ && rest_->empty()) rest_.reset();
  return taken;
}

// ---- receives -----------------------------------------------------------------------------------

std::optional<ArrivedMessage> Matcher::Post(const Receive& receive, bool may_index) {
  const auto message = FindMessage(*receive, may_index);
  if (message != arrived_.end()) return Take(message);
  receive->receiving.posted_as = ++last_posted_;
  Enqueue(receive);
  return std::nullopt;
}

void Matcher::Enqueue(const Receive& receive) {
  posted_[receive->mask][receive->tag & receive->mask].Add(receive->receiving.posted_as, receive);
}

Matcher::Receive Matcher::TakeReceive(std::uint64_t tag) {
  const Queue<Receive>* oldest = nullptr;
  for (auto& [mask, queues] : posted_) {
    const Queue<Receive>* const queue = queues.Find(tag & mask);
    if (queue == nullptr) continue;
    if (oldest == nullptr || queue->first_sequence() < oldest->first_sequence()) oldest = queue;
  }
  return oldest == nullptr ? nullptr : Dequeue(oldest->first().get());
}

bool Matcher::RemoveReceive(const OperationState* receive) { return Dequeue(receive) != nullptr; }

Matcher::Receive Matcher::Dequeue(const OperationState* receive) {
  const auto queues = posted_.find(receive->mask);
  if (queues == posted_.end()) return nullptr;
  const std::uint64_t key = receive->tag & receive->mask;
  Queue<Receive>* const queue = queues->second.Find(key);
  if (queue == nullptr) return nullptr;
  Receive taken = queue->Take(receive->receiving.posted_as);
  if (queue->empty()) queues->second.Erase(key);
  if (queues->second.empty() && posted_.size() > kIdleMasks) posted_.erase(queues);
  return taken;
}

// ---- messages -----------------------------------------------------------------------------------

void Matcher::Keep(ArrivedMessage message) {
  kept_bytes_ += message.data.size();
  const auto kept = arrived_.insert(arrived_.end(), {std::move(message), ++last_arrived_});
  for (Index& index : indexes_) AddTo(&index, kept);
  if (kept->message.announced) {
    ++announced_;
    rts_[kept->message.peer_operation].Add(kept->sequence, kept);
  }
}

Matcher::Arrived::iterator Matcher::FindMessage(const OperationState& receive, bool may_index) {
  Index* const index = arrived_.size() <= kFewMessages ? nullptr : IndexOf(receive.mask, may_index);
  if (index == nullptr) {
    return std::find_if(arrived_.begin(), arrived_.end(),
                        [&](const Kept& kept) { return Takes(receive, kept.message.tag); });
  }
  const auto* const queue = index->queues.Find(receive.tag & receive.mask);
  return queue == nullptr ? arrived_.end() : queue->first();
}

// Null if there are too many masks. The first one's table is paid for by each message.
Matcher::Index* Matcher::IndexOf(std::uint64_t mask, bool may_index) {
  const auto found = std::find_if(indexes_.begin(), indexes_.end(),
                                  [&](const Index& index) { return index.mask == mask; });
  if (found != indexes_.end()) return &*found;
  if (indexes_.size() == kMaxIndexes || (!indexes_.empty() && !may_index)) return nullptr;
  Index& index = indexes_.emplace_back();
  index.mask = mask;
  for (auto kept = arrived_.begin(); kept != arrived_.end(); ++kept) AddTo(&index, kept);
  return &index;
}

void Matcher::AddTo(Index* index, Arrived::iterator message) {
  index->queues[message->message.tag & index->mask].Add(message->sequence, message);
}

void Matcher::RemoveFrom(Queues<Arrived::iterator>* queues, std::uint64_t key, Sequence sequence) {
  auto* const queue = queues->Find(key);
  (void)queue->Take(sequence);
  if (queue->empty()) queues->Erase(key);
}

ArrivedMessage Matcher::Take(Arrived::iterator message) {
  for (Index& index : indexes_) {
    RemoveFrom(&index.queues, message->message.tag & index.mask, message->sequence);
  }
  ArrivedMessage taken = std::move(message->message);
  if (taken.announced) {
    --announced_;
    RemoveFrom(&rts_, taken.peer_operation, message->sequence);
  }
  arrived_.erase(message);
  if (arrived_.empty()) indexes_.clear();
  kept_bytes_ -= taken.data.size();
  return taken;
}

std::uint64_t Matcher::CostOf(std::uint64_t messages, std::uint64_t announced) const {
  const std::size_t indexes = std::max<std::size_t>(1, indexes_.size());
  return kKeptRecordBytes * messages + kTableEntryBytes * (indexes * messages + announced);
}

std::uint64_t Matcher::CostOfNext(bool announced) const { return CostOf(1, announced ? 1 : 0); }

// A table keeps its size until it is empty.
std::uint64_t Matcher::held_bytes() const {
  static_assert(sizeof(Kept) + 64 <= kKeptRecordBytes);  // list node, data, and their allocation
  static_assert(4 * (2 * sizeof(std::uint64_t) + sizeof(Queue<Arrived::iterator>)) <=
                kTableEntryBytes);
  if (arrived_.empty()) return 0;
  std::uint64_t tables = rts_.bytes();
  for (const Index& index : indexes_) tables += index.queues.bytes();
  return kept_bytes_ +
         std::max(CostOf(arrived_.size(), announced_), kKeptRecordBytes * arrived_.size() + tables);
}

bool Matcher::RemoveRts(std::uint64_t peer_operation) {
  const auto* const announced = rts_.Find(peer_operation);
  if (announced == nullptr) return false;
  (void)Take(announced->first());
  return true;
}

// ---- NotificationQueue --------------------------------------------------------------------------

bool NotificationQueue::HasRoom(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return bytes_ + bytes <= config_->notification_bytes && queue_.size() < config_->max_operations &&
         memory_->HasRoom(kKeptRecordBytes + bytes);
}

void NotificationQueue::Add(std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes.size();
  memory_->AddTried(kKeptRecordBytes + bytes.size());
  queue_.push_back(std::move(bytes));
  ready_.Set(true);
}

bool NotificationQueue::Take(std::vector<std::byte>* bytes) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return false;
  *bytes = std::move(queue_.front());
  queue_.pop_front();
  bytes_ -= bytes->size();
  memory_->RemoveTried(kKeptRecordBytes + bytes->size());
  if (queue_.empty() && !closed_) ready_.Set(false);
  return true;
}

Result<UniqueFd> NotificationQueue::Descriptor() {
  const std::lock_guard lock(mutex_);
  return ready_.Descriptor(!queue_.empty() || closed_);
}

void NotificationQueue::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  ready_.Set(true);
}

// ---- MessageQueue -------------------------------------------------------------------------------

namespace {

Error TooShort(const OperationState& receive, std::uint64_t tag, std::uint64_t bytes) {
  return Error(Code::kInvalidArgument,
               fmt::format("the message with tag {} has {} bytes, the receive's buffer {}; post a "
                           "larger buffer",
                           tag, bytes, receive.buffer.size()));
}

}  // namespace

MessageQueue::MessageQueue(const LaneContext* context, EventLoop* home)
    : context_(context),
      home_(home),
      host_(context->operations),
      notifications_(context->config, context->memory) {}

Error MessageQueue::Malformed(const char* what) const {
  return Error(Code::kCorrupt, fmt::format("{} sent a malformed {}", context_->peer_name, what));
}

Status MessageQueue::OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader) {
  switch (header.type) {
    case wire::Type::kRts: return OnRts(header, reader);
    case wire::Type::kCts: return OnCts(header, reader);
    case wire::Type::kFin: return OnFin(header, reader);
    case wire::Type::kDeclined: return OnDeclined(header, reader);
    default: return Ok();
  }
}

void MessageQueue::Stop() {
  matcher_ = Matcher();
  CountKept();
}

void MessageQueue::Close() {
  for (const auto& [id, receive] : landing_) context_->regions->Remove(receive->receiving.landing);
  landing_.clear();
  early_bytes_ = 0;
  CountKept();
  context_->memory->RemoveLateAnswers(late_answers_.size());
  late_answers_ = {};
}

void MessageQueue::OnNotification(std::vector<std::byte> bytes) {
  notifications_.Add(std::move(bytes));
  home_->NotifyWaiters();
}

// ---- sending ------------------------------------------------------------------------------------

// Eager up to the limit of the config; otherwise rendezvous, without copying the message.
void MessageQueue::BeginSend(const OperationRef& operation) {
  const wire::TagBody body{operation->tag, operation->message.size()};
  // GPU memory is staged slice by slice, like a write.
  const std::uint64_t most_eager =
      operation->rendezvous ? 0 : std::min(context_->config->eager_bytes, kMaxEagerBytes);
  if (operation->stager != nullptr || operation->message.size() > most_eager) {
    if (!host_->MaySendRts()) {
      return host_->End(*operation,
                        Error(Code::kUnavailable,
                              fmt::format("too many earlier messages to {} are unacknowledged, "
                                          "including cancelled ones; send it again later",
                                          context_->peer_name)));
    }
    operation->Enter(OperationState::Phase::kRtsSent);
    host_->Send(wire::Type::kRts, operation->id, wire::BytesOf(body), {}, nullptr);
    return;
  }
  operation->Enter(OperationState::Phase::kMessage);
  operation->ledger.BeginPulled();
  host_->Send(wire::Type::kSend, operation->id, wire::BytesOf(body), operation->message, operation);
}

// The receiver had no room for the eager message and keeps only its envelope. Its CTS or FIN may
// have arrived before the refusal was processed here.
void MessageQueue::BecomesRts(const OperationRef& operation) {
  const bool stopped = operation->ledger.Resolve() && operation->ledger.error().has_value();
  if (stopped) {
    SendFin(operation->id, *operation->ledger.error());
    return host_->End(*operation, *operation->ledger.error());
  }
  operation->Enter(OperationState::Phase::kRtsSent);
  const OperationState::Answer& answer = operation->answer;
  if (answer.declined) return host_->End(*operation, *answer.declined);
  if (answer.cts) WriteRequested(operation, *answer.cts);
}

// A CTS that arrives while the eager frame is still in flight is kept until that frame is settled.
Status MessageQueue::OnCts(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::CtsBody key;
  if (!reader->Read(&key) || key.most_slice < wire::kMinSlice) return Malformed("CTS");
  const OperationRef operation = host_->Find(header.operation);
  if (!operation || operation->kind != OperationKind::kSend) return Ok();  // cancelled meanwhile
  if (operation->message.empty()) {
    return Error(
        Code::kCorrupt,
        fmt::format("{} sent a CTS for a message that has no bytes to write", context_->peer_name));
  }
  if (operation->phase() == OperationState::Phase::kRtsSent) WriteRequested(operation, key);
  if (operation->phase() == OperationState::Phase::kMessage) operation->answer.cts = key;
  return Ok();
}

// The message becomes a write of one block into the region that the CTS names.
void MessageQueue::WriteRequested(const OperationRef& operation, const wire::CtsBody& asked) {
  PlanPart part;
  part.remote = asked.key;
  part.stager = operation->stager;
  part.most_slice = asked.most_slice;
  if (part.stager) part.most_slice = std::min(part.most_slice, part.stager->slot_bytes());
  part.local_base = const_cast<std::byte*>(operation->message.data());
  part.blocks.Add({.dst = 0, .src = 0, .len = operation->message.size()});
  std::vector<PlanPart> parts;
  parts.push_back(std::move(part));
  auto plan =
      MakePlan(Direction::kWrite, context_->peer, std::move(parts),
               {.slice_bytes = context_->config->slice_bytes, .lanes = context_->bulk_lanes});
  if (!plan) {
    SendFin(operation->id, plan.error());
    return host_->End(*operation, plan.error());
  }
  operation->plan = *std::move(plan);
  host_->BeginSlices(operation);
}

void MessageQueue::SendOutcome(wire::Type type, std::uint64_t operation_id, const Status& status) {
  wire::RefuseBody body;
  body.code = status ? 0 : static_cast<std::uint8_t>(status.error().code());
  std::vector<std::byte> bytes;
  wire::Append(&bytes, body);
  if (!status) wire::AppendText(&bytes, status.error().message());
  host_->Send(type, operation_id, bytes, {}, nullptr);
}

void MessageQueue::SendFin(std::uint64_t operation_id, const Status& status) {
  SendOutcome(wire::Type::kFin, operation_id, status);
}

void MessageQueue::SendDeclined(std::uint64_t operation_id, const Status& status) {
  const auto code = status ? std::uint8_t{0} : static_cast<std::uint8_t>(status.error().code());
  if (MustWait({.peer_operation = operation_id, .code = code})) return;
  SendOutcome(wire::Type::kDeclined, operation_id, status);
}

bool MessageQueue::MustWait(const LateAnswer& answer) {
  if (late_answers_.empty() && host_->MayAnswer()) return false;
  late_answers_.push_back(answer);
  context_->memory->AddLateAnswer();
  return true;
}

// A CTS may have become needless: its receive was cancelled here, or the message withdrawn there.
void MessageQueue::OnAcknowledged() {
  while (!late_answers_.empty() && host_->MayAnswer()) {
    const LateAnswer answer = late_answers_.front();
    late_answers_.pop_front();
    context_->memory->RemoveLateAnswers(1);
    const auto landing = landing_.find(answer.peer_operation);
    if (answer.cts && landing != landing_.end()) {
      SendCts(answer.peer_operation, *landing->second);
      continue;
    }
    const Code code = answer.cts ? Code::kCancelled : wire::CodeFromWire(answer.code);
    const bool is_refusal = answer.cts || answer.code != 0;
    SendOutcome(wire::Type::kDeclined, answer.peer_operation,
                is_refusal ? Status(Error(code, fmt::format("{}; too many refusals at once to keep "
                                                            "the reason of each",
                                                            CodeName(code))))
                           : Ok());
  }
}

Status MessageQueue::OnDeclined(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) return Malformed("declined");
  const OperationRef sent = host_->Find(header.operation);
  if (!sent || sent->kind != OperationKind::kSend) return Ok();  // cancelled meanwhile
  Status status = Ok();
  if (body.code != 0) {
    status = Error(wire::CodeFromWire(body.code),
                   fmt::format("{} declined the message: {}", context_->peer_name, reader->Text()));
  } else if (!sent->message.empty()) {
    return Error(Code::kCorrupt,
                 fmt::format("{} declined a message without a reason", context_->peer_name));
  }
  if (sent->phase() == OperationState::Phase::kRtsSent)
    host_->End(*sent, std::move(status));
  else if (sent->phase() == OperationState::Phase::kMessage)
    sent->answer.declined = std::move(status);
  return Ok();
}

// ---- receiving ----------------------------------------------------------------------------------

void MessageQueue::BeginReceive(const OperationRef& operation) {
  operation->Enter(OperationState::Phase::kPosted);
  auto message = matcher_.Post(
      operation, context_->memory->HasRoom(kTableEntryBytes * matcher_.kept_messages()));
  CountKept();
  if (message) TakeMessage(operation, *std::move(message));
}

// A receive was matched with a message: with its data, or with an RTS, which is answered by a CTS
// or refused.
void MessageQueue::TakeMessage(const OperationRef& receive, ArrivedMessage message) {
  receive->outcome.bytes = message.bytes;
  receive->outcome.tag = message.tag;
  if (message.bytes > receive->buffer.size()) {
    const Error error = TooShort(*receive, message.tag, message.bytes);
    if (message.announced) SendDeclined(message.peer_operation, error);
    return host_->End(*receive, error);
  }
  if (message.announced && message.bytes == 0) {
    SendDeclined(message.peer_operation, Ok());
    return host_->End(*receive, Ok());
  }
  if (message.announced) return BeginLanding(receive, message);
  if (receive->stager && message.bytes > 0) {
    receive->Enter(OperationState::Phase::kReceiving);
    receive->receiving.early = std::move(message.data);
    early_bytes_ += receive->receiving.early.size();
    CountKept();
    return LandEarly(receive);
  }
  if (!message.data.empty()) {
    std::memcpy(receive->buffer.data(), message.data.data(), message.data.size());
  }
  host_->End(*receive, Ok());
}

// One slot at a time.
void MessageQueue::LandEarly(const OperationRef& receive) {
  OperationState::Receiving& receiving = receive->receiving;
  const bool ended = !host_->Find(receive->id);
  if (ended || receive->abort_error || receiving.landed == receiving.early.size()) {
    DropEarly(receive.get());
    if (ended) return;
    return host_->End(*receive, receive->abort_error ? Status(*receive->abort_error) : Ok());
  }
  auto slot = receive->stager->Take(StageWay::kFromNetwork, [keep = context_->owner->KeepAlive(),
                                                             this, receive](StageSlot given) {
    home_->Post([keep, this, receive, given = std::move(given)]() mutable {
      LandPart(receive, std::move(given));
    });
  });
  if (slot) LandPart(receive, *std::move(slot));
}

void MessageQueue::LandPart(const OperationRef& receive, StageSlot slot) {
  if (!host_->Find(receive->id) || receive->abort_error) return LandEarly(receive);
  OperationState::Receiving& receiving = receive->receiving;
  const auto rest = std::span(receiving.early).subspan(receiving.landed);
  const auto part = rest.first(std::min(rest.size(), slot.memory().size()));
  std::copy(part.begin(), part.end(), slot.memory().begin());
  receiving.staged = std::make_shared<StagedCopy>();
  receiving.staged->slot = std::move(slot);
  const Block block{.dst = cuda::AddressOf(receive->buffer.data()) + receiving.landed,
                    .src = 0,
                    .len = part.size()};
  BeginScatter(receive->stager, receiving.staged, {&block, 1},
               [keep = context_->owner->KeepAlive(), this, receive, bytes = part.size()] {
                 home_->Post([keep, this, receive, bytes] { OnPartLanded(receive, bytes); });
               });
}

void MessageQueue::OnPartLanded(const OperationRef& receive, std::uint64_t bytes) {
  const auto copy = std::exchange(receive->receiving.staged, nullptr);
  if (!copy) return;  // the connection has ended, and waited for the copy
  copy->Release();
  if (!copy->outcome) {
    DropEarly(receive.get());
    return host_->End(*receive, copy->outcome);
  }
  receive->receiving.landed += bytes;
  LandEarly(receive);
}

void MessageQueue::DropEarly(OperationState* receive) {
  early_bytes_ -= std::min<std::uint64_t>(early_bytes_, receive->receiving.early.size());
  receive->receiving.early = {};
  CountKept();
}

// Registers the receive's buffer as a region for this one message, whose key a CTS tells the
// sender.
void MessageQueue::BeginLanding(const OperationRef& receive, const ArrivedMessage& message) {
  if (landing_.count(message.peer_operation) != 0) {
    const Error error(Code::kCorrupt,
                      fmt::format("{} sent two RTS with one operation id; the connection was "
                                  "closed, reconnect with the same release on both sides",
                                  context_->peer_name));
    host_->End(*receive, error);
    return host_->Fail(error);
  }
  Stager* const stager = receive->stager;
  auto landing = context_->regions->Add(receive->buffer.first(message.bytes), Rights::kWrite,
                                        context_->connection, stager);
  if (!landing) return host_->End(*receive, landing.error());
  receive->Enter(OperationState::Phase::kReceiving);
  receive->receiving.peer_operation = message.peer_operation;
  receive->receiving.landing = *std::move(landing);
  landing_[message.peer_operation] = receive;
  if (!MustWait({.peer_operation = message.peer_operation, .cts = true})) {
    SendCts(message.peer_operation, *receive);
  }
}

void MessageQueue::SendCts(std::uint64_t peer_operation, const OperationState& receive) {
  const RegionState& region = *receive.receiving.landing;
  const wire::CtsBody body{{region.id, region.generation, region.token},
                           receive.stager ? receive.stager->slot_bytes() : ~std::uint64_t{0}};
  host_->Send(wire::Type::kCts, peer_operation, wire::BytesOf(body), {}, nullptr);
}

// The receive ends only when no lane is inside its buffer any more, whatever the FIN says.
Status MessageQueue::OnFin(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) return Malformed("FIN");
  Status status = Ok();
  if (body.code != 0) {
    status = Error(wire::CodeFromWire(body.code),
                   fmt::format("{} ended the message: {}", context_->peer_name, reader->Text()));
  }
  const auto it = landing_.find(header.operation);
  if (it == landing_.end()) {
    (void)matcher_.RemoveRts(header.operation);
    CountKept();
    return Ok();
  }
  const OperationRef receive = std::move(it->second);
  landing_.erase(it);
  const auto& landing = receive->receiving.landing;
  context_->regions->Remove(landing);
  if (landing->gate.inside() == 0) {
    host_->End(*receive, std::move(status));
    return Ok();
  }
  // A peer that has lost the lane of a slice may withdraw the message while part of it is still
  // being processed here. Only a peer that violates the protocol declares it complete then.
  receive->abort_error =
      status ? Error(Code::kCorrupt,
                     fmt::format("{} sent the FIN of a message in the middle of writing it",
                                 context_->peer_name))
             : status.error();
  host_->Revoke(landing, [keep = context_->owner->KeepAlive(), this, receive] {
    host_->End(*receive, *receive->abort_error);
  });
  return Ok();
}

void MessageQueue::AbortReceive(const OperationRef& operation, const Error& error) {
  if (operation->phase() == OperationState::Phase::kPosted) {
    (void)matcher_.RemoveReceive(operation.get());
    return host_->End(*operation, error);
  }
  OperationState::Receiving& receiving = operation->receiving;
  if (operation->stager && !receiving.landing) {
    if (!receiving.staged) return host_->End(*operation, error);  // it waits for a slot
    operation->abort_error = error;                               // ends after the copy in flight
    return;
  }
  if (!receiving.landing) {  // a small message that is arriving
    host_->DropMessage(*operation);
    return host_->End(*operation, error);
  }
  operation->abort_error = error;
  landing_.erase(receiving.peer_operation);
  context_->regions->Remove(receiving.landing);
  host_->Revoke(receiving.landing, [keep = context_->owner->KeepAlive(), this, operation] {
    host_->End(*operation, *operation->abort_error);
  });
}

Result<OperationRef> MessageQueue::TakeReceive(std::uint64_t tag, std::uint64_t bytes) {
  OperationRef receive = matcher_.TakeReceive(tag);
  if (!receive) return receive;
  receive->outcome.tag = tag;
  receive->outcome.bytes = bytes;
  if (bytes > receive->buffer.size()) {
    const Error error = TooShort(*receive, tag, bytes);
    host_->End(*receive, error);
    return error;
  }
  receive->Enter(OperationState::Phase::kReceiving);
  return receive;
}

void MessageQueue::PutBackReceive(const OperationRef& receive) {
  receive->Enter(OperationState::Phase::kPosted);
  matcher_.PutBack(receive);
}

// ---- messages without a receive -----------------------------------------------------------------

bool MessageQueue::MayKeep(std::uint64_t bytes) const {
  return matcher_.kept_bytes() + bytes <= context_->config->unexpected_bytes &&
         matcher_.kept_messages() < context_->config->max_operations &&
         context_->memory->HasRoom(matcher_.CostOfNext(/*announced=*/false) + bytes);
}

void MessageQueue::CountKept() {
  const std::uint64_t now = matcher_.held_bytes() + early_bytes_;
  const std::uint64_t before = std::exchange(kept_bytes_, now);
  if (now > before) context_->memory->AddTried(now - before);
  if (now < before) context_->memory->RemoveTried(before - now);
}

// Peers may have more operations in flight than this side keeps messages.
bool MessageQueue::DeclineForWantOfRoom(std::uint64_t peer_operation) {
  const std::size_t most = 2 * std::size_t{context_->config->max_operations};
  const bool has_room = context_->memory->HasRoom(matcher_.CostOfNext(/*announced=*/true));
  if (has_room && matcher_.kept_messages() < most) return false;
  const char* const limit =
      has_room ? "twice its FERRY_MAX_OPERATIONS"
               : "all that its FERRY_PEER_MEMORY or FERRY_PEER_MEMORY_TOTAL has room for";
  SendDeclined(
      peer_operation,
      Error(Code::kUnavailable,
            fmt::format(
                "the peer already keeps {} messages without a receive, {}; send it again when "
                "some were received",
                matcher_.kept_messages(), limit)));
  return true;
}

Status MessageQueue::OnRts(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::TagBody body;
  if (!reader->Read(&body) || body.bytes == 0) return Malformed("RTS");
  TakeRts(header.operation, body);
  return Ok();
}

void MessageQueue::TakeRts(std::uint64_t peer_operation, const wire::TagBody& body) {
  TakeOrKeep({body.tag, body.bytes, peer_operation, /*announced=*/true, {}});
}

void MessageQueue::OnWholeMessage(const OperationRef& receive, ArrivedMessage message,
                                  const Status& intact) {
  if (receive) return host_->End(*receive, intact);
  if (!intact) return;  // the sender has been told
  TakeOrKeep(std::move(message));
}

// A receive may have been posted while a message was arriving.
void MessageQueue::TakeOrKeep(ArrivedMessage message) {
  if (const OperationRef receive = matcher_.TakeReceive(message.tag)) {
    return TakeMessage(receive, std::move(message));
  }
  if (message.announced && DeclineForWantOfRoom(message.peer_operation)) return;
  matcher_.Keep(std::move(message));
  CountKept();
}

}  // namespace ferry::transfer
