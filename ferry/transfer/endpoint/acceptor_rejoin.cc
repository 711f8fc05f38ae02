// The accepting side of a lane that replaces another one.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/transfer/endpoint/acceptor.h"
#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/handshake/parked_lane.h"

// lane/slice_sender.cc describes the whole procedure, above SliceSender::OnLaneDown.
namespace ferry::transfer {

Status Acceptor::OnRejoin(Handshake* handshake, wire::MetaReader* reader) {
  wire::RejoinBody rejoin;
  if (!reader->Read(&rejoin)) return Error(Code::kCorrupt, "malformed rejoin");
  Uuid token;
  std::memcpy(token.bytes.data(), rejoin.token, sizeof rejoin.token);
  // The connection's token is the proof, as in OnJoin(), in addition to that of the secret.
  auto connection = endpoint_->connections().FindAgreed(rejoin.connection, token);
  if (!connection || rejoin.lane >= connection->lanes().size()) {
    return Error(Code::kRefused,
                 fmt::format("there is no connection {} with a lane {} here any more",
                             rejoin.connection, rejoin.lane));
  }
  TurnAwayRival(connection.get(), rejoin.lane);
  rejoining_[handshake->number()] = {std::move(connection), rejoin, {}};
  handshake->AcceptOnLoop(session::wire::Type::kRejoined, {}, /*more=*/true);
  return Ok();
}

// Closes earlier candidates for the same lane. A peer that may replace a lane is authenticated and
// does not count as a pending peer, so the limit here is one per lane.
void Acceptor::TurnAwayRival(const ConnectionCore* connection, std::uint32_t lane) {
  const auto it = std::find_if(rejoining_.begin(), rejoining_.end(), [&](const auto& each) {
    return each.second.connection.get() == connection && each.second.body.lane == lane;
  });
  if (it == rejoining_.end()) return;
  if (Handshake* const rival = pending_peers_.Find(it->first)) pending_peers_.CloseOnLoop(rival);
  rejoining_.erase(it);
}

// The old lane lives on its own loop, and this one may have ended when its progress is known.
Status Acceptor::OnResume(Handshake* handshake, wire::MetaReader* reader) {
  const auto it = rejoining_.find(handshake->number());
  if (it == rejoining_.end()) return Error(Code::kCorrupt, "a resume without a rejoin");
  Rejoining& rejoining = it->second;
  FERRY_TRY_ASSIGN(rejoining.progress, ParseProgress(reader, handshake->peer_name()));
  LaneEngine& lane = rejoining.connection->lanes().lane(rejoining.body.lane);
  lane.loop()->Post([this, number = handshake->number(), connection = rejoining.connection,
                     attempt = rejoining.body.attempt, &lane] {
    auto progress = lane.Freeze(attempt);
    loop_->Post([this, number, progress = std::move(progress)]() mutable {
      OnFrozen(number, std::move(progress));
    });
  });
  return Ok();
}

void Acceptor::OnFrozen(std::uint64_t number, std::optional<LaneProgress> progress) {
  Handshake* const handshake = pending_peers_.Find(number);
  if (handshake == nullptr) return;
  if (progress) {
    return handshake->SendPartOnLoop(session::wire::Type::kResumed, EncodeProgress(*progress));
  }
  handshake->RefuseOnLoop(Error(Code::kUnavailable, "a later lane has replaced this one"));
}

void Acceptor::FinishRejoin(std::uint64_t number) {
  Handshake* const handshake = pending_peers_.Find(number);
  auto node = rejoining_.extract(number);
  if (handshake == nullptr || node.empty()) return;
  Rejoining& rejoining = node.mapped();
  LaneEngine& lane = rejoining.connection->lanes().lane(rejoining.body.lane);
  auto parked = std::make_unique<ParkedLane>(pending_peers_.TakeOnLoop(handshake), lane.loop());
  lane.loop()->Post([connection = rejoining.connection, &lane, parked = std::move(parked),
                     attempt = rejoining.body.attempt,
                     progress = std::move(rejoining.progress)]() mutable {
    lane.Revive(attempt, std::move(parked), progress);
  });
}

}  // namespace ferry::transfer
