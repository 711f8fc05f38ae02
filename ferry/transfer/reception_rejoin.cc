// Server handshake of a lane that replaces another one.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint_core.h"
#include "ferry/transfer/parked_lane.h"
#include "ferry/transfer/reception.h"

// The accepting side of a lane replacement; channel_rejoin.cc describes the whole procedure.
namespace ferry::transfer {

Reception::Stranger* Reception::Find(Greeting* greeting, std::uint64_t number) {
  const auto it = greetings_.find(greeting);
  return it == greetings_.end() || it->second.number != number ? nullptr : &it->second;
}

Status Reception::OnRejoin(Greeting* greeting, wire::MetaReader* reader) {
  wire::RejoinBody rejoin;
  if (!reader->Read(&rejoin) || !reader->rest().empty()) {
    return Error(Code::kCorrupt, "malformed rejoin");
  }
  Uuid token;
  std::memcpy(token.bytes.data(), rejoin.token, sizeof rejoin.token);
  auto connection = endpoint_->FindConnection(rejoin.connection, token);
  if (!connection || rejoin.lane >= connection->lanes()) {
    return Error(Code::kRefused,
                 fmt::format("there is no connection {} with a lane {} here any more",
                             rejoin.connection, rejoin.lane));
  }
  TurnAwayRival(connection.get(), rejoin.lane);
  Stranger& stranger = greetings_.at(greeting);
  stranger.rejoins = std::move(connection);
  stranger.rejoin = rejoin;
  greeting->HearMoreOnLoop();
  SayProven(greeting, wire::Type::kRejoined, {});
  return Ok();
}

// Closes earlier candidates for the same lane. A peer that may replace a lane is authenticated and
// does not count as a pending peer, so the limit here is one per lane.
void Reception::TurnAwayRival(const ConnectionCore* connection, std::uint32_t lane) {
  const auto it = std::find_if(greetings_.begin(), greetings_.end(), [&](const auto& each) {
    return each.second.rejoins.get() == connection && each.second.rejoin.lane == lane;
  });
  if (it == greetings_.end()) return;
  Greeting* const rival = it->first;
  rival->CloseOnLoop();
  Drop(rival);
}

Status Reception::OnResume(Greeting* greeting, wire::MetaReader* reader) {
  Stranger& stranger = greetings_.at(greeting);
  FERRY_TRY_ASSIGN(stranger.progress, ParseProgress(reader, greeting->peer_name()));
  MoveTo(&stranger, State::kFreezing);
  Channel& channel = stranger.rejoins->channel(stranger.rejoin.lane);
  channel.loop()->Post([this, greeting, number = stranger.number, connection = stranger.rejoins,
                        attempt = stranger.rejoin.attempt, &channel] {
    auto progress = channel.FreezeOnLoop(attempt);
    loop_->Post([this, greeting, number, progress = std::move(progress)]() mutable {
      OnFrozen(greeting, number, std::move(progress));
    });
  });
  return Ok();
}

void Reception::OnFrozen(Greeting* greeting, std::uint64_t number,
                         std::optional<LaneProgress> progress) {
  Stranger* const stranger = Find(greeting, number);
  if (stranger == nullptr) return;
  if (!progress) {
    return Refuse(greeting, Error(Code::kUnavailable, "a later lane has replaced this one"));
  }
  MoveTo(stranger, State::kMoving);
  greeting->SetOnSaid(
      [this, greeting, number] { loop_->Post([=, this] { FinishRejoin(greeting, number); }); });
  greeting->SayOnLoop(wire::Type::kResumed, EncodeProgress(*progress));
}

void Reception::FinishRejoin(Greeting* greeting, std::uint64_t number) {
  Stranger* const stranger = Find(greeting, number);
  if (stranger == nullptr) return;
  Channel& channel = stranger->rejoins->channel(stranger->rejoin.lane);
  auto parked = std::make_unique<ParkedLane>(greeting->ReleaseLane(), channel.loop());
  channel.loop()->Post([connection = stranger->rejoins, &channel, parked = std::move(parked),
                        attempt = stranger->rejoin.attempt,
                        progress = std::move(stranger->progress)]() mutable {
    channel.ReviveOnLoop(attempt, std::move(parked), progress);
  });
  by_number_.erase(number);
  greetings_.erase(greeting);
}

}  // namespace ferry::transfer
