// Runs one attempt to replace a lane over a given network path.
#include "ferry/transfer/rejoin.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint_core.h"
#include "ferry/transfer/lane_keeper.h"
#include "ferry/transfer/parked_lane.h"

namespace ferry::transfer {
namespace {

// A working path answers within a few round trips; do not wait longer for one that does not.
constexpr auto kPatience = milliseconds(2000);

}  // namespace

std::vector<std::byte> EncodeProgress(const LaneProgress& progress) {
  std::vector<std::byte> bytes;
  wire::Append(&bytes, wire::ResumeBody{progress.finished,
                                        static_cast<std::uint32_t>(progress.refused.size())});
  for (const wire::RefusalOnWire& refusal : progress.refused) wire::Append(&bytes, refusal);
  return bytes;
}

Result<LaneProgress> ParseProgress(wire::MetaReader* reader, const std::string& peer_name) {
  wire::ResumeBody body;
  if (!reader->Read(&body) ||
      reader->rest().size() != std::uint64_t{body.refusals} * sizeof(wire::RefusalOnWire)) {
    return Error(
        Code::kCorrupt,
        fmt::format("{} resumed a lane with a malformed frame; use the same release on both sides",
                    peer_name));
  }
  LaneProgress progress;
  progress.finished = body.finished;
  progress.refused.resize(body.refusals);
  for (wire::RefusalOnWire& refusal : progress.refused) reader->Read(&refusal);
  return progress;
}

Rejoin::Rejoin(EndpointCore* endpoint, ConnectionCore* connection, LaneKeeper* keeper,
               std::uint32_t lane, std::uint32_t attempt)
    : endpoint_(endpoint),
      connection_(connection->shared_from_this()),
      keeper_(keeper),
      lane_(lane),
      attempt_(attempt),
      deadline_(Deadline::After(
          std::min<microseconds>(kPatience, connection->config().handshake_timeout))),
      introduction_(endpoint->secret(), connection->peer_name()) {}

Rejoin::~Rejoin() = default;

void Rejoin::StartOnLoop(const net::Address& to) {
  endpoint_->provider().Connect(
      to, connection_->config(), connection_->home(), deadline_,
      [self = shared_from_this()](auto lane) { self->OnConnected(std::move(lane)); });
}

void Rejoin::CancelOnLoop() {
  keeper_ = nullptr;
  EndOnLoop(std::nullopt);
}

// The lane is checked and authenticated like a first connection: anybody could listen at the
// address.
void Rejoin::OnConnected(Result<std::unique_ptr<net::Lane>> lane) {
  if (keeper_ == nullptr) return;
  if (!lane) return EndOnLoop(lane.error());
  greeting_ = std::make_unique<Greeting>(*std::move(lane), connection_->home(), deadline_);
  // Routes can change during a connection, so the lane is checked again.
  if (auto may = endpoint_->CheckLane(*greeting_, greeting_->peer_name()); !may) {
    return EndOnLoop(may.error());
  }
  greeting_->StartOnLoop(
      [self = shared_from_this()](const auto& header, auto* reader) {
        return self->OnHeard(header, reader);
      },
      [self = shared_from_this()](const Error& error) { self->EndOnLoop(error); });
  greeting_->SetOnSaid([self = shared_from_this()] { self->FinishIfReady(); });
  wire::RejoinBody rejoin;
  rejoin.lane = static_cast<std::uint16_t>(lane_);
  rejoin.connection = connection_->peer().connection;
  rejoin.attempt = attempt_;
  std::memcpy(rejoin.token, connection_->peer().token.bytes.data(), sizeof rejoin.token);
  introduction_.SayFirstOnLoop(greeting_.get(), wire::Type::kRejoin,
                               std::as_bytes(std::span(&rejoin, 1)));
}

Status Rejoin::OnHeard(const wire::MessageHeader& header, wire::MetaReader* reader) {
  if (keeper_ == nullptr) return Ok();
  switch (header.type) {
    case wire::Type::kRefuse: {
      Error refusal = introduction_.Refusal(reader);
      refused_ = refusal.code() == Code::kRefused;
      return refusal;
    }
    case wire::Type::kChallenge:
      return introduction_.AnswerChallengeOnLoop(greeting_.get(), reader);
    case wire::Type::kRejoined:
      if (joined_) break;
      FERRY_TRY(introduction_.CheckPeer({}, reader->rest()));
      joined_ = true;
      greeting_->HearMoreOnLoop();
      FreezeOnLoop();
      return Ok();
    case wire::Type::kResumed: {
      if (!frozen_) break;
      FERRY_TRY_ASSIGN(peer_, ParseProgress(reader, connection_->peer_name()));
      resumed_ = true;
      FinishIfReady();
      return Ok();
    }
    default: break;
  }
  return Error(
      Code::kCorrupt,
      fmt::format(
          "{} answered a rejoining lane with a {} frame; use the same release on both sides",
          connection_->peer_name(), wire::TypeName(header.type)));
}

// The channel lives on its lane's loop, so freezing takes a task there and one back.
void Rejoin::FreezeOnLoop() {
  Channel& channel = connection_->channel(lane_);
  channel.loop()->Post([self = shared_from_this(), &channel] {
    auto progress = channel.FreezeOnLoop(self->attempt_);
    self->connection_->home()->Post(
        [self, progress = std::move(progress)]() mutable { self->OnFrozen(std::move(progress)); });
  });
}

// nullopt: a later attempt or the end of the connection came first.
void Rejoin::OnFrozen(std::optional<LaneProgress> progress) {
  frozen_ = progress.has_value();
  if (keeper_ == nullptr) return;
  if (!frozen_) {
    return EndOnLoop(Error(Code::kCancelled, "the connection has ended"));
  }
  // The new lane may have failed meanwhile.
  if (!greeting_) return EndOnLoop(Error(Code::kPeerLost, "the new lane was lost at once"));
  greeting_->SayOnLoop(wire::Type::kResume, EncodeProgress(*progress));
}

// An answer may arrive before the lane has reported that its request was sent.
void Rejoin::FinishIfReady() {
  if (!resumed_ || !greeting_ || !greeting_->complete()) return;
  // Posted, to leave the callback of the lane that is about to move.
  connection_->home()->Post([self = shared_from_this()] { self->FinishOnLoop(); });
}

// The lane changes loops here: it is parked until the channel's loop attaches it.
void Rejoin::FinishOnLoop() {
  if (keeper_ == nullptr || !greeting_) return;
  Channel& channel = connection_->channel(lane_);
  auto parked = std::make_unique<ParkedLane>(greeting_->ReleaseLane(), channel.loop());
  channel.loop()->Post([self = shared_from_this(), &channel, parked = std::move(parked)]() mutable {
    channel.ReviveOnLoop(self->attempt_, std::move(parked), self->peer_);
  });
  EndOnLoop(std::nullopt);
}

void Rejoin::EndOnLoop(const std::optional<Error>& error) {
  // Posted, because the lane's callbacks keep this object alive and one may be running.
  connection_->home()->Post([greeting = std::move(greeting_)] {});
  greeting_ = nullptr;
  // While the old lane is being frozen, nobody may mistake the success of another attempt for this
  // one's.
  if (error && joined_ && !frozen_) frozen_ = true;
  if (LaneKeeper* const keeper = std::exchange(keeper_, nullptr)) {
    keeper->OnAttemptOverOnLoop(lane_, error, frozen_);
  }
}

}  // namespace ferry::transfer
