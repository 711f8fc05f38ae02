// Server handshake: admits pending peers, checks them and completes their connections.
#include "ferry/transfer/endpoint/server_handshake.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
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

}  // namespace

ServerHandshake::ServerHandshake(EndpointCore* endpoint)
    : endpoint_(endpoint),
      loop_(endpoint->loops().front()),
      admission_(endpoint->config().max_pending_handshakes),
      gate_(loop_, &admission_, [endpoint](bool full) { endpoint->PauseAcceptingOnLoop(full); }) {}

ServerHandshake::~ServerHandshake() = default;

void ServerHandshake::ClearOnLoop() {
  while (!pending_connections_.empty()) (void)TakePendingConnection(pending_connections_.begin());
  for (const auto& [number, hello_exchange] : by_number_) admission_.Leave(number);
  by_number_.clear();
  hello_exchanges_.clear();
  gate_.UpdateOnLoop();
}

// Admits a new lane as a pending peer; if the table is full, the policy names one to evict.
void ServerHandshake::OnAccepted(std::unique_ptr<net::Lane> lane) {
  if (endpoint_->closing()) return;
  lane->SetMaxMeta(net::kMaxPendingPeerMeta);
  // Fixed from now on: a slow sender does not extend the deadline.
  const Deadline deadline = Deadline::After(endpoint_->config().handshake_timeout);
  auto owned = std::make_unique<HelloExchange>(std::move(lane), loop_, deadline);
  HelloExchange* const hello_exchange = owned.get();
  const std::uint64_t number = next_number_++;
  const auto now = Clock::now();
  // Before anything of it is read: how many peers may be pending does not depend on what they send.
  const auto leaving =
      admission_.Enter(number, hello_exchange->peer_host(), hello_exchange->is_local(), now);
  if (leaving) TurnAway(*leaving);
  // It has completed a TLS handshake.
  if (hello_exchange->is_authenticated()) admission_.MarkSpoken(number, now, /*proven=*/true);
  hello_exchanges_[hello_exchange].hello_exchange = std::move(owned);
  hello_exchanges_[hello_exchange].number = number;
  by_number_.emplace(number, hello_exchange);
  hello_exchange->StartOnLoop(
      [this, hello_exchange](const auto& header, auto* reader) {
        return OnHeard(hello_exchange, header, reader);
      },
      [this, hello_exchange](const Error& error) { OnGone(hello_exchange, error); });
  gate_.UpdateOnLoop();
}

// Evicts a pending peer.
void ServerHandshake::TurnAway(std::uint64_t number) {
  const auto it = by_number_.find(number);
  if (it == by_number_.end()) return;
  HelloExchange* const hello_exchange = it->second;
  endpoint_->policy().OnRefused(
      hello_exchange->peer_name(),
      fmt::format("closed {} before it was authenticated: {} pending peers "
                  "are connected, the limit is FERRY_MAX_PENDING_HANDSHAKES",
                  hello_exchange->peer_name(), admission_.size()));
  hello_exchange->CloseOnLoop();
  Drop(hello_exchange);
}

void ServerHandshake::MoveTo(PendingPeer* pending_peer, State to) {
  const State from = std::exchange(pending_peer->state, to);
  HelloExchange& hello_exchange = *pending_peer->hello_exchange;
  const auto comes_from = [&](State one, State other) {
    FERRY_CHECK(from == one || from == other, static_cast<int>(from), static_cast<int>(to));
  };
  switch (to) {
    case State::kSilent: break;
    // It has begun well: it keeps its place where silent ones lose theirs.
    case State::kChallenged:
      comes_from(State::kSilent, State::kSilent);
      admission_.MarkSpoken(pending_peer->number, Clock::now(), pending_peer->proved);
      gate_.UpdateOnLoop();
      hello_exchange.HearMoreOnLoop();
      break;
    case State::kAdmitted:
    case State::kRejoining:
      comes_from(State::kSilent, State::kChallenged);
      admission_.Leave(pending_peer->number);
      last_admitted_ = Clock::now();
      gate_.UpdateOnLoop();
      // From now on the connection's deadline counts for it; a lane that is replaced keeps its own.
      if (to == State::kAdmitted) hello_exchange.LiftDeadlineOnLoop();
      // What it says next, early, may be as long as any connection's.
      hello_exchange.TrustOnLoop();
      break;
    // The peer has stopped its side, and says nothing more over the new lane until this side has.
    case State::kFreezing: comes_from(State::kRejoining, State::kRejoining); break;
    // Only a stopped lane's progress is final.
    case State::kMoving: comes_from(State::kFreezing, State::kFreezing); break;
    case State::kRefused: hello_exchange.CloseWhenSaidOnLoop(); break;
  }
}

Status ServerHandshake::OnHeard(HelloExchange* hello_exchange, const wire::MessageHeader& header,
                                wire::MetaReader* reader) {
  Status heard = Answer(hello_exchange, header.type, reader);
  if (!heard && heard.error().code() != Code::kCorrupt) {
    Refuse(hello_exchange, heard.error());
    return Ok();
  }
  return heard;
}

Status ServerHandshake::Answer(HelloExchange* hello_exchange, wire::Type type,
                               wire::MetaReader* reader) {
  PendingPeer& pending_peer = hello_exchanges_.at(hello_exchange);
  // Each state expects one frame. What comes in any other state is not read (HelloExchange::OnFrame
  // pauses the lane).
  if (pending_peer.state == State::kRejoining) {
    if (type != wire::Type::kResume) return Error(Code::kCorrupt, "no resume");
    return OnResume(hello_exchange, reader);
  }
  if (pending_peer.state == State::kChallenged) {
    if (type != wire::Type::kProof) return Error(Code::kCorrupt, "no proof");
    FERRY_TRY(CheckProof(&pending_peer, reader));
    wire::MetaReader said(pending_peer.exchange.said);
    return Admit(hello_exchange, pending_peer.exchange.first, &said);
  }
  if (type != wire::Type::kHello && type != wire::Type::kJoin && type != wire::Type::kRejoin) {
    return Error(Code::kCorrupt, "its first frame is no hello, join or rejoin frame");
  }
  FERRY_TRY(CheckVersion(*reader));
  if (endpoint_->policy().secret()) return Challenge(&pending_peer, type, reader);
  return Admit(hello_exchange, type, reader);
}

// The first frame is kept as it is, since the proof covers it, and acted upon only after the proof:
// an unauthenticated peer cannot make this side reserve anything but its place.
Status ServerHandshake::Challenge(PendingPeer* pending_peer, wire::Type type,
                                  wire::MetaReader* reader) {
  wire::HelloBody hello;
  wire::MetaReader peek = *reader;
  const bool is_hello = type == wire::Type::kHello;
  const std::size_t bytes = is_hello                    ? sizeof hello
                            : type == wire::Type::kJoin ? sizeof(wire::JoinBody)
                                                        : sizeof(wire::RejoinBody);
  if (reader->rest().size() != bytes) return Error(Code::kCorrupt, "malformed handshake frame");
  if (is_hello && (!peek.Read(&hello) || (hello.flags & wire::kHasSecret) == 0)) {
    return Error(Code::kRefused,
                 "this endpoint asks its peers for a secret and got none; set FERRY_SECRET_FILE to "
                 "the same on both sides");
  }
  Exchange& exchange = pending_peer->exchange;
  exchange.first = type;
  exchange.said.assign(reader->rest().begin(), reader->rest().end());
  FillRandom(exchange.server);
  // Asked of the kernel only when many of one address have spoken.
  pending_peer->proved = is_hello && admission_.NeedsProof(pending_peer->number) &&
                         pending_peer->hello_exchange->ProvePeerOnLoop(hello.process);
  MoveTo(pending_peer, State::kChallenged);
  pending_peer->hello_exchange->SayOnLoop(wire::Type::kChallenge, exchange.server);
  return Ok();
}

Status ServerHandshake::CheckProof(PendingPeer* pending_peer, wire::MetaReader* reader) {
  wire::ProofBody proof;
  if (!reader->Read(&proof)) return Error(Code::kCorrupt, "malformed proof");
  pending_peer->exchange.client = proof.nonce;
  pending_peer->exchange.binding = proof.binding;
  if (!EqualInConstantTime(pending_peer->exchange.ClientProof(*endpoint_->policy().secret()),
                           proof.mac)) {
    return Error(Code::kRefused,
                 "the two sides have different secrets, or somebody between them changes the "
                 "frames; set FERRY_SECRET_FILE to the same on both");
  }
  // Both sides' TLS connections must be the same one (RFC 9266); without TLS both are zeros.
  if (proof.binding == pending_peer->hello_exchange->channel_binding()) return Ok();
  return Error(Code::kRefused,
               "somebody is between the two sides: the client knows the secret, but its TLS "
               "connection is not the one that arrives here, so another certificate holder "
               "terminates TLS on the way; remove TLS proxies; if there are none, replace the "
               "authority of FERRY_TLS_CA and its certificates");
}

Status ServerHandshake::Admit(HelloExchange* hello_exchange, wire::Type type,
                              wire::MetaReader* reader) {
  FERRY_TRY(type == wire::Type::kHello  ? OnHello(hello_exchange, reader)
            : type == wire::Type::kJoin ? OnJoin(hello_exchange, reader)
                                        : OnRejoin(hello_exchange, reader));
  PendingPeer& admitted = hello_exchanges_.at(hello_exchange);
  MoveTo(&admitted, admitted.rejoins ? State::kRejoining : State::kAdmitted);
  return Ok();
}

void ServerHandshake::SayProven(HelloExchange* hello_exchange, wire::Type type,
                                std::span<const std::byte> body) {
  std::vector<std::byte> all(body.begin(), body.end());
  if (const auto& secret = endpoint_->policy().secret()) {
    const Mac mac = hello_exchanges_.at(hello_exchange).exchange.ServerProof(*secret, body);
    all.insert(all.end(), mac.begin(), mac.end());
  }
  hello_exchange->SayOnLoop(type, all);
}

Status ServerHandshake::MayConnect(const HelloExchange& hello_exchange, const Uuid& peer) {
  // An endpoint may connect to itself, and only itself may use its id.
  if (peer == endpoint_->id() && !endpoint_->own_calls().Contains(hello_exchange.peer_name())) {
    return Error(Code::kRefused,
                 fmt::format("{} is the id of this endpoint itself, which has not dialed from {}",
                             peer.ToString(), hello_exchange.peer_name()));
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
Status ServerHandshake::OnHello(HelloExchange* hello_exchange, wire::MetaReader* reader) {
  wire::HelloBody hello;
  const bool whole = reader->Read(&hello) && reader->rest().empty();
  PendingConnection arrival;
  std::memcpy(arrival.peer.bytes.data(), hello.endpoint, sizeof hello.endpoint);
  if (!whole || hello.lanes == 0 || hello.window_bytes == 0 || arrival.peer.none()) {
    return Error(Code::kCorrupt,
                 fmt::format("{} sent a malformed hello", hello_exchange->peer_name()));
  }
  const Uuid own = endpoint_->id();
  // Further lanes show the token, which is sent only to a peer that has passed this.
  FERRY_TRY(endpoint_->policy().CheckPeerOnLoop(hello_exchange, hello.process,
                                                endpoint_->policy().secret().has_value()));
  FERRY_TRY(MayConnect(*hello_exchange, arrival.peer));
  Uuid expected;
  std::memcpy(expected.bytes.data(), hello.expected, sizeof hello.expected);
  // The client's keys are for an endpoint that is gone.
  if (!expected.none() && expected != own) {
    return Error(Code::kRefused,
                 fmt::format("this is endpoint {}, not {}; it was restarted or replaced: get its "
                             "new address and keys",
                             own.ToString(), expected.ToString()));
  }
  arrival.window_bytes = std::min(hello.window_bytes, endpoint_->config().window_bytes);
  const int most =
      hello_exchange->is_local() ? endpoint_->lanes() : endpoint_->LanesOverInterfaces();
  arrival.welcome.lanes = std::min(hello.lanes, static_cast<std::uint16_t>(most));
  arrival.welcome.connection = next_id_++;
  arrival.welcome.window_bytes = arrival.window_bytes;
  if (hello_exchange->is_local()) arrival.welcome.process = net::ThisProcess();
  arrival.process = hello.process;
  std::memcpy(arrival.welcome.endpoint, own.bytes.data(), sizeof own.bytes);
  const bool checksums =
      (hello.flags & wire::kChecksums) != 0 || endpoint_->config().checksum == OnOff::kOn;
  if (checksums) arrival.welcome.flags |= wire::kChecksums;
  // Sent to this peer only; further lanes show it (OnJoin), and so do lanes that replace one later.
  const Uuid token = Uuid::Random();
  std::memcpy(arrival.welcome.token, token.bytes.data(), 16);
  arrival.lanes.assign(arrival.welcome.lanes, nullptr);
  arrival.lanes.front() = hello_exchange;
  arrival.joined = 1;
  const std::uint32_t id = arrival.welcome.connection;
  hello_exchange->SetOnSaid([this, id] { CompleteIfReady(id); });
  std::vector<std::byte> others;
  // Further lanes may use other interfaces; within a machine there is nothing to choose.
  if (!hello_exchange->is_local()) others = endpoint_->OtherAddresses().Serialize();
  arrival.welcome.address_bytes = static_cast<std::uint32_t>(others.size());
  std::vector<std::byte> body;
  wire::Append(&body, arrival.welcome);
  body.insert(body.end(), others.begin(), others.end());
  SayProven(hello_exchange, wire::Type::kWelcome, body);
  const std::size_t further = arrival.lanes.size() - 1;
  pending_connections_.emplace(id, std::move(arrival));
  RenewOnLoop(id);
  const auto until = Clock::now() + endpoint_->config().handshake_timeout;
  admission_.Expect(hello_exchange->peer_host(), further, until);
  endpoint_->ExpectLanesOnLoop(hello_exchange->peer_host(), further, until);
  return Ok();
}

// The token proves that the lane comes from the peer that sent the hello frame.
Status ServerHandshake::OnJoin(HelloExchange* hello_exchange, wire::MetaReader* reader) {
  wire::JoinBody join;
  if (!reader->Read(&join) || !reader->rest().empty()) {
    return Error(Code::kCorrupt, "malformed join");
  }
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
  arrival.lanes[join.lane] = hello_exchange;
  ++arrival.joined;
  const std::uint32_t id = join.connection;
  RenewOnLoop(id);
  hello_exchange->SetOnSaid([this, id] { CompleteIfReady(id); });
  SayProven(hello_exchange, wire::Type::kJoined, {});
  return Ok();
}

void ServerHandshake::Refuse(HelloExchange* hello_exchange, const Error& error) {
  endpoint_->policy().OnRefused(
      hello_exchange->peer_name(),
      fmt::format("refused {}: {}", hello_exchange->peer_name(), error.message()));
  wire::RefuseBody body;
  body.code = static_cast<std::uint8_t>(error.code());
  MoveTo(&hello_exchanges_.at(hello_exchange), State::kRefused);
  hello_exchange->SayOnLoop(wire::Type::kRefuse, wire::BytesOf(body), error.message());
}

// The end of one lane ends the connection being assembled: its other lanes are closed, too.
void ServerHandshake::OnGone(HelloExchange* hello_exchange, const Error& error) {
  if (error.code() == Code::kCorrupt || error.code() == Code::kTimedOut) {
    const std::string& peer = hello_exchange->peer_name();
    const bool is_named = error.message().starts_with(peer);
    endpoint_->policy().OnRefused(
        peer, fmt::format("refused {}{}", is_named ? "" : peer + ": ", error.message()));
  } else {
    Log(LogLevel::kDebug, "transfer", "handshake with {} ended: {}", hello_exchange->peer_name(),
        error.message());
  }
  for (auto it = pending_connections_.begin(); it != pending_connections_.end(); ++it) {
    auto& lanes = it->second.lanes;
    if (std::find(lanes.begin(), lanes.end(), hello_exchange) == lanes.end()) continue;
    const PendingConnection lost = TakePendingConnection(it);
    for (HelloExchange* one : lost.lanes) {
      if (one != nullptr) Drop(one);
    }
    return;
  }
  Drop(hello_exchange);
}

// Posted, to leave the callback that called this.
void ServerHandshake::Drop(HelloExchange* hello_exchange) {
  const auto it = hello_exchanges_.find(hello_exchange);
  if (it == hello_exchanges_.end()) return;
  admission_.Leave(it->second.number);
  by_number_.erase(it->second.number);
  loop_->Post([owned = std::move(it->second.hello_exchange)] {});
  hello_exchanges_.erase(it);
  gate_.UpdateOnLoop();
}

void ServerHandshake::RenewOnLoop(std::uint32_t id) {
  PendingConnection& arrival = pending_connections_.at(id);
  if (arrival.timer != 0) loop_->CancelTimerOnLoop(arrival.timer);
  arrival.timer = loop_->AddTimerOnLoop(Clock::now() + endpoint_->config().handshake_timeout,
                                        [this, id] { OnPendingConnectionLate(id); });
}

// While lanes are admitted one after another, lanes of this connection may still wait in the
// kernel's accept queue. Dropping the connection would waste the work done for it, just when time
// is short.
void ServerHandshake::OnPendingConnectionLate(std::uint32_t id) {
  PendingConnection& arrival = pending_connections_.at(id);
  arrival.timer = 0;
  const auto busy_since = Clock::now() - endpoint_->config().handshake_timeout / 8;
  if (last_admitted_ > busy_since && arrival.extensions++ < kMaxExtensions) return RenewOnLoop(id);
  // The first lane's end takes the others with it.
  HelloExchange* const first = arrival.lanes.front();
  OnGone(first, first->Late());
}

ServerHandshake::PendingConnection ServerHandshake::TakePendingConnection(
    PendingConnections::iterator it) {
  if (it->second.timer != 0) loop_->CancelTimerOnLoop(std::exchange(it->second.timer, 0));
  PendingConnection arrival = std::move(it->second);
  pending_connections_.erase(it);
  return arrival;
}

// Complete once every lane has joined and has sent its answer.
void ServerHandshake::CompleteIfReady(std::uint32_t id) {
  const auto it = pending_connections_.find(id);
  if (it == pending_connections_.end() || it->second.joined < it->second.lanes.size()) return;
  const auto& lanes = it->second.lanes;
  if (!std::all_of(lanes.begin(), lanes.end(),
                   [](const HelloExchange* g) { return g->complete(); })) {
    return;
  }
  // Posted, since a callback of one of the lanes is on the stack, and the lanes are about to move.
  loop_->Post([this, id] { Complete(id); });
}

void ServerHandshake::Complete(std::uint32_t id) {
  const auto it = pending_connections_.find(id);
  if (it == pending_connections_.end()) return;  // a lane was lost meanwhile
  const PendingConnection arrival = TakePendingConnection(it);
  std::vector<std::unique_ptr<net::Lane>> lanes;
  const std::string name = arrival.lanes.front()->peer_name();
  for (HelloExchange* hello_exchange : arrival.lanes) {
    lanes.push_back(hello_exchange->ReleaseLane());
    by_number_.erase(hello_exchanges_.at(hello_exchange).number);
    hello_exchanges_.erase(hello_exchange);
  }
  Peer agreed;
  agreed.endpoint = arrival.peer;
  agreed.name = name;
  agreed.window_bytes = arrival.window_bytes;
  agreed.checksums = (arrival.welcome.flags & wire::kChecksums) != 0;
  agreed.process = arrival.process;
  agreed.connection = arrival.welcome.connection;
  std::memcpy(agreed.token.bytes.data(), arrival.welcome.token, sizeof arrival.welcome.token);
  const auto loops = endpoint_->loops().Choose(lanes.size());
  // The lanes move to their own loops from this one, which is theirs until then.
  (void)endpoint_->EstablishOnLoop(std::move(agreed), std::move(lanes), loops, nullptr);
}

}  // namespace ferry::transfer
