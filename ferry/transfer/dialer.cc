#include "ferry/transfer/dialer.h"

#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint_core.h"

namespace ferry::transfer {
namespace {

std::span<const std::byte> BytesOf(const auto& body) { return std::as_bytes(std::span(&body, 1)); }

}  // namespace

Dialer::Dialer(std::shared_ptr<EndpointCore> endpoint, net::Address address, Uuid expected,
               Deadline deadline)
    : endpoint_(std::move(endpoint)),
      address_(std::move(address)),
      expected_(expected),
      deadline_(deadline),
      loops_(endpoint_->ChooseLoops(static_cast<std::size_t>(endpoint_->lanes()))) {}

Dialer::~Dialer() = default;

Result<std::shared_ptr<ConnectionCore>> Dialer::result() {
  if (error_) return *error_;
  return connection_;
}

void Dialer::StartOnLoop() {
  greetings_.resize(loops_.size());
  knowing_.resize(loops_.size());
  ConnectLaneOnLoop(0);
}

void Dialer::ConnectLaneOnLoop(std::size_t index) {
  endpoint_->provider().Connect(
      address_, endpoint_->config(), home(), deadline_,
      [self = shared_from_this(), index](Result<std::unique_ptr<net::Lane>> lane) {
        self->OnConnected(index, std::move(lane));
      });
}

void Dialer::OnConnected(std::size_t index, Result<std::unique_ptr<net::Lane>> lane) {
  if (done()) return;
  if (!lane) return FailOnLoop(lane.error());
  greetings_[index] = std::make_unique<Greeting>(*std::move(lane), home(), deadline_);
  Greeting& greeting = *greetings_[index];
  if (!endpoint_->secret() && !endpoint_->Trusts(greeting.is_local())) {
    return FailOnLoop(
        Error(Code::kRefused,
              fmt::format("{} is on another machine and there is no secret to know it by; set "
                          "FERRY_SECRET_FILE on both sides, or FERRY_INSECURE=on in a network you "
                          "trust",
                          address_.ToString())));
  }
  greeting.StartOnLoop(
      [self = shared_from_this(), index](const auto& header, auto* reader) {
        return self->OnHeard(index, header, reader);
      },
      [self = shared_from_this()](const Error& error) { self->FailOnLoop(error); });
  if (index > 0) {
    wire::JoinBody join;
    join.lane = static_cast<std::uint16_t>(index);
    join.connection = welcome_.connection;
    std::memcpy(join.token, welcome_.token, sizeof join.token);
    return SayFirst(index, wire::Type::kJoin, BytesOf(join));
  }
  wire::HelloBody hello;
  hello.lanes = static_cast<std::uint16_t>(loops_.size());
  hello.has_secret = endpoint_->secret() ? 1 : 0;
  hello.window_bytes = endpoint_->config().window_bytes;
  std::memcpy(hello.endpoint, endpoint_->id().bytes.data(), sizeof hello.endpoint);
  SayFirst(0, wire::Type::kHello, BytesOf(hello));
}

void Dialer::SayFirst(std::size_t index, wire::Type type, std::span<const std::byte> body) {
  knowing_[index].exchange.first = type;
  knowing_[index].exchange.said.assign(body.begin(), body.end());
  greetings_[index]->SayOnLoop(type, body);
}

Status Dialer::OnChallenge(std::size_t index, wire::MetaReader* reader) {
  Knowing& knowing = knowing_[index];
  wire::ChallengeBody challenge;
  if (!reader->Read(&challenge) || !endpoint_->secret() || knowing.challenged) {
    return Error(Code::kCorrupt,
                 fmt::format("{} sent a challenge that was not asked for; use the same release on "
                             "both sides",
                             address_.ToString()));
  }
  knowing.challenged = true;
  knowing.exchange.server = challenge.nonce;
  FillRandom(knowing.exchange.client);
  const wire::ProofBody proof{.nonce = knowing.exchange.client,
                              .mac = knowing.exchange.ClientProof(*endpoint_->secret())};
  greetings_[index]->HearMoreOnLoop();
  greetings_[index]->SayOnLoop(wire::Type::kProof, BytesOf(proof));
  return Ok();
}

Status Dialer::CheckPeer(std::size_t index, std::span<const std::byte> body,
                         wire::MetaReader* reader) {
  const auto& secret = endpoint_->secret();
  if (!secret) return Ok();
  const Knowing& knowing = knowing_[index];
  if (!knowing.challenged) {
    return Error(Code::kRefused,
                 fmt::format("{} does not ask for a secret, though this endpoint has one; set "
                             "FERRY_SECRET_FILE to the same on both sides",
                             address_.ToString()));
  }
  Mac mac;
  if (reader->Read(&mac) && SameMac(knowing.exchange.ServerProof(*secret, body), mac)) return Ok();
  return Error(Code::kRefused,
               fmt::format("{} does not know the secret that it asks for; it is not the peer it "
                           "claims to be, or something on the way changes what is said",
                           address_.ToString()));
}

Status Dialer::OnHeard(std::size_t index, const wire::MessageHeader& header,
                       wire::MetaReader* reader) {
  if (header.type == wire::Type::kRefuse) {
    wire::RefuseBody body;
    if (!reader->Read(&body)) return Error(Code::kCorrupt, "malformed refusal");
    return Error(wire::CodeFromWire(body.code),
                 fmt::format("{} refused the connection: {}", address_.ToString(), reader->Text()));
  }
  if (header.type == wire::Type::kChallenge) return OnChallenge(index, reader);
  if (index == 0 && header.type == wire::Type::kWelcome) return OnWelcome(reader);
  if (index > 0 && header.type == wire::Type::kJoined) {
    FERRY_TRY(CheckPeer(index, {}, reader));
    OnJoined();
    return Ok();
  }
  return Error(Code::kCorrupt,
               fmt::format("{} answered the greeting by a {} frame; use the same release on both "
                           "sides",
                           address_.ToString(), wire::TypeName(header.type)));
}

Status Dialer::OnWelcome(wire::MetaReader* reader) {
  if (!reader->Read(&welcome_) || welcome_.version != wire::kVersion || welcome_.lanes == 0 ||
      welcome_.lanes > loops_.size() || welcome_.window_bytes == 0) {
    return Error(Code::kCorrupt,
                 fmt::format("{} sent a malformed welcome; use the same release on both sides",
                             address_.ToString()));
  }
  FERRY_TRY(CheckPeer(0, BytesOf(welcome_), reader));
  Uuid peer;
  std::memcpy(peer.bytes.data(), welcome_.endpoint, sizeof welcome_.endpoint);
  if (!expected_.none() && peer != expected_) {
    return Error(Code::kRefused,
                 fmt::format("{} is endpoint {} now, not {}; it was restarted or replaced: get its "
                             "new address and keys",
                             address_.ToString(), peer.ToString(), expected_.ToString()));
  }
  loops_.resize(welcome_.lanes);
  greetings_.resize(welcome_.lanes);
  for (std::size_t i = 1; i < loops_.size(); ++i) ConnectLaneOnLoop(i);
  OnJoined();
  return Ok();
}

void Dialer::OnJoined() {
  if (++joined_ < loops_.size()) return;
  // Outside the callback of the lane that is about to move.
  home()->Post([self = shared_from_this()] { self->Finish(); });
}

void Dialer::Finish() {
  if (done()) return;  // a lane was lost since
  Uuid peer;
  std::memcpy(peer.bytes.data(), welcome_.endpoint, sizeof welcome_.endpoint);
  std::vector<std::unique_ptr<net::Lane>> lanes;
  for (auto& greeting : greetings_) lanes.push_back(greeting->ReleaseLane());
  const std::uint64_t window = std::min(welcome_.window_bytes, endpoint_->config().window_bytes);
  connection_ = std::make_shared<ConnectionCore>(endpoint_->config(), &endpoint_->regions(),
                                                 Peer{peer, address_.ToString(), window}, loops_);
  endpoint_->Keep(connection_);
  endpoint_->BringUpOnLoop(connection_, std::move(lanes), /*from_outside=*/false);
  greetings_.clear();
  done_.store(true, std::memory_order_release);
  home()->NotifyWaiters();
}

void Dialer::FailOnLoop(const Error& error) {
  if (done()) return;
  error_ = error;
  done_.store(true, std::memory_order_release);
  home()->NotifyWaiters();
  // Their callbacks hold this object; they go outside of them.
  home()->Post([greetings = std::make_shared<decltype(greetings_)>(std::move(greetings_))] {});
  greetings_.clear();
}

}  // namespace ferry::transfer
