// Dials a peer's lanes and completes the client handshake.
#include "ferry/transfer/endpoint/dialer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/handshake/endpoint_address.h"

namespace ferry::transfer {

static_assert(kMaxIdentityBytes == session::wire::kMaxIdentityBytes);

namespace {

std::vector<int> LanesToEach(const EndpointCore& endpoint,
                             const std::vector<net::Address>& addresses) {
  std::vector<int> lanes;
  for (const net::Address& address : addresses) lanes.push_back(endpoint.LanesTo(address));
  return lanes;
}

}  // namespace

Dialer::Dialer(std::shared_ptr<EndpointCore> endpoint, std::vector<net::Address> addresses,
               Uuid expected, Deadline deadline, const std::optional<Secret>& secret,
               MakeIdentity identify)
    : endpoint_(std::move(endpoint)),
      addresses_(std::move(addresses)),
      expected_(expected),
      deadline_(deadline),
      secret_(secret ? secret : endpoint_->policy().secret()),
      identify_(std::move(identify)),
      lanes_to_(LanesToEach(*endpoint_, addresses_)),
      all_loops_(endpoint_->loops().Choose(
          static_cast<std::size_t>(*std::max_element(lanes_to_.begin(), lanes_to_.end())))) {}

void Dialer::GiveUp() {
  lanes_.clear();
  dial_.reset();
}

Result<std::shared_ptr<ConnectionCore>> Dialer::result() {
  if (error_) return *error_;
  return connection_;
}

// Only first lanes are dialed now; the others follow when the peer has told how many it accepts.
void Dialer::StartOnLoop() {
  dial_ = std::make_shared<net::Dial>(
      &endpoint_->provider(), &endpoint_->config(), home(),
      net::Candidates(addresses_, deadline_, Clock::now(), kAnswerTime),
      [weak = weak_from_this()](std::size_t address, auto lane, Deadline deadline) {
        if (const auto self = weak.lock()) self->OnUp(address, std::move(lane), deadline);
      },
      [weak = weak_from_this()](const Error& error) {
        if (const auto self = weak.lock()) self->FailOnLoop(error);
      });
  dial_->Start();
}

// ---- lanes --------------------------------------------------------------------------------------

Dialer::HelloLane* Dialer::Find(const Handshake* handshake) {
  const auto it = std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& each) {
    return each->handshake.get() == handshake;
  });
  return done() || it == lanes_.end() ? nullptr : it->get();
}

Dialer::HelloLane* Dialer::Adopt(std::size_t address, std::size_t index,
                                 std::unique_ptr<net::Lane> lane, Deadline deadline) {
  const std::string name = addresses_[address].ToString();
  const Status may = endpoint_->policy().CheckLane(lane->Info(), name, secret_.has_value());
  if (!may) {
    EndAttempt(address, may.error(), /*may_retry=*/false);
    return nullptr;
  }
  Handshake::Terms terms{.side = Handshake::Side::kDials,
                         .role = session::wire::Role::kEndpoint,
                         .loop = home(),
                         .deadline = deadline,
                         .peer_name = name,
                         .secret = secret_};
  if (index == 0 && identify_) {
    terms.identify = [this](const Mac& transcript) {
      return done() ? std::vector<std::byte>() : identify_(transcript);
    };
  }
  lanes_.push_back(std::make_unique<HelloLane>(HelloLane{
      address, index,
      std::make_unique<Handshake>(std::move(lane), std::move(terms),
                                  std::shared_ptr<HandshakeUser>(shared_from_this(), this))}));
  lanes_.back()->handshake->StartOnLoop();
  return lanes_.back().get();
}

void Dialer::OnUp(std::size_t address, std::unique_ptr<net::Lane> lane, Deadline deadline) {
  HelloLane* const first = Adopt(address, 0, std::move(lane), deadline);
  if (first != nullptr) SayHello(first);
}

// kUnavailable is temporary and retried; other errors are final.
void Dialer::OnJoinConnected(std::size_t index, std::uint32_t round,
                             Result<std::unique_ptr<net::Lane>> lane) {
  // The attempt, or the dial, has ended.
  if (done() || round != round_) return;
  const std::size_t address = lanes_.front()->address;
  if (!lane) {
    return EndAttempt(address, lane.error(), lane.error().code() == Code::kUnavailable);
  }
  HelloLane* const added = Adopt(address, index, *std::move(lane), deadline_);
  if (added == nullptr) return;
  wire::JoinBody join;
  join.lane = static_cast<std::uint16_t>(index);
  join.connection = welcome_.connection;
  std::memcpy(join.token, welcome_.token, sizeof join.token);
  added->handshake->OpenOnLoop(session::wire::Type::kJoin, wire::BytesOf(join));
}

// Records the local name first, so that this endpoint recognizes a connection to itself.
void Dialer::SayHello(HelloLane* lane) {
  lane->call = lane->handshake->info().local;
  endpoint_->own_calls().Begin(lane->call);
  lane->asked_lanes = static_cast<std::uint16_t>(lanes_to_[lane->address]);
  wire::HelloBody hello;
  hello.lanes = lane->asked_lanes;
  if (secret_) hello.flags |= wire::kHasSecret;
  if (endpoint_->config().checksum == OnOff::kOn) hello.flags |= wire::kChecksums;
  hello.window_bytes = endpoint_->config().window_bytes;
  if (lane->handshake->is_local()) hello.process = net::ThisProcess();
  std::memcpy(hello.endpoint, endpoint_->id().bytes.data(), sizeof hello.endpoint);
  std::memcpy(hello.expected, expected_.bytes.data(), sizeof hello.expected);
  lane->handshake->OpenOnLoop(session::wire::Type::kHello, wire::BytesOf(hello));
}

// Posted, because the lanes' callbacks keep this object alive and one may be running.
template <class Predicate>
void Dialer::Drop(Predicate which) {
  const auto dropped = std::stable_partition(lanes_.begin(), lanes_.end(),
                                             [&](const auto& lane) { return !which(*lane); });
  for (auto it = dropped; it != lanes_.end(); ++it) {
    if (!(*it)->call.empty()) endpoint_->own_calls().End((*it)->call);
    home()->Post([lane = std::move(*it)] {});
  }
  lanes_.erase(dropped, lanes_.end());
}

void Dialer::EndAttempt(std::size_t address, const Error& error, bool may_retry) {
  ++round_;
  joined_ = 0;
  Drop([&](const HelloLane& lane) { return lane.address == address; });
  dial_->Fail(address, error,
              may_retry ? net::Candidates::Retry::kLater : net::Candidates::Retry::kNever);
}

// ---- answers ------------------------------------------------------------------------------------

// Without a refusal, the peer closed the lane, or its kernel reset it. A peer that refuses a
// further lane knew the connection when it answered the hello frame, and has dropped it since.
void Dialer::OnGone(Handshake* handshake, const Error& error) {
  const HelloLane* const lane = Find(handshake);
  if (lane == nullptr) return;
  const bool was_dropped = lane->index != 0 && handshake->was_refused();
  const bool may_retry =
      error.code() == Code::kPeerLost || (was_dropped && error.code() == Code::kUnavailable);
  EndAttempt(lane->address, may_retry ? Error(Code::kPeerLost, error.message()) : error, may_retry);
}

void Dialer::OnChallenged(Handshake* handshake, const session::Demand& /*demand*/) {
  const HelloLane* const lane = Find(handshake);
  if (lane != nullptr && lane->index == 0) dial_->NoteAnswer(lane->address);
}

Status Dialer::OnReceived(Handshake* handshake, session::wire::Type type, wire::MetaReader* body) {
  HelloLane* const lane = Find(handshake);
  if (lane == nullptr) return Error(Code::kCancelled, "the attempt to connect has ended");
  if (type == session::wire::Type::kWelcome) return OnWelcome(lane, body);
  FERRY_TRY(endpoint_->policy()
                .TrustIn(secret_.has_value())
                .CheckPeerOnLoop(handshake, welcome_.process));
  OnJoined();
  return Ok();
}

Status Dialer::OnWelcome(HelloLane* lane, wire::MetaReader* reader) {
  const std::string name = addresses_[lane->address].ToString();
  wire::WelcomeBody welcome;
  const bool whole = reader->Read(&welcome) && welcome.version == wire::kVersion &&
                     welcome.lanes > 0 && welcome.lanes <= lane->asked_lanes &&
                     welcome.window_bytes > 0 && reader->rest().size() == welcome.address_bytes;
  if (!whole) {
    return Error(
        Code::kCorrupt,
        fmt::format("{} sent a malformed welcome; use the same release on both sides", name));
  }
  std::vector<net::Address> others;
  if (welcome.address_bytes > 0) {
    FERRY_TRY_ASSIGN(EndpointAddress told, EndpointAddress::Parse(reader->rest()));
    others = std::move(told.at);
  }
  FERRY_TRY(endpoint_->policy()
                .TrustIn(secret_.has_value())
                .CheckPeerOnLoop(lane->handshake.get(), welcome.process));
  Uuid peer;
  std::memcpy(peer.bytes.data(), welcome.endpoint, sizeof welcome.endpoint);
  if (!expected_.none() && peer != expected_) {
    return Error(Code::kRefused,
                 fmt::format("{} is endpoint {} now, not {}; it was restarted or replaced: get its "
                             "new address and keys",
                             name, peer.ToString(), expected_.ToString()));
  }
  welcome_ = welcome;
  others_ = std::move(others);
  JoinLanes(lane);
  return Ok();
}

// ---- the peer is known --------------------------------------------------------------------------

void Dialer::JoinLanes(const HelloLane* first) {
  dial_->Choose(first->address);
  Drop([&](const HelloLane& lane) { return &lane != first; });
  loops_ = all_loops_;
  // With two lanes both carry bulk, so the second one must not share the first one's loop.
  if (FirstBulkLaneOf(loops_.size()) > FirstBulkLaneOf(welcome_.lanes)) {
    loops_.erase(loops_.begin() + 1);
  }
  loops_.resize(welcome_.lanes);
  const std::uint32_t round = round_;
  for (std::size_t i = 1; i < loops_.size() && round == round_; ++i) {
    endpoint_->provider().Connect(addresses_[first->address], endpoint_->config(), home(),
                                  deadline_, [self = shared_from_this(), i, round](auto lane) {
                                    self->OnJoinConnected(i, round, std::move(lane));
                                  });
  }
  if (round == round_) OnJoined();
}

void Dialer::OnJoined() {
  ++joined_;
  FinishIfReady();
}

void Dialer::OnComplete(Handshake* handshake) {
  if (Find(handshake) != nullptr) FinishIfReady();
}

// An answer may arrive before the lane has reported that its request was sent.
void Dialer::FinishIfReady() {
  if (done() || joined_ == 0 || joined_ < loops_.size()) return;
  for (const auto& lane : lanes_) {
    if (!lane->handshake->complete()) return;
  }
  // Posted, to leave the callback of the lane that is about to move.
  home()->Post([self = shared_from_this(), round = round_] {
    // Skipped if a lane was lost meanwhile.
    if (!self->done() && self->round_ == round) self->Finish();
  });
}

// `done_` is stored last: the thread in Endpoint::Connect then reads the result without a lock.
void Dialer::Finish() {
  std::sort(lanes_.begin(), lanes_.end(),
            [](const auto& a, const auto& b) { return a->index < b->index; });
  const HelloLane& first = *lanes_.front();
  const Dialled dialled{addresses_[first.address], first.handshake->info().interface, others_,
                        secret_};
  Peer agreed;
  std::memcpy(agreed.endpoint.bytes.data(), welcome_.endpoint, sizeof welcome_.endpoint);
  agreed.name = dialled.at.ToString();
  // The server has chosen the smaller one already; it is not trusted to have done so.
  agreed.window_bytes = std::min(welcome_.window_bytes, endpoint_->config().window_bytes);
  agreed.checksums = (welcome_.flags & wire::kChecksums) != 0;
  agreed.process = welcome_.process;
  agreed.connection = welcome_.connection;
  std::memcpy(agreed.token.bytes.data(), welcome_.token, sizeof welcome_.token);
  std::vector<std::unique_ptr<net::Lane>> lanes;
  for (const auto& lane : lanes_) lanes.push_back(lane->handshake->ReleaseLane());
  connection_ = endpoint_->EstablishOnLoop(std::move(agreed), std::move(lanes), loops_, &dialled);
  if (connection_ == nullptr) {
    return FailOnLoop(Error(Code::kCancelled, "this endpoint was closed"));
  }
  Drop([](const HelloLane&) { return true; });
  home()->Post([dial = std::move(dial_)] {});
  done_.store(true, std::memory_order_release);
  home()->NotifyWaiters();
}

void Dialer::FailOnLoop(const Error& error) {
  if (done()) return;
  error_ = error;
  Drop([](const HelloLane&) { return true; });
  home()->Post([dial = std::move(dial_)] {});
  done_.store(true, std::memory_order_release);
  home()->NotifyWaiters();
}

}  // namespace ferry::transfer
