// Runs one attempt to replace a lane over a given network path.
#include "ferry/transfer/recovery/rejoin.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

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
          Deadline::After(std::min<microseconds>(kTimeout, context.config->handshake_timeout))) {}

Rejoin::~Rejoin() = default;

void Rejoin::Start(const NetworkPath& path) {
  Config config = *context_.config;
  if (path.is_forced) config.interfaces = path.interface;
  context_.provider->Connect(
      path.to, config, context_.home, deadline_,
      [self = shared_from_this()](auto lane) { self->OnConnected(std::move(lane)); });
}

// The handshake may be what runs: it goes outside its callbacks.
void Rejoin::Cancel() {
  over_ = true;
  context_.home->Post([handshake = std::move(handshake_)] {});
  handshake_ = nullptr;
}

// The lane is checked and authenticated like a first connection: anybody could listen at the
// address.
void Rejoin::OnConnected(Result<std::unique_ptr<net::Lane>> lane) {
  if (over_) return;
  if (!lane) {
    // Without TLS nobody is authenticated before the lane is up.
    unauthenticated_ =
        context_.config->tls != TlsMode::kOff && lane.error().code() == Code::kRefused;
    return End(lane.error());
  }
  // Routes can change during a connection, so the lane is checked again.
  const net::LaneInfo info = (*lane)->Info();
  if (auto may = context_.may_use(info, info.remote); !may) return End(may.error());
  handshake_ = std::make_unique<session::Handshake>(
      *std::move(lane),
      session::Handshake::Terms{.side = session::Handshake::Side::kDials,
                                .role = session::wire::Role::kEndpoint,
                                .loop = context_.home,
                                .deadline = deadline_,
                                .peer_name = context_.peer_name,
                                .secret = context_.secret},
      std::shared_ptr<HandshakeUser>(shared_from_this(), this));
  handshake_->StartOnLoop();
  // The old lane stays in use until the peer has agreed: it may know of no such connection.
  wire::RejoinBody rejoin;
  rejoin.lane = static_cast<std::uint16_t>(lane_);
  rejoin.connection = context_.connection;
  rejoin.attempt = attempt_;
  std::memcpy(rejoin.token, context_.token.bytes.data(), sizeof rejoin.token);
  handshake_->OpenOnLoop(session::wire::Type::kRejoin, wire::BytesOf(rejoin));
}

// A peer may refuse our certificate after the lane is up (net::Provider::Connect).
void Rejoin::OnGone(session::Handshake* handshake, const Error& error) {
  if (over_) return;
  refused_ = handshake->was_refused() && error.code() == Code::kRefused;
  unauthenticated_ = !refused_ && error.code() == Code::kRefused;
  End(error);
}

Status Rejoin::OnReceived(session::Handshake* handshake, session::wire::Type type,
                          wire::MetaReader* body) {
  if (over_) return Ok();
  if (type == session::wire::Type::kRejoined) {
    FERRY_TRY(context_.trust.CheckPeerOnLoop(handshake, context_.process));
    // Both stop the old lane before they compare progress: what is still on its way over it must
    // not change memory later.
    handshake->SettleOnLoop();
    frozen_ = true;
    Freeze();
    return Ok();
  }
  FERRY_TRY_ASSIGN(peer_, ParseProgress(body, context_.peer_name));
  return Ok();
}

void Rejoin::Freeze() {
  host_->Freeze(lane_, attempt_, [self = shared_from_this()](std::optional<LaneProgress> progress) {
    self->OnFrozen(std::move(progress));
  });
}

// nullopt: a later attempt or the end of the connection came first.
void Rejoin::OnFrozen(std::optional<LaneProgress> progress) {
  if (over_) return;
  if (!progress) return End(Error(Code::kCancelled, "the connection has ended"));
  handshake_->SendPartOnLoop(session::wire::Type::kResume, EncodeProgress(*progress),
                             /*more=*/true);
}

// Outside the callback of the lane that is about to move.
void Rejoin::OnComplete(session::Handshake* /*handshake*/) {
  context_.home->Post([self = shared_from_this()] { self->Finish(); });
}

void Rejoin::Finish() {
  if (over_) return;
  host_->Revive(lane_, attempt_, handshake_->ReleaseLane(), peer_);
  End(std::nullopt);
}

void Rejoin::End(const std::optional<Error>& error) {
  if (over_) return;
  Cancel();
  // While the old lane is being stopped, nobody may take another attempt for this one's success.
  lane_health_->OnAttemptOver(lane_, error, frozen_);
}

}  // namespace ferry::transfer
