// Implements the public handles Region, PreparedTransfer and Connection.
#include "ferry/transfer/connection.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <string_view>
#include <utility>

#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/gpu/stager.h"

namespace ferry::transfer {
namespace {

// Prefixes the error with "part 2: " if there are several parts.
Error InPart(const Error& error, std::size_t index, std::size_t parts) {
  if (parts == 1) return error;
  return Error(error.code(), fmt::format("part {}: {}", index, error.message()));
}

// Checks that the regions of a part may be used for a transfer with this peer.
Status CheckRegions(const TransferPart& part, Rights wanted, const Uuid& peer) {
  if (part.local == nullptr || part.remote == nullptr) {
    return Error(Code::kInvalidArgument, "a local and a remote region must be given");
  }
  if (part.remote->endpoint != peer) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the remote region belongs to endpoint {}, but the connection goes to "
                             "{}; use a key of the connection's endpoint",
                             part.remote->endpoint.ToString(), peer.ToString()));
  }
  if (!Includes(part.remote->rights, wanted)) {
    return Error(Code::kRefused,
                 fmt::format("the remote region allows {}, not {}; ask its owner for a key with "
                             "that right",
                             RightsName(part.remote->rights), RightsName(wanted)));
  }
  return Ok();
}

}  // namespace

// ---- Region -------------------------------------------------------------------------------------

Region::Region(std::shared_ptr<RegionState> state, std::shared_ptr<EndpointCore> endpoint)
    : state_(std::move(state)), endpoint_(std::move(endpoint)) {}

std::span<std::byte> Region::memory() const noexcept { return state_->memory; }

Region& Region::operator=(Region&& other) noexcept {
  if (state_ && !state_.forked()) (void)Deregister();
  state_ = std::move(other.state_);
  endpoint_ = std::move(other.endpoint_);
  return *this;
}

Region::~Region() {
  if (state_ && !state_.forked()) (void)Deregister();
}

RemoteRegion Region::remote() const {
  const std::uint64_t slot = state_->stager ? state_->stager->slot_bytes() : 0;
  return {endpoint_->id(),
          state_->named ? RegionKey{kNamedByToken, kNamedByToken, state_->token}
                        : RegionKey{state_->id, state_->generation, state_->token},
          state_->rights,
          state_->memory.size(),
          static_cast<std::uint8_t>(slot == 0 ? 0 : std::bit_width(slot) - 1),
          static_cast<std::uint8_t>(state_->stager ? state_->stager->ordinal() + 1 : 0)};
}

std::vector<std::byte> Region::key() const { return remote().Serialize(); }

Result<std::vector<std::byte>> Region::KeyFor(const Uuid& peer, Rights rights) {
  if (state_.forked()) return MadeBeforeFork("region");
  RemoteRegion granted = remote();
  FERRY_TRY_ASSIGN(granted.key, endpoint_->regions().Grant(state_.get(), peer, rights));
  granted.rights = rights;
  return granted.Serialize();
}

void Region::Withdraw(const Uuid& peer) {
  if (!state_.forked()) endpoint_->regions().Withdraw(state_.get(), peer);
}

Status Region::Deregister(Deadline deadline) {
  if (state_.forked()) return MadeBeforeFork("region");
  endpoint_->regions().Remove(state_.get());
  // If nobody is inside, no lane has to release the region.
  const bool drained = state_->gate.WaitDrained(Deadline::After(Clock::duration::zero()));
  endpoint_->RevokeEverywhere(state_.get(), drained);
  if (drained) return Ok();
  // Peers that are reading release the region when they have acknowledged the data: give them time
  // for that, once for all calls.
  Clock::rep since = 0;
  const Clock::rep now = Clock::now().time_since_epoch().count();
  if (state_->deregistering_since.compare_exchange_strong(since, now)) since = now;
  const Deadline grace =
      Deadline::At(Clock::time_point(Clock::duration(since)) + endpoint_->config().drain_grace);
  if (state_->gate.WaitDrained(deadline.Sooner(grace))) return Ok();
  if (grace.expired()) {
    endpoint_->FailHolders(state_.get());
    if (state_->gate.WaitDrained(deadline)) return Ok();
  }
  return Error(Code::kTimedOut,
               fmt::format("region {} is still in use by {} operations or peers; cancel them or "
                           "call again, and do not free its memory yet",
                           state_->id, state_->gate.inside()));
}

// ---- PreparedTransfer ---------------------------------------------------------------------------

PreparedTransfer::PreparedTransfer(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}

Direction PreparedTransfer::direction() const noexcept { return plan_->direction; }
std::uint64_t PreparedTransfer::bytes() const noexcept { return plan_->bytes; }
PathReport PreparedTransfer::path() const { return PathOf(*plan_); }

// ---- Connection ---------------------------------------------------------------------------------

Connection::Connection(std::shared_ptr<ConnectionCore> core, std::shared_ptr<EndpointCore> endpoint)
    : core_(std::move(core)), endpoint_(std::move(endpoint)) {}

bool Connection::lost() const noexcept { return core_.forked() || core_->lost(); }
const Uuid& Connection::peer() const noexcept { return core_->peer().endpoint; }
std::span<const std::byte> Connection::identity() const noexcept { return core_->peer().identity; }

Result<RemoteRegion> Connection::Import(std::span<const std::byte> key) const {
  if (core_.forked()) return MadeBeforeFork("connection");
  FERRY_TRY_ASSIGN(RemoteRegion region, RemoteRegion::Parse(key));
  if (region.endpoint != core_->peer().endpoint) {
    return Error(Code::kInvalidArgument,
                 fmt::format("this key belongs to endpoint {}, but the connection goes to {} at "
                             "{}; use a connection to the key's owner, or a key of this peer",
                             region.endpoint.ToString(), core_->peer().endpoint.ToString(),
                             core_->peer_name()));
  }
  return region;
}

Result<PreparedTransfer> Connection::Prepare(Direction direction, std::vector<TransferPart> parts,
                                             Deadline deadline) const {
  if (core_.forked()) return MadeBeforeFork("connection");
  const bool writing = direction == Direction::kWrite;
  const Rights wanted = writing ? Rights::kWrite : Rights::kRead;
  if (parts.empty()) {
    return Error(Code::kInvalidArgument, "the transfer has no parts; give it at least one");
  }
  std::vector<PlanPart> planned;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    TransferPart& part = parts[i];
    if (part.local != nullptr && part.local->state_->made.forked()) {
      return InPart(MadeBeforeFork("region"), i, parts.size());
    }
    if (auto usable = CheckRegions(part, wanted, core_->peer().endpoint); !usable) {
      return InPart(usable.error(), i, parts.size());
    }
    const std::uint64_t local_size = part.local->memory().size();
    const std::uint64_t remote_size = part.remote->length;
    if (auto valid = part.blocks.Validate(writing ? remote_size : local_size,
                                          writing ? local_size : remote_size);
        !valid) {
      return InPart(valid.error(), i, parts.size());
    }
    const std::shared_ptr<RegionState>& local = part.local->state_.get();
    Stager* const stager = local->stager;
    const std::uint64_t most = stager ? stager->slot_bytes() : ~std::uint64_t{0};
    planned.push_back({.local_base = part.local->memory().data(),
                       .local = local,
                       .remote = part.remote->key,
                       .stager = stager,
                       .most_slice = std::min(most, part.remote->most_slice()),
                       .remote_gpu = part.remote->gpu,
                       .blocks = std::move(part.blocks)});
  }
  FERRY_TRY_ASSIGN(auto plan, Route(direction, std::move(planned), deadline));
  return PreparedTransfer(std::move(plan));
}

// Chooses the path of each part, and cuts the parts into slices accordingly.
Result<std::shared_ptr<const Plan>> Connection::Route(Direction direction,
                                                      std::vector<PlanPart> parts,
                                                      Deadline deadline) const {
  deadline = deadline.Sooner(Deadline::After(core_->config().handshake_timeout));
  std::uint64_t shared_with = 0;
  // Host memory is never shared, and nothing is asked about it.
  for (const PlanPart& part : parts) {
    if (part.stager != nullptr) core_->sharing().Ask(part.local, part.remote_gpu);
  }
  for (PlanPart& part : parts) {
    if (part.stager == nullptr) {
      part.why = kHostMemoryHere;
      continue;
    }
    GpuSharing::Route route = core_->sharing().RouteTo(part.local, part.remote_gpu, deadline);
    part.share = route.share;
    part.why = std::move(route.why);
    if (part.share != 0) shared_with = core_->sharing().id();
  }
  return MakePlan(direction, core_->peer().endpoint, std::move(parts),
                  {.slice_bytes = core_->config().slice_bytes,
                   .lanes = core_->bulk_lanes(),
                   .shared_with = shared_with,
                   .equal = endpoint_->provider().capabilities().busy_payload_bytes > 0});
}

Result<PreparedTransfer> Connection::PrepareWrite(std::vector<TransferPart> parts,
                                                  Deadline deadline) const {
  return Prepare(Direction::kWrite, std::move(parts), deadline);
}

Result<PreparedTransfer> Connection::PrepareRead(std::vector<TransferPart> parts,
                                                 Deadline deadline) const {
  return Prepare(Direction::kRead, std::move(parts), deadline);
}

Result<Operation> Connection::Submit(std::shared_ptr<OperationState> state,
                                     std::optional<Deadline> deadline,
                                     std::optional<cuda::StreamRef> after) {
  if (core_.forked()) return MadeBeforeFork("connection");
  const Config& config = core_->config();
  if (core_->operations().in_flight() >= config.max_operations) {
    return Error(Code::kUnavailable,
                 fmt::format("{} operations to {} are in flight, which is the limit "
                             "(FERRY_MAX_OPERATIONS); wait for some to end",
                             core_->operations().in_flight(), core_->peer_name()));
  }
  if (core_->lost()) return core_->state().error();
  cuda::Event mark;
  if (after) {
    FERRY_TRY_ASSIGN(mark, endpoint_->stream_watch().Mark(*after));
    state->waits_for_stream = true;
  }
  state->id = core_->operations().NewId();
  state->deadline = deadline ? *deadline : Deadline::After(config.operation_timeout);
  core_->operations().Submit(state);
  if (mark) {
    // Done last, so that the operation is in its table when the mark is reached.
    endpoint_->stream_watch().When(std::move(mark),
                                   [core = core_.get(), state](const Status& reached) {
                                     core->operations().OnStreamReached(state, reached);
                                   });
  }
  return Operation(std::move(state), core_.get(), endpoint_.get());
}

// Routes a transfer anew if it was prepared on another connection to this peer, which uses other
// share numbers, or if one of its shares is gone.
Result<std::shared_ptr<const Plan>> Connection::UseShares(std::shared_ptr<const Plan> plan,
                                                          Deadline deadline) const {
  GpuSharing& sharing = core_->sharing();
  if (plan->shared_with == sharing.id() && sharing.BeginUse(*plan)) return plan;
  FERRY_TRY_ASSIGN(plan, Route(plan->direction, plan->parts, deadline));
  if (plan->shared_with == 0 || sharing.BeginUse(*plan)) return plan;
  return Error(Code::kUnavailable, "a region is being deregistered; prepare the transfer anew");
}

Result<Operation> Connection::Post(Direction direction, const PreparedTransfer& transfer,
                                   const WriteOptions& options) {
  if (core_.forked()) return MadeBeforeFork("connection");
  // With the caller's PreparedTransfer, or the operation.
  std::shared_ptr<const Plan> prepared = transfer.plan_;
  if (prepared->direction != direction || prepared->peer != core_->peer().endpoint) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("the transfer was prepared for {} endpoint {}; prepare one for this "
                    "call and connection",
                    prepared->direction == Direction::kWrite ? "writing to" : "reading from",
                    prepared->peer.ToString()));
  }
  if (options.notification.size() > kMaxNotificationBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the notification has {} bytes, the limit is {}; send it as a message",
                             options.notification.size(), kMaxNotificationBytes));
  }
  auto state = std::make_shared<OperationState>();
  state->kind = direction == Direction::kWrite ? OperationKind::kWrite : OperationKind::kRead;
  state->checksum = options.checksum;
  state->notification.assign(options.notification.begin(), options.notification.end());
  for (const PlanPart& part : prepared->parts) {
    if (part.local->made.forked()) return MadeBeforeFork("region");
    RegionPin pin(part.local);
    if (!pin) {
      return Error(Code::kInvalidArgument,
                   fmt::format("local region {} was deregistered; register it again and prepare "
                               "the transfer anew",
                               part.local->id));
    }
    state->local_pins.push_back(std::move(pin));
  }
  if (prepared->shared_with != 0) {
    FERRY_TRY_ASSIGN(prepared, UseShares(prepared, options.deadline.value_or(Deadline::Never())));
  }
  state->plan = prepared;
  auto operation = Submit(std::move(state), options.deadline, options.after);
  if (!operation && prepared->shared_with != 0) {
    core_->home()->Post(
        [core = core_.get(), prepared] { core->sharing().EndUseOnLoop(*prepared); });
  }
  return operation;
}

Result<Operation> Connection::Write(const PreparedTransfer& transfer, const WriteOptions& options) {
  return Post(Direction::kWrite, transfer, options);
}

Result<Operation> Connection::Read(const PreparedTransfer& transfer, const ReadOptions& options) {
  return Post(Direction::kRead, transfer,
              {.deadline = options.deadline, .checksum = options.checksum, .after = options.after});
}

// NOLINTBEGIN(readability-function-size): two places and a length are five arguments already.
Result<Operation> Connection::Write(const Region& local, std::uint64_t local_offset,
                                    const RemoteRegion& remote, std::uint64_t remote_offset,
                                    std::uint64_t bytes, const WriteOptions& options) {
  TransferPart part{&local, &remote, {}};
  part.blocks.Add({.dst = remote_offset, .src = local_offset, .len = bytes});
  std::vector<TransferPart> parts;
  parts.push_back(std::move(part));
  FERRY_TRY_ASSIGN(const PreparedTransfer transfer,
                   PrepareWrite(std::move(parts), options.deadline.value_or(Deadline::Never())));
  return Write(transfer, options);
}

Result<Operation> Connection::Read(const Region& local, std::uint64_t local_offset,
                                   const RemoteRegion& remote, std::uint64_t remote_offset,
                                   std::uint64_t bytes, const ReadOptions& options) {
  TransferPart part{&local, &remote, {}};
  part.blocks.Add({.dst = local_offset, .src = remote_offset, .len = bytes});
  std::vector<TransferPart> parts;
  parts.push_back(std::move(part));
  FERRY_TRY_ASSIGN(const PreparedTransfer transfer,
                   PrepareRead(std::move(parts), options.deadline.value_or(Deadline::Never())));
  return Read(transfer, options);
}
// NOLINTEND(readability-function-size)

Result<Operation> Connection::Send(std::uint64_t tag, std::span<const std::byte> message,
                                   const SendOptions& options) {
  if (core_.forked()) return MadeBeforeFork("connection");
  auto state = std::make_shared<OperationState>();
  state->kind = OperationKind::kSend;
  state->tag = tag;
  state->message = message;
  state->rendezvous = options.rendezvous;
  FERRY_TRY_ASSIGN(state->stager, endpoint_->device_memory().StagerOf(message));
  return Submit(std::move(state), options.deadline, options.after);
}

Result<Operation> Connection::Recv(std::uint64_t tag, std::uint64_t mask,
                                   std::span<std::byte> buffer, const RecvOptions& options) {
  if (core_.forked()) return MadeBeforeFork("connection");
  auto state = std::make_shared<OperationState>();
  state->kind = OperationKind::kRecv;
  state->tag = tag;
  state->mask = mask;
  state->buffer = buffer;
  FERRY_TRY_ASSIGN(state->stager, endpoint_->device_memory().StagerOf(buffer));
  return Submit(std::move(state), options.deadline, options.after);
}

Result<Operation> Connection::Notify(std::span<const std::byte> bytes,
                                     const NotifyOptions& options) {
  if (bytes.empty() || bytes.size() > kMaxNotificationBytes) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("a notification has 1 to {} bytes, not {}; send larger data as messages",
                    kMaxNotificationBytes, bytes.size()));
  }
  auto state = std::make_shared<OperationState>();
  state->kind = OperationKind::kNotify;
  state->notification.assign(bytes.begin(), bytes.end());
  return Submit(std::move(state), options.deadline, options.after);
}

Result<std::vector<std::byte>> Connection::TakeNotification(Deadline deadline) {
  if (core_.forked()) return MadeBeforeFork("connection");
  std::vector<std::byte> bytes;
  bool taken = false;
  const auto ready = [&] {
    // Not lost(): after one lane is lost, others may still bring notifications.
    const bool closed = core_->state().closed();
    taken = taken || core_->notifications().Take(&bytes);
    return taken || closed;
  };
  (void)core_->home()->DriveUntil(ready, deadline, core_->config().spin);
  if (taken) return bytes;
  if (core_->state().closed()) return core_->state().error();
  return Error(Code::kTimedOut, fmt::format("no notification arrived from {} before the deadline; "
                                            "wait longer, or check that the peer sends one",
                                            core_->peer_name()));
}

Result<Readiness> Connection::NotificationReadiness() const {
  if (core_.forked()) return MadeBeforeFork("connection");
  FERRY_TRY_ASSIGN(UniqueFd fd, core_->notifications().Descriptor());
  return MakeReadiness(std::move(fd), core_->home()->BeginPassiveWait());
}

ConnectionInfo Connection::Info() const {
  ConnectionInfo info;
  if (core_.forked()) return info;
  info.provider = endpoint_->provider().name();
  info.peer = core_->peer_name();
  info.endpoint = core_->peer().endpoint.ToString();
  info.refused_accesses = core_->stats().refusals();
  info.checksums = core_->checksums();
  info.lanes = core_->monitor().records().Infos();
  info.bulk_lanes = core_->bulk_lanes();
  return info;
}

ConnectionCounters Connection::Counters() const {
  return core_.forked() ? ConnectionCounters() : core_->Counters();
}

std::vector<ConnectionEvent> Connection::Events() const {
  return core_.forked() ? std::vector<ConnectionEvent>() : core_->stats().events().Events();
}

void Connection::Close() {
  if (core_.forked()) return;
  core_->Close(Error(Code::kCancelled, fmt::format("the connection to {} was closed by this side",
                                                   core_->peer_name())));
  (void)core_->home()->DriveUntil([this] { return core_->state().closed(); }, Deadline::Never(),
                                  microseconds(0));
}

}  // namespace ferry::transfer
