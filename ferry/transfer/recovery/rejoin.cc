// Runs one attempt to replace a lane over a given network path.
#include "ferry/transfer/recovery/rejoin.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/recovery/lane_health.h"
#include "ferry/transfer/recovery/recovery_host.h"

namespace ferry::transfer {
namespace {

// A working path answers within a few round trips; do not wait longer for one that does not.
constexpr auto kTimeout = milliseconds(2000);

}  // namespace

Rejoin::Rejoin(const RecoveryContext& context, RecoveryHost* host, LaneHealth* lane_health,
               std::uint32_t lane, std::uint32_t attempt)
    : context_(context),
      host_(host),
      keep_(host->KeepAlive()),
      lane_health_(lane_health),
      lane_(lane),
      attempt_(attempt),
      deadline_(
          Deadline::After(std::min<microseconds>(kTimeout, context.config->handshake_timeout))),
      client_handshake_(context.secret, context.peer_name) {}

Rejoin::~Rejoin() = default;

void Rejoin::Start(const NetworkPath& path) {
  Config config = *context_.config;
  if (path.is_forced) config.interfaces = path.interface;
  context_.provider->Connect(
      path.to, config, context_.home, deadline_,
      [self = shared_from_this()](auto lane) { self->OnConnected(std::move(lane)); });
}

void Rejoin::Cancel() { MoveTo(State::kOver); }

void Rejoin::MoveTo(State to) {
  const State from = std::exchange(state_, to);
  const bool is_next = static_cast<int>(to) == static_cast<int>(from) + 1;
  FERRY_CHECK(is_next || to == State::kOver, static_cast<int>(from), static_cast<int>(to));
  switch (to) {
    case State::kConnecting: break;
    // The old lane stays in use until the peer has agreed: it may know of no such connection.
    case State::kJoining: return SayRejoin();
    // Both stop the old lane before they compare progress: what is still on its way over it must
    // not change memory later.
    case State::kFreezing: hello_exchange_->HearMoreOnLoop(); return Freeze();
    // Only a stopped lane's progress is final. OnFrozen, which has it, says it.
    case State::kResuming: break;
    case State::kMoving: return FinishIfReady();
    // The handshake's callbacks hold this object, and may be what runs: it goes outside of them.
    case State::kOver:
      context_.home->Post([hello_exchange = std::move(hello_exchange_)] {});
      hello_exchange_ = nullptr;
      break;
  }
}

// The lane is checked and authenticated like a first connection: anybody could listen at the
// address.
void Rejoin::OnConnected(Result<std::unique_ptr<net::Lane>> lane) {
  if (state_ == State::kOver) return;
  if (!lane) {
    // Without TLS nobody is authenticated before the lane is up.
    unauthenticated_ =
        context_.config->tls != TlsMode::kOff && lane.error().code() == Code::kRefused;
    return End(lane.error());
  }
  hello_exchange_ = std::make_unique<HelloExchange>(*std::move(lane), context_.home, deadline_);
  // Routes can change during a connection, so the lane is checked again.
  if (auto may = context_.may_use(hello_exchange_->info(), hello_exchange_->peer_name()); !may) {
    return End(may.error());
  }
  hello_exchange_->StartOnLoop(
      [self = shared_from_this()](const auto& header, auto* reader) {
        return self->OnHeard(header, reader);
      },
      [self = shared_from_this()](const Error& error) { self->OnGone(error); });
  hello_exchange_->SetOnSaid([self = shared_from_this()] { self->FinishIfReady(); });
  MoveTo(State::kJoining);
}

// A peer may refuse our certificate after the lane is up (net::Provider::Connect).
void Rejoin::OnGone(const Error& error) {
  unauthenticated_ = !refused_ && error.code() == Code::kRefused;
  End(error);
}

void Rejoin::SayRejoin() {
  wire::RejoinBody rejoin;
  rejoin.lane = static_cast<std::uint16_t>(lane_);
  rejoin.connection = context_.connection;
  rejoin.attempt = attempt_;
  std::memcpy(rejoin.token, context_.token.bytes.data(), sizeof rejoin.token);
  client_handshake_.SayFirstOnLoop(hello_exchange_.get(), wire::Type::kRejoin,
                                   std::as_bytes(std::span(&rejoin, 1)));
}

Status Rejoin::OnHeard(const wire::MessageHeader& header, wire::MetaReader* reader) {
  if (state_ == State::kOver) return Ok();
  switch (header.type) {
    case wire::Type::kRefuse: {
      Error refusal = client_handshake_.Refusal(reader);
      refused_ = refusal.code() == Code::kRefused;
      return refusal;
    }
    case wire::Type::kChallenge:
      return client_handshake_.AnswerChallengeOnLoop(hello_exchange_.get(), reader);
    case wire::Type::kRejoined:
      if (state_ != State::kJoining) break;
      FERRY_TRY(client_handshake_.CheckPeer({}, reader->rest()));
      FERRY_TRY(context_.check_peer(hello_exchange_.get()));
      MoveTo(State::kFreezing);
      return Ok();
    case wire::Type::kResumed: {
      if (state_ != State::kResuming) break;
      FERRY_TRY_ASSIGN(peer_, ParseProgress(reader, context_.peer_name));
      MoveTo(State::kMoving);
      return Ok();
    }
    default: break;
  }
  return Error(
      Code::kCorrupt,
      fmt::format(
          "{} answered a rejoining lane with a {} frame; use the same release on both sides",
          context_.peer_name, wire::TypeName(header.type)));
}

void Rejoin::Freeze() {
  host_->Freeze(lane_, attempt_, [self = shared_from_this()](std::optional<LaneProgress> progress) {
    self->OnFrozen(std::move(progress));
  });
}

// nullopt: a later attempt or the end of the connection came first.
void Rejoin::OnFrozen(std::optional<LaneProgress> progress) {
  if (state_ == State::kOver) return;
  if (!progress) return End(Error(Code::kCancelled, "the connection has ended"));
  MoveTo(State::kResuming);
  hello_exchange_->SayOnLoop(wire::Type::kResume, EncodeProgress(*progress));
}

// An answer may arrive before the lane has reported that its request was sent.
void Rejoin::FinishIfReady() {
  if (state_ != State::kMoving || !hello_exchange_->complete()) return;
  // Outside the callback of the lane that is about to move.
  context_.home->Post([self = shared_from_this()] { self->Finish(); });
}

void Rejoin::Finish() {
  if (state_ == State::kOver) return;
  host_->Revive(lane_, attempt_, hello_exchange_->ReleaseLane(), peer_);
  End(std::nullopt);
}

void Rejoin::End(const std::optional<Error>& error) {
  if (state_ == State::kOver) return;
  // While the old lane is being stopped, nobody may take another attempt for this one's success.
  const bool frozen = state_ >= State::kFreezing;
  MoveTo(State::kOver);
  lane_health_->OnAttemptOver(lane_, error, frozen);
}

}  // namespace ferry::transfer
