#include "ferry/transfer/dialer.h"

#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint.h"
#include "ferry/transfer/endpoint_core.h"
#include "ferry/transfer/lane_keeper.h"

namespace ferry::transfer {

Dialer::Dialer(std::shared_ptr<EndpointCore> endpoint, net::Address address, Uuid expected,
               Deadline deadline)
    : endpoint_(std::move(endpoint)),
      address_(std::move(address)),
      expected_(expected),
      deadline_(deadline),
      loops_(endpoint_->ChooseLoops(static_cast<std::size_t>(endpoint_->LanesTo(address_)))) {}

Dialer::~Dialer() {
  if (!call_.empty()) endpoint_->EndCall(call_);
}

Result<std::shared_ptr<ConnectionCore>> Dialer::result() {
  if (error_) return *error_;
  return connection_;
}

void Dialer::StartOnLoop() {
  greetings_.resize(loops_.size());
  introductions_.resize(loops_.size(), Introduction(endpoint_->secret(), address_.ToString()));
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
  if (auto may = endpoint_->CheckLane(greeting, address_.ToString()); !may) {
    return FailOnLoop(may.error());
  }
  greeting.StartOnLoop(
      [self = shared_from_this(), index](const auto& header, auto* reader) {
        return self->OnHeard(index, header, reader);
      },
      [self = shared_from_this()](const Error& error) { self->FailOnLoop(error); });
  greeting.SetOnSaid([self = shared_from_this()] { self->FinishIfReady(); });
  if (index > 0) {
    wire::JoinBody join;
    join.lane = static_cast<std::uint16_t>(index);
    join.connection = welcome_.connection;
    std::memcpy(join.token, welcome_.token, sizeof join.token);
    return introductions_[index].SayFirstOnLoop(&greeting, wire::Type::kJoin, wire::BytesOf(join));
  }
  SayHello();
}

void Dialer::SayHello() {
  call_ = greetings_.front()->local_name();
  endpoint_->BeginCall(call_);
  wire::HelloBody hello;
  hello.lanes = static_cast<std::uint16_t>(loops_.size());
  if (endpoint_->secret()) hello.flags |= wire::kHasSecret;
  if (endpoint_->config().checksum == "on") hello.flags |= wire::kChecksums;
  hello.window_bytes = endpoint_->config().window_bytes;
  std::memcpy(hello.endpoint, endpoint_->id().bytes.data(), sizeof hello.endpoint);
  std::memcpy(hello.expected, expected_.bytes.data(), sizeof hello.expected);
  introductions_.front().SayFirstOnLoop(greetings_.front().get(), wire::Type::kHello,
                                        wire::BytesOf(hello));
}

Status Dialer::OnHeard(std::size_t index, const wire::MessageHeader& header,
                       wire::MetaReader* reader) {
  // Another lane has failed in this turn of the loop; this one is about to go, too.
  if (done()) return *error_;
  Introduction& introduction = introductions_[index];
  if (header.type == wire::Type::kRefuse) return introduction.Refusal(reader);
  if (header.type == wire::Type::kChallenge) {
    return introduction.AnswerChallengeOnLoop(greetings_[index].get(), reader);
  }
  if (index == 0 && header.type == wire::Type::kWelcome) return OnWelcome(reader);
  if (index > 0 && header.type == wire::Type::kJoined) {
    FERRY_TRY(introduction.CheckPeer({}, reader->rest()));
    OnJoined();
    return Ok();
  }
  return Error(Code::kCorrupt,
               fmt::format("{} answered the greeting by a {} frame; use the same release on both "
                           "sides",
                           address_.ToString(), wire::TypeName(header.type)));
}

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
  FERRY_TRY(introductions_.front().CheckPeer(all.first(body_bytes), all.subspan(body_bytes)));
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
  loops_.resize(welcome_.lanes);
  greetings_.resize(welcome_.lanes);
  for (std::size_t i = 1; i < loops_.size(); ++i) ConnectLaneOnLoop(i);
  OnJoined();
  return Ok();
}

void Dialer::OnJoined() {
  ++joined_;
  FinishIfReady();
}

// An answer may come before the lane has reported that what it answers has left.
void Dialer::FinishIfReady() {
  if (done() || joined_ < loops_.size()) return;
  for (const auto& greeting : greetings_) {
    if (!greeting || !greeting->complete()) return;
  }
  // Outside the callback of the lane that is about to move.
  home()->Post([self = shared_from_this()] { self->Finish(); });
}

void Dialer::Finish() {
  if (done()) return;  // a lane was lost since
  Uuid peer;
  std::memcpy(peer.bytes.data(), welcome_.endpoint, sizeof welcome_.endpoint);
  std::vector<std::unique_ptr<net::Lane>> lanes;
  const Way dialled{address_, greetings_.front()->interface()};
  for (auto& greeting : greetings_) lanes.push_back(greeting->ReleaseLane());
  Peer agreed;
  agreed.endpoint = peer;
  agreed.name = address_.ToString();
  agreed.window_bytes = std::min(welcome_.window_bytes, endpoint_->config().window_bytes);
  agreed.checksums = (welcome_.flags & wire::kChecksums) != 0;
  agreed.connection = welcome_.connection;
  std::memcpy(agreed.token.bytes.data(), welcome_.token, sizeof welcome_.token);
  connection_ = std::make_shared<ConnectionCore>(endpoint_->config(), &endpoint_->regions(),
                                                 std::move(agreed), loops_);
  connection_->SetKeeper(std::make_unique<LaneKeeper>(
      endpoint_.get(), connection_.get(),
      WaysTo(endpoint_->provider(), endpoint_->config(), dialled, others_)));
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
