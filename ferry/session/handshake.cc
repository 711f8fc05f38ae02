// Carries out a lane's handshake.
#include "ferry/session/handshake.h"

#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/random.h"

namespace ferry::session {

static_assert(sizeof(wire::Header) + sizeof(wire::ProofBody) + wire::kMaxIdentityBytes <=
              net::kMaxPendingPeerMeta);

Handshake::Handshake(std::unique_ptr<net::Lane> lane, Terms terms,
                     std::shared_ptr<HandshakeUser> user)
    : terms_(std::move(terms)),
      lane_(std::move(lane)),
      info_(lane_->Info()),
      user_(std::move(user)),
      state_(terms_.side == Side::kDials ? State::kDialed : State::kSilent) {
  exchange_.role = terms_.role;
  if (terms_.peer_name.empty()) terms_.peer_name = info_.remote;
  // Anybody who reaches the port can send: little memory is allocated for it.
  if (terms_.side == Side::kAccepts) lane_->SetMaxMeta(net::kMaxPendingPeerMeta);
}

Handshake::~Handshake() { LiftDeadlineOnLoop(); }

void Handshake::StartOnLoop() {
  if (!terms_.deadline.never()) {
    timer_ = terms_.loop->AddTimerOnLoop(terms_.deadline.when(), [this] {
      timer_ = 0;
      lane_->Close(net::Closing::kOrderly);
      End(Late());
    });
  }
  lane_->Attach(terms_.loop, this);
}

// ---- states -------------------------------------------------------------------------------------

bool Handshake::Expects() const noexcept {
  switch (state_) {
    case State::kSilent:
    case State::kChallenged:
    case State::kAsking:
    case State::kProving:
    case State::kResuming: return true;
    case State::kAdmitted: return owes_more_;
    default: return false;
  }
}

bool Handshake::complete() const noexcept {
  return all_sent() && (state_ == State::kAgreed || state_ == State::kMoving ||
                        (state_ == State::kAdmitted && !owes_more_));
}

bool Handshake::Move(Event event) {
  const Edge* const edge = Advance(state_, event);
  if (edge == nullptr) return false;
  state_ = edge->to;
  // What it says next, early, may be as long as any user's.
  if (edge->action == Action::kTrust) lane_->SetMaxMeta(net::kMaxMetaBytes);
  if (paused_ && Expects()) {
    paused_ = false;
    lane_->Resume();
  }
  return true;
}

// OnGone() is the last callback: a handshake that waits to be destroyed must not be late as well.
void Handshake::End(const Error& error) {
  LiftDeadlineOnLoop();
  if (Move(Event::kEnd) || was_refused_) user_->OnGone(this, error);
}

// ---- what this side sends -----------------------------------------------------------------------

void Handshake::Send(wire::Type type, std::span<const std::byte> body, std::string_view text,
                     const std::optional<Mac>& mac) {
  // The lane refers to the frame until OnSent(); frames_ is a deque, so that it stays where it is.
  net::OutFrame& frame = frames_.emplace_back();
  wire::Append(&frame.meta, wire::Header{.type = type, .role = terms_.role});
  frame.meta.insert(frame.meta.end(), body.begin(), body.end());
  wire::AppendText(&frame.meta, text);
  if (mac) wire::Append(&frame.meta, *mac);
  lane_->Send(&frame);
}

void Handshake::OpenOnLoop(wire::Type type, std::span<const std::byte> body) {
  FERRY_CHECK(Move(Event::kOpen), StateName(state_));
  exchange_.first = type;
  exchange_.opening.assign(body.begin(), body.end());
  Send(type, body);
}

void Handshake::AcceptOnLoop(wire::Type type, std::span<const std::byte> body, bool more) {
  owes_more_ = more;
  FERRY_CHECK(Move(Event::kAccept), StateName(state_));
  exchange_.answer.assign(body.begin(), body.end());
  Send(type, body, {}, secret_ ? std::optional(exchange_.ServerProof(*secret_)) : std::nullopt);
}

void Handshake::RefuseOnLoop(const Error& error) {
  FERRY_CHECK(Move(Event::kDecline), StateName(state_));
  user_->OnRefused(this, error);
  const wire::RefuseBody body{.code = static_cast<std::uint8_t>(error.code())};
  Send(wire::Type::kRefuse, wire::BytesOf(body), error.message());
}

void Handshake::SettleOnLoop() { FERRY_CHECK(Move(Event::kSettle), StateName(state_)); }

void Handshake::SendPartOnLoop(wire::Type type, std::span<const std::byte> body, bool more) {
  FERRY_CHECK(Move(more ? Event::kOwed : Event::kSettled), StateName(state_));
  const bool is_signed = type == wire::Type::kConfirm && secret_;
  Send(type, body, {},
       is_signed ? std::optional(exchange_.ConfirmProof(*secret_, body)) : std::nullopt);
}

// ---- what this side receives --------------------------------------------------------------------

Result<net::Placement> Handshake::OnFrame(std::span<const std::byte> meta,
                                          std::uint64_t payload_bytes) {
  // The peer may send more at once; the next state, or the lane's next user, will read it.
  if (!Expects()) {
    paused_ = true;
    return net::Placement{net::Placement::Action::kPause, {}};
  }
  wire::MetaReader reader(meta);
  wire::Header header;
  if (!reader.Read(&header) || payload_bytes != 0) {
    return Error(
        Code::kCorrupt,
        fmt::format("{} sent a malformed handshake frame; check that it is a Tensorferry endpoint",
                    peer_name()));
  }
  Status received =
      header.role == terms_.role
          ? Receive(header.type, &reader)
          : Error(Code::kRefused,
                  fmt::format("this side is {}, and the other one is {}; use the same "
                              "provider on both sides (FERRY_PROVIDER)",
                              wire::RoleName(terms_.role), wire::RoleName(header.role)));
  if (!received && terms_.side == Side::kAccepts && received.error().code() != Code::kCorrupt) {
    RefuseOnLoop(received.error());
    return net::Placement{};
  }
  FERRY_TRY(received);
  return net::Placement{};
}

Status Handshake::Receive(wire::Type type, wire::MetaReader* body) {
  switch (type) {
    case wire::Type::kHello:
    case wire::Type::kJoin:
    case wire::Type::kRejoin: return ReceiveOpening(type, body);
    case wire::Type::kChallenge: return ReceiveChallenge(body);
    case wire::Type::kProof: return ReceiveProof(body);
    case wire::Type::kWelcome:
    case wire::Type::kJoined:
    case wire::Type::kRejoined: return ReceiveAnswer(type, body);
    case wire::Type::kRefuse: return ReceiveRefusal(body);
    case wire::Type::kResume:
    case wire::Type::kResumed:
    case wire::Type::kConfirm: return ReceiveMore(type, body);
  }
  return Unexpected(type);
}

// The first frame is kept as it is, since the proof covers it, and acted upon only after the proof:
// an unauthenticated peer cannot make this side reserve anything but its place.
Status Handshake::ReceiveOpening(wire::Type type, wire::MetaReader* body) {
  if (Advance(state_, Event::kTrustedHello) == nullptr) return Unexpected(type);
  FERRY_TRY_ASSIGN(Demand demand, user_->OnOpening(this, type, *body));
  exchange_.first = type;
  exchange_.opening.assign(body->rest().begin(), body->rest().end());
  if (!demand.secret) {
    if (!Move(Event::kTrustedHello)) return Unexpected(type);
    return user_->OnReceived(this, type, body);
  }
  secret_ = std::move(demand.secret);
  wrong_proof_ = demand.wrong_proof;
  takes_identity_ = demand.takes_identity;
  FillRandom(exchange_.server);
  if (!Move(Event::kUnprovedHello)) return Unexpected(type);
  user_->OnChallenged(this, demand);
  Send(wire::Type::kChallenge, exchange_.server);
  return Ok();
}

Status Handshake::ReceiveChallenge(wire::MetaReader* body) {
  wire::ChallengeBody challenge;
  if (!body->Read(&challenge) || !terms_.secret || !Move(Event::kChallenge)) {
    return Error(Code::kCorrupt,
                 fmt::format("{} sent an unexpected challenge; use the same release on both sides",
                             peer_name()));
  }
  secret_ = terms_.secret;
  user_->OnChallenged(this, {});
  exchange_.server = challenge.nonce;
  FillRandom(exchange_.client);
  exchange_.binding = info_.channel_binding;
  if (terms_.identify) {
    exchange_.identity = terms_.identify(exchange_.Transcript(*secret_));
    if (exchange_.identity.size() > wire::kMaxIdentityBytes) {
      return Error(Code::kInvalidArgument,
                   fmt::format("the identity of this side has {} bytes; make it {} at most",
                               exchange_.identity.size(), wire::kMaxIdentityBytes));
    }
  }
  std::vector<std::byte> proof;
  wire::Append(&proof, wire::ProofBody{.nonce = exchange_.client,
                                       .binding = exchange_.binding,
                                       .mac = exchange_.ClientProof(*secret_)});
  proof.insert(proof.end(), exchange_.identity.begin(), exchange_.identity.end());
  Send(wire::Type::kProof, proof);
  return Ok();
}

Status Handshake::ReceiveProof(wire::MetaReader* body) {
  wire::ProofBody proof;
  if (Advance(state_, Event::kProof) == nullptr || !body->Read(&proof)) {
    return Unexpected(wire::Type::kProof);
  }
  exchange_.client = proof.nonce;
  exchange_.binding = proof.binding;
  const std::size_t bytes = body->rest().size();
  if (const std::size_t most = takes_identity_ ? wire::kMaxIdentityBytes : 0; bytes > most) {
    return Error(Code::kRefused,
                 fmt::format("the identity has {} bytes, and this side takes {}; use the same "
                             "program on both sides",
                             bytes, most));
  }
  exchange_.identity.assign(body->rest().begin(), body->rest().end());
  if (!EqualInConstantTime(exchange_.ClientProof(*secret_), proof.mac)) {
    return Error(Code::kRefused, wrong_proof_);
  }
  // Both sides' TLS connections must be the same one (RFC 9266); without TLS both are zeros.
  if (proof.binding != info_.channel_binding) {
    return Error(Code::kRefused,
                 "somebody is between the two sides: the client knows the secret, but its TLS "
                 "connection is not the one that arrives here, so another certificate holder "
                 "terminates TLS on the way; remove TLS proxies; if there are none, replace the "
                 "authority of FERRY_TLS_CA and its certificates");
  }
  if (!Move(Event::kProof)) return Unexpected(wire::Type::kProof);
  wire::MetaReader opening(exchange_.opening);
  return user_->OnReceived(this, exchange_.first, &opening);
}

std::optional<wire::MetaReader> Handshake::Unsigned(wire::MetaReader body, bool of_answer) {
  Mac mac;
  const std::span<const std::byte> all = body.rest();
  if (all.size() < mac.size()) return std::nullopt;
  const auto rest = all.first(all.size() - mac.size());
  std::memcpy(mac.data(), all.last(mac.size()).data(), mac.size());
  if (of_answer) exchange_.answer.assign(rest.begin(), rest.end());
  const Mac right =
      of_answer ? exchange_.ServerProof(*secret_) : exchange_.ConfirmProof(*secret_, rest);
  return EqualInConstantTime(right, mac) ? std::optional(wire::MetaReader(rest)) : std::nullopt;
}

// The proof is checked before anything of the answer is used.
Status Handshake::ReceiveAnswer(wire::Type type, wire::MetaReader* body) {
  const auto due = static_cast<wire::Type>(static_cast<int>(exchange_.first) + 1);
  if (type != due || Advance(state_, Event::kAnswer) == nullptr) return Unexpected(type);
  // A server that does not know the secret could just leave out the challenge.
  if (terms_.secret && !secret_) {
    return Error(Code::kRefused,
                 fmt::format("{} does not ask for a secret, though this endpoint has one; set "
                             "FERRY_SECRET_FILE to the same on both sides",
                             peer_name()));
  }
  std::optional<wire::MetaReader> answer = *body;
  if (secret_) answer = Unsigned(*body, /*of_answer=*/true);
  if (!answer) {
    return Error(Code::kRefused,
                 fmt::format("{} did not prove the secret for this connection; it is not the peer "
                             "it claims to be, or somebody is between the two sides and relays or "
                             "changes the frames",
                             peer_name()));
  }
  if (!Move(Event::kAnswer)) return Unexpected(type);
  FERRY_TRY(user_->OnReceived(this, type, &*answer));
  if (complete()) user_->OnComplete(this);
  return Ok();
}

Error Handshake::ReceiveRefusal(wire::MetaReader* body) {
  wire::RefuseBody refusal;
  if (!body->Read(&refusal) || !Move(Event::kRefusal)) {
    return Error(Code::kCorrupt, fmt::format("{} sent a malformed refusal", peer_name()));
  }
  was_refused_ = true;
  return Error(wire::CodeFromWire(refusal.code),
               fmt::format("{} refused the connection: {}", peer_name(), body->Text()));
}

// A resume has no proof, so it must not be taken where a confirm is due.
Status Handshake::ReceiveMore(wire::Type type, wire::MetaReader* body) {
  const wire::Type due = exchange_.first != wire::Type::kRejoin ? wire::Type::kConfirm
                         : terms_.side == Side::kDials          ? wire::Type::kResumed
                                                                : wire::Type::kResume;
  if (type != due || Advance(state_, Event::kMore) == nullptr) return Unexpected(type);
  std::optional<wire::MetaReader> part = *body;
  if (type == wire::Type::kConfirm && secret_) part = Unsigned(*body, /*of_answer=*/false);
  if (!part) {
    return Error(Code::kRefused,
                 fmt::format("{} did not prove that it knows the secret", peer_name()));
  }
  if (!Move(Event::kMore)) return Unexpected(type);
  FERRY_TRY(user_->OnReceived(this, type, &*part));
  // A confirm is not answered.
  if (type == wire::Type::kConfirm && !Move(Event::kSettled)) return Unexpected(type);
  if (complete()) user_->OnComplete(this);
  return Ok();
}

Error Handshake::Unexpected(wire::Type type) const {
  return Error(
      Code::kCorrupt,
      fmt::format("{} sent a frame of type {} ({}) while this side was {}; use the same "
                  "release and provider on both sides (FERRY_PROVIDER)",
                  peer_name(), static_cast<int>(type), wire::TypeName(type), StateName(state_)));
}

// ---- the lane -----------------------------------------------------------------------------------

void Handshake::OnSent(net::OutFrame* /*frame*/) {
  ++sent_;
  if (!all_sent()) return;
  if (state_ == State::kRefused) {
    // An orderly close lets the peer read the refusal first.
    lane_->Close(net::Closing::kOrderly);
    return End(Error(Code::kRefused, "the peer was refused"));
  }
  if (complete()) user_->OnComplete(this);
}

void Handshake::OnClosed(net::LaneLoss /*loss*/, const Error& error) { End(error); }

void Handshake::CloseOnLoop() {
  LiftDeadlineOnLoop();
  if (Move(Event::kEnd) && lane_ != nullptr) lane_->Close(net::Closing::kOrderly);
}

void Handshake::LiftDeadlineOnLoop() {
  if (timer_ != 0) terms_.loop->CancelTimerOnLoop(std::exchange(timer_, 0));
}

std::unique_ptr<net::Lane> Handshake::ReleaseLane() {
  LiftDeadlineOnLoop();
  FERRY_CHECK(Move(Event::kHandOver), StateName(state_));
  return std::move(lane_);
}

Error Handshake::Late() const {
  return Error(Code::kTimedOut, fmt::format("{} did not finish the handshake in time; check that "
                                            "it is a Tensorferry endpoint and not overloaded",
                                            peer_name()));
}

}  // namespace ferry::session
