// Makes connections of accepted lanes.
#include "ferry/transfer/endpoint/acceptor.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/handshake/endpoint_address.h"

namespace ferry::transfer {
namespace {

// How often the time limit for the next lane of a connection is extended while other lanes are
// admitted.
constexpr int kMaxExtensions = 4;

// The version is the first field of every version's hello and join frames; the rest may differ.
// By value: the caller reads the frame from its beginning again.
Status CheckVersion(wire::MetaReader reader) {
  std::uint16_t version = 0;
  if (!reader.Read(&version)) return Error(Code::kCorrupt, "empty handshake frame");
  if (version == wire::kVersion) return Ok();
  return Error(Code::kUnsupported,
               fmt::format("this endpoint speaks version {} of the protocol, not {}; use the same "
                           "release on both sides",
                           wire::kVersion, version));
}

std::size_t BodyBytes(session::wire::Type type) {
  switch (type) {
    case session::wire::Type::kHello: return sizeof(wire::HelloBody);
    case session::wire::Type::kJoin: return sizeof(wire::JoinBody);
    default: return sizeof(wire::RejoinBody);
  }
}

}  // namespace

Acceptor::Acceptor(EndpointCore* endpoint)
    : endpoint_(endpoint),
      loop_(endpoint->loops().front()),
      pending_peers_({.loop = loop_,
                      .role = session::wire::Role::kEndpoint,
                      .places = endpoint->config().max_pending_handshakes,
                      .timeout = endpoint->config().handshake_timeout},
                     this, [endpoint](bool full) { endpoint->PauseAcceptingOnLoop(full); }) {}

Acceptor::~Acceptor() = default;

void Acceptor::ClearOnLoop() {
  while (!pending_connections_.empty()) (void)TakeConnection(pending_connections_.begin());
  rejoining_.clear();
  pending_peers_.ClearOnLoop();
}

void Acceptor::OnAccepted(std::unique_ptr<net::Lane> lane) {
  if (!endpoint_->closing()) pending_peers_.EnterOnLoop(std::move(lane));
}

void Acceptor::OnTurnedAway(const Handshake& handshake, const std::string& sentence) {
  endpoint_->policy().OnRefused(handshake.peer_name(), sentence);
}

// ---- first frames -------------------------------------------------------------------------------

Result<session::Demand> Acceptor::OnOpening(Handshake* /*handshake*/, session::wire::Type type,
                                            wire::MetaReader body) {
  FERRY_TRY(CheckVersion(body));
  if (body.rest().size() != BodyBytes(type)) {
    return Error(Code::kCorrupt, "malformed handshake frame");
  }
  session::Demand demand{.secret = endpoint_->policy().secret(), .process = {}};
  wire::HelloBody hello;
  if (!demand.secret || type != session::wire::Type::kHello || !body.Read(&hello)) return demand;
  demand.takes_identity = endpoint_->check_identity() != nullptr;
  if ((hello.flags & wire::kHasSecret) == 0) {
    return Error(Code::kRefused,
                 "this endpoint asks its peers for a secret and got none; set FERRY_SECRET_FILE to "
                 "the same on both sides");
  }
  demand.process = hello.process;
  return demand;
}

// From now on the connection's deadline counts for a lane; one that is replaced keeps its own.
Status Acceptor::OnReceived(Handshake* handshake, session::wire::Type type,
                            wire::MetaReader* body) {
  using session::wire::Type;
  if (type == Type::kResume) return OnResume(handshake, body);
  FERRY_TRY(type == Type::kHello  ? OnHello(handshake, body)
            : type == Type::kJoin ? OnJoin(handshake, body)
                                  : OnRejoin(handshake, body));
  last_admitted_ = Clock::now();
  pending_peers_.AdmitOnLoop(handshake);
  if (type != Type::kRejoin) handshake->LiftDeadlineOnLoop();
  return Ok();
}

Status Acceptor::MayConnect(const Handshake& handshake, const Uuid& peer) {
  // An endpoint may connect to itself, and only itself may use its id.
  if (peer == endpoint_->id() && !endpoint_->own_calls().Contains(handshake.peer_name())) {
    return Error(Code::kRefused,
                 fmt::format("{} is the id of this endpoint itself, which has not dialed from {}",
                             peer.ToString(), handshake.peer_name()));
  }
  const std::size_t most = endpoint_->config().max_connections;
  if (most == 0 || endpoint_->connections().FromOutside() + pending_connections_.size() < most)
    return Ok();
  return Error(Code::kUnavailable,
               fmt::format("this endpoint has the {} connections that it allows; try again when "
                           "others have closed theirs, or raise FERRY_MAX_CONNECTIONS there",
                           most));
}

// Answers with the smaller of both sides' limits, and reserves places for the peer's further lanes,
// so that other pending peers do not crowd them out.
Status Acceptor::OnHello(Handshake* handshake, wire::MetaReader* reader) {
  wire::HelloBody hello;
  const bool whole = reader->Read(&hello);
  PendingConnection arrival;
  std::memcpy(arrival.peer.bytes.data(), hello.endpoint, sizeof hello.endpoint);
  if (!whole || hello.lanes == 0 || hello.window_bytes == 0 || arrival.peer.none()) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed hello", handshake->peer_name()));
  }
  const Uuid own = endpoint_->id();
  // Further lanes show the token, which is sent only to a peer that has passed this.
  FERRY_TRY(endpoint_->policy()
                .TrustIn(endpoint_->policy().secret().has_value())
                .CheckPeerOnLoop(handshake, hello.process));
  if (const auto& check = endpoint_->check_identity()) {
    const Status may = check(handshake->identity(), handshake->Transcript());
    if (!may) return Error(Code::kRefused, may.error().message());
  }
  FERRY_TRY(MayConnect(*handshake, arrival.peer));
  Uuid expected;
  std::memcpy(expected.bytes.data(), hello.expected, sizeof hello.expected);
  // The client's keys are for an endpoint that is gone.
  if (!expected.none() && expected != own) {
    return Error(Code::kRefused,
                 fmt::format("this is endpoint {}, not {}; it was restarted or replaced: get its "
                             "new address and keys",
                             own.ToString(), expected.ToString()));
  }
  const int most = handshake->is_local() ? endpoint_->lanes() : endpoint_->LanesOverInterfaces();
  arrival.welcome.lanes = std::min(hello.lanes, static_cast<std::uint16_t>(most));
  arrival.welcome.connection = next_id_++;
  arrival.welcome.window_bytes = std::min(hello.window_bytes, endpoint_->config().window_bytes);
  if (handshake->is_local()) arrival.welcome.process = net::ThisProcess();
  arrival.process = hello.process;
  std::memcpy(arrival.welcome.endpoint, own.bytes.data(), sizeof own.bytes);
  const bool checksums =
      (hello.flags & wire::kChecksums) != 0 || endpoint_->config().checksum == OnOff::kOn;
  if (checksums) arrival.welcome.flags |= wire::kChecksums;
  // Sent to this peer only; further lanes show it (OnJoin), and so do lanes that replace one later.
  const Uuid token = Uuid::Random();
  std::memcpy(arrival.welcome.token, token.bytes.data(), 16);
  arrival.lanes.assign(arrival.welcome.lanes, nullptr);
  arrival.lanes.front() = handshake;
  arrival.joined = 1;
  const std::uint32_t id = arrival.welcome.connection;
  std::vector<std::byte> others;
  // Further lanes may use other interfaces; within a machine there is nothing to choose.
  if (!handshake->is_local()) others = endpoint_->OtherAddresses().Serialize();
  arrival.welcome.address_bytes = static_cast<std::uint32_t>(others.size());
  std::vector<std::byte> body;
  wire::Append(&body, arrival.welcome);
  body.insert(body.end(), others.begin(), others.end());
  handshake->AcceptOnLoop(session::wire::Type::kWelcome, body);
  const std::size_t further = arrival.lanes.size() - 1;
  pending_connections_.emplace(id, std::move(arrival));
  RenewOnLoop(id);
  const auto until = Clock::now() + endpoint_->config().handshake_timeout;
  pending_peers_.ExpectOnLoop(handshake->peer_host(), further, until);
  endpoint_->ExpectLanesOnLoop(handshake->peer_host(), further, until);
  return Ok();
}

// The token proves that the lane comes from the peer that sent the hello frame.
Status Acceptor::OnJoin(Handshake* handshake, wire::MetaReader* reader) {
  wire::JoinBody join;
  if (!reader->Read(&join)) return Error(Code::kCorrupt, "malformed join");
  const auto it = pending_connections_.find(join.connection);
  if (it == pending_connections_.end() ||
      !EqualInConstantTime(wire::BytesOf(it->second.welcome.token), wire::BytesOf(join.token))) {
    // The connection was dropped since its hello frame was answered; the peer dials again.
    return Error(Code::kUnavailable,
                 "this lane belongs to no connection that is being set up here");
  }
  PendingConnection& arrival = it->second;
  if (join.lane >= arrival.lanes.size() || arrival.lanes[join.lane] != nullptr) {
    return Error(Code::kRefused, fmt::format("lane {} is not free", join.lane));
  }
  arrival.lanes[join.lane] = handshake;
  ++arrival.joined;
  RenewOnLoop(join.connection);
  handshake->AcceptOnLoop(session::wire::Type::kJoined, {});
  return Ok();
}

// ---- connections being made ---------------------------------------------------------------------

Acceptor::PendingConnections::iterator Acceptor::FindConnection(const Handshake* handshake) {
  return std::find_if(pending_connections_.begin(), pending_connections_.end(),
                      [&](const auto& each) {
                        const auto& lanes = each.second.lanes;
                        return std::find(lanes.begin(), lanes.end(), handshake) != lanes.end();
                      });
}

// The end of one lane ends the connection being assembled: its other lanes are closed, too.
void Acceptor::OnGone(Handshake* handshake, const Error& /*error*/) {
  rejoining_.erase(handshake->number());
  if (const auto it = FindConnection(handshake); it != pending_connections_.end())
    DropConnection(it);
}

void Acceptor::DropConnection(PendingConnections::iterator it) {
  for (Handshake* lane : TakeConnection(it).lanes) {
    if (lane != nullptr) pending_peers_.CloseOnLoop(lane);
  }
}

void Acceptor::RenewOnLoop(std::uint32_t id) {
  PendingConnection& arrival = pending_connections_.at(id);
  if (arrival.timer != 0) loop_->CancelTimerOnLoop(arrival.timer);
  arrival.timer = loop_->AddTimerOnLoop(Clock::now() + endpoint_->config().handshake_timeout,
                                        [this, id] { OnConnectionLate(id); });
}

// While lanes are admitted one after another, lanes of this connection may still wait in the
// kernel's accept queue. Dropping the connection would waste the work done for it, just when time
// is short.
void Acceptor::OnConnectionLate(std::uint32_t id) {
  const auto it = pending_connections_.find(id);
  PendingConnection& arrival = it->second;
  arrival.timer = 0;
  const auto busy_since = Clock::now() - endpoint_->config().handshake_timeout / 8;
  if (last_admitted_ > busy_since && arrival.extensions++ < kMaxExtensions) return RenewOnLoop(id);
  const Handshake& first = *arrival.lanes.front();
  OnTurnedAway(first, fmt::format("refused {}", first.Late().message()));
  DropConnection(it);
}

Acceptor::PendingConnection Acceptor::TakeConnection(PendingConnections::iterator it) {
  if (it->second.timer != 0) loop_->CancelTimerOnLoop(std::exchange(it->second.timer, 0));
  PendingConnection arrival = std::move(it->second);
  pending_connections_.erase(it);
  return arrival;
}

// Posted, since a callback of the lane is on the stack, and the lanes are about to move.
void Acceptor::OnComplete(Handshake* handshake) {
  if (handshake->state() == session::State::kMoving) {
    return loop_->Post([this, number = handshake->number()] { FinishRejoin(number); });
  }
  const auto it = FindConnection(handshake);
  if (it == pending_connections_.end() || it->second.joined < it->second.lanes.size()) return;
  const auto& lanes = it->second.lanes;
  const bool all = std::all_of(lanes.begin(), lanes.end(),
                               [](const Handshake* lane) { return lane->complete(); });
  if (all) loop_->Post([this, id = it->first] { Complete(id); });
}

void Acceptor::Complete(std::uint32_t id) {
  const auto it = pending_connections_.find(id);
  if (it == pending_connections_.end()) return;  // a lane was lost meanwhile
  const PendingConnection arrival = TakeConnection(it);
  Peer agreed;
  agreed.endpoint = arrival.peer;
  agreed.name = arrival.lanes.front()->peer_name();
  agreed.window_bytes = arrival.welcome.window_bytes;
  agreed.checksums = (arrival.welcome.flags & wire::kChecksums) != 0;
  const auto identity = arrival.lanes.front()->identity();
  agreed.identity.assign(identity.begin(), identity.end());
  agreed.process = arrival.process;
  agreed.connection = arrival.welcome.connection;
  std::memcpy(agreed.token.bytes.data(), arrival.welcome.token, sizeof arrival.welcome.token);
  std::vector<std::unique_ptr<net::Lane>> lanes;
  for (Handshake* lane : arrival.lanes) lanes.push_back(pending_peers_.TakeOnLoop(lane));
  const auto loops = endpoint_->loops().Choose(lanes.size());
  // The lanes move to their own loops from this one, which is theirs until then.
  (void)endpoint_->EstablishOnLoop(std::move(agreed), std::move(lanes), loops, nullptr);
}

}  // namespace ferry::transfer
