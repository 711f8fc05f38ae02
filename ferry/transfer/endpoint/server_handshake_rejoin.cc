// Server handshake of a lane that replaces another one.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/endpoint/server_handshake.h"
#include "ferry/transfer/handshake/parked_lane.h"

// The accepting side of a lane replacement; slice_sender_recovery.cc describes the whole procedure.
namespace ferry::transfer {

ServerHandshake::PendingPeer* ServerHandshake::Find(HelloExchange* hello_exchange,
                                                    std::uint64_t number) {
  const auto it = hello_exchanges_.find(hello_exchange);
  return it == hello_exchanges_.end() || it->second.number != number ? nullptr : &it->second;
}

Status ServerHandshake::OnRejoin(HelloExchange* hello_exchange, wire::MetaReader* reader) {
  wire::RejoinBody rejoin;
  if (!reader->Read(&rejoin) || !reader->rest().empty()) {
    return Error(Code::kCorrupt, "malformed rejoin");
  }
  Uuid token;
  std::memcpy(token.bytes.data(), rejoin.token, sizeof rejoin.token);
  // The connection's token is the proof, as in OnJoin(), in addition to that of the secret.
  auto connection = endpoint_->connections().FindAgreed(rejoin.connection, token);
  if (!connection || rejoin.lane >= connection->lanes()) {
    return Error(Code::kRefused,
                 fmt::format("there is no connection {} with a lane {} here any more",
                             rejoin.connection, rejoin.lane));
  }
  TurnAwayRival(connection.get(), rejoin.lane);
  PendingPeer& pending_peer = hello_exchanges_.at(hello_exchange);
  pending_peer.rejoins = std::move(connection);
  pending_peer.rejoin = rejoin;
  hello_exchange->HearMoreOnLoop();
  SayProven(hello_exchange, wire::Type::kRejoined, {});
  return Ok();
}

// Closes earlier candidates for the same lane. A peer that may replace a lane is authenticated and
// does not count as a pending peer, so the limit here is one per lane.
void ServerHandshake::TurnAwayRival(const ConnectionCore* connection, std::uint32_t lane) {
  const auto it =
      std::find_if(hello_exchanges_.begin(), hello_exchanges_.end(), [&](const auto& each) {
        return each.second.rejoins.get() == connection && each.second.rejoin.lane == lane;
      });
  if (it == hello_exchanges_.end()) return;
  HelloExchange* const rival = it->first;
  rival->CloseOnLoop();
  Drop(rival);
}

Status ServerHandshake::OnResume(HelloExchange* hello_exchange, wire::MetaReader* reader) {
  PendingPeer& pending_peer = hello_exchanges_.at(hello_exchange);
  FERRY_TRY_ASSIGN(pending_peer.progress, ParseProgress(reader, hello_exchange->peer_name()));
  MoveTo(&pending_peer, State::kFreezing);
  LaneEngine& lane = pending_peer.rejoins->lane(pending_peer.rejoin.lane);
  // The old lane lives on its own loop. Coming back, the pending peer is looked up by pointer and
  // number (Find()): it may be gone, and another one at the same address.
  lane.loop()->Post([this, hello_exchange, number = pending_peer.number,
                     connection = pending_peer.rejoins, attempt = pending_peer.rejoin.attempt,
                     &lane] {
    auto progress = lane.Freeze(attempt);
    loop_->Post([this, hello_exchange, number, progress = std::move(progress)]() mutable {
      OnFrozen(hello_exchange, number, std::move(progress));
    });
  });
  return Ok();
}

void ServerHandshake::OnFrozen(HelloExchange* hello_exchange, std::uint64_t number,
                               std::optional<LaneProgress> progress) {
  PendingPeer* const pending_peer = Find(hello_exchange, number);
  if (pending_peer == nullptr) return;
  if (!progress) {
    return Refuse(hello_exchange, Error(Code::kUnavailable, "a later lane has replaced this one"));
  }
  MoveTo(pending_peer, State::kMoving);
  hello_exchange->SetOnSaid([this, hello_exchange, number] {
    loop_->Post([=, this] { FinishRejoin(hello_exchange, number); });
  });
  hello_exchange->SayOnLoop(wire::Type::kResumed, EncodeProgress(*progress));
}

void ServerHandshake::FinishRejoin(HelloExchange* hello_exchange, std::uint64_t number) {
  PendingPeer* const pending_peer = Find(hello_exchange, number);
  if (pending_peer == nullptr) return;
  LaneEngine& lane = pending_peer->rejoins->lane(pending_peer->rejoin.lane);
  auto parked = std::make_unique<ParkedLane>(hello_exchange->ReleaseLane(), lane.loop());
  lane.loop()->Post([connection = pending_peer->rejoins, &lane, parked = std::move(parked),
                     attempt = pending_peer->rejoin.attempt,
                     progress = std::move(pending_peer->progress)]() mutable {
    lane.Revive(attempt, std::move(parked), progress);
  });
  by_number_.erase(number);
  hello_exchanges_.erase(hello_exchange);
}

}  // namespace ferry::transfer
