// Dials a peer's lanes and completes the client handshake, with retries.
#include "ferry/transfer/endpoint/dialer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/handshake/endpoint_address.h"

namespace ferry::transfer {
namespace {

// Pause between attempts: doubles each time, and half of it is random, so that peers that were
// refused together do not return together.
constexpr milliseconds kFirstPause{10};
constexpr std::uint32_t kMaxDoublings = 6;

Clock::duration PauseBefore(std::uint32_t attempt) {
  const microseconds longest = kFirstPause * (1U << std::min(attempt, kMaxDoublings));
  const auto half = static_cast<std::uint64_t>(longest.count()) / 2;
  return microseconds(half + RandomU64() % half);
}

}  // namespace

Dialer::Dialer(std::shared_ptr<EndpointCore> endpoint, net::Address address, Uuid expected,
               Deadline deadline)
    : endpoint_(std::move(endpoint)),
      address_(std::move(address)),
      expected_(expected),
      deadline_(deadline),
      loops_(endpoint_->loops().Choose(static_cast<std::size_t>(endpoint_->LanesTo(address_)))) {}

Dialer::~Dialer() { EndCall(); }

void Dialer::EndCall() {
  if (!call_.empty()) endpoint_->own_calls().End(std::exchange(call_, {}));
}

Result<std::shared_ptr<ConnectionCore>> Dialer::result() {
  if (error_) return *error_;
  return connection_;
}

// Only the first lane dials now; the others follow when the server has told how many it accepts.
void Dialer::StartOnLoop() {
  // Each attempt begins anew, with new lanes and a new connection at the server. Callbacks of
  // earlier attempts are told apart by LaneId::attempt.
  joined_ = 0;
  hello_exchanges_.resize(loops_.size());
  client_handshakes_.assign(loops_.size(),
                            ClientHandshake(endpoint_->policy().secret(), address_.ToString()));
  ConnectLaneOnLoop(0);
}

void Dialer::ConnectLaneOnLoop(std::size_t index) {
  endpoint_->provider().Connect(address_, endpoint_->config(), home(), deadline_,
                                [self = shared_from_this(), id = LaneId{index, attempt_}](
                                    auto lane) { self->OnConnected(id, std::move(lane)); });
}

// kUnavailable is temporary and retried; other errors are final.
void Dialer::OnConnected(LaneId id, Result<std::unique_ptr<net::Lane>> lane) {
  // Another attempt has begun, or the dial has ended.
  if (IsOver(id)) return;
  if (!lane) {
    const bool may_retry = lane.error().code() == Code::kUnavailable;
    return may_retry ? RetryOnLoop(lane.error()) : FailOnLoop(lane.error());
  }
  const std::size_t index = id.index;
  hello_exchanges_[index] = std::make_unique<HelloExchange>(*std::move(lane), home(), deadline_);
  HelloExchange& hello_exchange = *hello_exchanges_[index];
  if (auto may = endpoint_->policy().CheckLane(hello_exchange.info(), address_.ToString()); !may) {
    return FailOnLoop(may.error());
  }
  hello_exchange.StartOnLoop(
      [self = shared_from_this(), id](const auto& header, auto* reader) {
        return self->OnHeard(id, header, reader);
      },
      [self = shared_from_this(), id](const Error& error) { self->OnGone(id, error); });
  hello_exchange.SetOnSaid([self = shared_from_this(), id] {
    if (!self->IsOver(id)) self->FinishIfReady();
  });
  if (index > 0) {
    wire::JoinBody join;
    join.lane = static_cast<std::uint16_t>(index);
    join.connection = welcome_.connection;
    std::memcpy(join.token, welcome_.token, sizeof join.token);
    return client_handshakes_[index].SayFirstOnLoop(&hello_exchange, wire::Type::kJoin,
                                                    wire::BytesOf(join));
  }
  SayHello();
}

// Records the local name first, so that this endpoint recognizes a connection to itself.
void Dialer::SayHello() {
  call_ = hello_exchanges_.front()->local_name();
  endpoint_->own_calls().Begin(call_);
  wire::HelloBody hello;
  hello.lanes = static_cast<std::uint16_t>(loops_.size());
  if (endpoint_->policy().secret()) hello.flags |= wire::kHasSecret;
  if (endpoint_->config().checksum == OnOff::kOn) hello.flags |= wire::kChecksums;
  hello.window_bytes = endpoint_->config().window_bytes;
  if (hello_exchanges_.front()->is_local()) hello.process = net::ThisProcess();
  std::memcpy(hello.endpoint, endpoint_->id().bytes.data(), sizeof hello.endpoint);
  std::memcpy(hello.expected, expected_.bytes.data(), sizeof hello.expected);
  client_handshakes_.front().SayFirstOnLoop(hello_exchanges_.front().get(), wire::Type::kHello,
                                            wire::BytesOf(hello));
}

// The peer closed the lane, or its kernel reset it, without a refusal.
void Dialer::OnGone(LaneId id, const Error& error) {
  if (IsOver(id)) return;
  return error.code() == Code::kPeerLost ? RetryOnLoop(error) : FailOnLoop(error);
}

Status Dialer::OnHeard(LaneId id, const wire::MessageHeader& header, wire::MetaReader* reader) {
  // Another lane has failed in this turn of the loop; this lane will be closed, too.
  if (IsOver(id)) return Error(Code::kCancelled, "another lane of the connection has failed");
  const std::size_t index = id.index;
  ClientHandshake& client_handshake = client_handshakes_[index];
  if (header.type == wire::Type::kRefuse) {
    Error refusal = client_handshake.Refusal(reader);
    // The peer knew the connection when it answered the hello frame, and has dropped it since.
    // kPeerLost makes OnGone() try again from the beginning.
    const bool given_up = index > 0 && refusal.code() == Code::kUnavailable;
    return given_up ? Error(Code::kPeerLost, refusal.message()) : refusal;
  }
  if (header.type == wire::Type::kChallenge) {
    return client_handshake.AnswerChallengeOnLoop(hello_exchanges_[index].get(), reader);
  }
  if (index == 0 && header.type == wire::Type::kWelcome) return OnWelcome(reader);
  if (index > 0 && header.type == wire::Type::kJoined) {
    FERRY_TRY(client_handshake.CheckPeer({}, reader->rest()));
    OnJoined();
    return Ok();
  }
  return Error(Code::kCorrupt,
               fmt::format("{} answered the hello frame with a {} frame; use the same release and "
                           "provider on both sides (FERRY_PROVIDER)",
                           address_.ToString(), wire::TypeName(header.type)));
}

// The server's proof is checked before its addresses and its endpoint id are used.
Status Dialer::OnWelcome(wire::MetaReader* reader) {
  const std::span<const std::byte> all = reader->rest();
  const bool whole = reader->Read(&welcome_) && welcome_.version == wire::kVersion &&
                     welcome_.lanes > 0 && welcome_.lanes <= loops_.size() &&
                     welcome_.window_bytes > 0 && reader->rest().size() >= welcome_.address_bytes;
  if (!whole) {
    return Error(Code::kCorrupt,
                 fmt::format("{} sent a malformed welcome; use the same release on both sides",
                             address_.ToString()));
  }
  const std::size_t body_bytes = sizeof welcome_ + welcome_.address_bytes;
  FERRY_TRY(client_handshakes_.front().CheckPeer(all.first(body_bytes), all.subspan(body_bytes)));
  if (welcome_.address_bytes > 0) {
    FERRY_TRY_ASSIGN(EndpointAddress told,
                     EndpointAddress::Parse(reader->rest().first(welcome_.address_bytes)));
    others_ = std::move(told.at);
  }
  Uuid peer;
  std::memcpy(peer.bytes.data(), welcome_.endpoint, sizeof welcome_.endpoint);
  if (!expected_.none() && peer != expected_) {
    return Error(Code::kRefused,
                 fmt::format("{} is endpoint {} now, not {}; it was restarted or replaced: get its "
                             "new address and keys",
                             address_.ToString(), peer.ToString(), expected_.ToString()));
  }
  // With two lanes both carry bulk, so the second one must not share the first one's loop.
  if (FirstBulkLaneOf(loops_.size()) > FirstBulkLaneOf(welcome_.lanes)) {
    loops_.erase(loops_.begin() + 1);
  }
  loops_.resize(welcome_.lanes);
  hello_exchanges_.resize(welcome_.lanes);
  for (std::size_t i = 1; i < loops_.size(); ++i) ConnectLaneOnLoop(i);
  OnJoined();
  return Ok();
}

void Dialer::OnJoined() {
  ++joined_;
  FinishIfReady();
}

// An answer may arrive before the lane has reported that its request was sent.
void Dialer::FinishIfReady() {
  if (done() || joined_ < loops_.size()) return;
  for (const auto& hello_exchange : hello_exchanges_) {
    if (!hello_exchange || !hello_exchange->complete()) return;
  }
  // Posted, to leave the callback of the lane that is about to move.
  home()->Post([self = shared_from_this(), attempt = attempt_] {
    // Skipped if a lane was lost meanwhile.
    if (!self->done() && self->attempt_ == attempt) self->Finish();
  });
}

// `done_` is stored last: the thread in Endpoint::Connect then reads the result without a lock.
void Dialer::Finish() {
  Uuid peer;
  std::memcpy(peer.bytes.data(), welcome_.endpoint, sizeof welcome_.endpoint);
  std::vector<std::unique_ptr<net::Lane>> lanes;
  const Dialled dialled{address_, hello_exchanges_.front()->info().interface, others_};
  for (auto& hello_exchange : hello_exchanges_) lanes.push_back(hello_exchange->ReleaseLane());
  Peer agreed;
  agreed.endpoint = peer;
  agreed.name = address_.ToString();
  // The server has chosen the smaller one already; it is not trusted to have done so.
  agreed.window_bytes = std::min(welcome_.window_bytes, endpoint_->config().window_bytes);
  agreed.checksums = (welcome_.flags & wire::kChecksums) != 0;
  agreed.process = welcome_.process;
  agreed.connection = welcome_.connection;
  std::memcpy(agreed.token.bytes.data(), welcome_.token, sizeof welcome_.token);
  connection_ = endpoint_->EstablishOnLoop(std::move(agreed), std::move(lanes), loops_, &dialled);
  if (connection_ == nullptr) {
    return FailOnLoop(Error(Code::kCancelled, "this endpoint was closed"));
  }
  hello_exchanges_.clear();
  done_.store(true, std::memory_order_release);
  home()->NotifyWaiters();
}

// Keeps the error for the final message, which reports the previous attempt, too.
void Dialer::RetryOnLoop(const Error& error) {
  const auto again = Clock::now() + PauseBefore(attempt_);
  if (!deadline_.never() && again >= deadline_.when()) return FailOnLoop(error);
  last_ = error.message();
  ++attempt_;
  DropLanesOnLoop();
  EndCall();
  // Weak: the timer belongs to a loop of the endpoint, which this object keeps alive.
  home()->AddTimerOnLoop(again, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->StartOnLoop();
  });
}

// Posted, because the lanes' callbacks keep this object alive and one may be running.
void Dialer::DropLanesOnLoop() {
  home()->Post([hello_exchanges =
                    std::make_shared<decltype(hello_exchanges_)>(std::move(hello_exchanges_))] {});
  hello_exchanges_.clear();
}

void Dialer::FailOnLoop(const Error& error) {
  if (done()) return;
  error_ = attempt_ == 0 ? error
                         : Error(error.code(), fmt::format("{} (attempt {}; the previous one: {})",
                                                           error.message(), attempt_ + 1, last_));
  done_.store(true, std::memory_order_release);
  home()->NotifyWaiters();
  DropLanesOnLoop();
}

}  // namespace ferry::transfer
