// Accumulates counters of ended connections by host.
#include "ferry/transfer/counter_book.h"

#include <algorithm>
#include <utility>

#include "ferry/net/address.h"
#include "ferry/transfer/connection_core.h"

namespace ferry::transfer {
namespace {

constexpr std::string_view kOthers = "other";

bool WasLost(const ConnectionCore& connection) {
  return connection.lost() && connection.LostError().code() != Code::kCancelled;
}

}  // namespace

std::string CounterBook::HostOf(std::string_view peer_name) {
  const auto address = net::ParseAddress(peer_name, 0);
  return address && !address->host.empty() ? address->host : std::string(peer_name);
}

CounterBook::Peer& CounterBook::PlaceOf(const ConnectionCore& connection, Peers* peers) {
  std::string host = HostOf(connection.peer_name());
  const auto found = peers->find(host);
  if (found != peers->end()) return found->second;
  if (peers->size() >= kMaxPeers) host = kOthers;
  return (*peers)[std::move(host)];
}

void CounterBook::AddTo(const ConnectionCore& connection, Peer* peer) {
  peer->traffic += connection.Traffic();
  peer->lanes.resize(std::max(peer->lanes.size(), connection.lanes()));
  for (std::size_t i = 0; i < connection.lanes(); ++i) {
    peer->lanes[i] += connection.channel(i).Traffic();
  }
}

void CounterBook::OnBegin(const ConnectionCore& connection, bool from_outside) {
  ++(from_outside ? accepted_ : dialled_);
  (void)PlaceOf(connection, &peers_);
}

void CounterBook::OnEnd(const ConnectionCore& connection) {
  if (WasLost(connection)) ++lost_;
  AddTo(connection, &PlaceOf(connection, &peers_));
}

EndpointCounters CounterBook::Snapshot(const std::vector<const ConnectionCore*>& open) const {
  EndpointCounters counters;
  counters.connections_open = open.size();
  counters.connections_accepted = accepted_;
  counters.connections_dialled = dialled_;
  counters.connections_lost = lost_;
  Peers all = peers_;
  for (const ConnectionCore* connection : open) {
    Peer& peer = PlaceOf(*connection, &all);
    AddTo(*connection, &peer);
    ++peer.open;
    if (WasLost(*connection)) ++counters.connections_lost;
    counters.connections.push_back(connection->Counters());
  }
  for (auto& [host, peer] : all) {
    counters.traffic += peer.traffic;
    counters.peers.push_back({host, peer.open, peer.traffic, std::move(peer.lanes)});
  }
  return counters;
}

}  // namespace ferry::transfer
