// Accumulates counters of ended connections by host.
#include "ferry/transfer/stats/counter_aggregator.h"

#include <algorithm>
#include <utility>

#include "ferry/net/address.h"

namespace ferry::transfer {
namespace {

constexpr std::string_view kOthers = "other";

}  // namespace

std::string CounterAggregator::HostOf(std::string_view peer_name) {
  const auto address = net::ParseAddress(peer_name, 0);
  return address && !address->host.empty() ? address->host : std::string(peer_name);
}

CounterAggregator::Peer& CounterAggregator::PlaceOf(std::string_view peer_name, Peers* peers) {
  std::string host = HostOf(peer_name);
  const auto found = peers->find(host);
  if (found != peers->end()) return found->second;
  // A bound on memory and on the size of a scrape, which peers with many addresses would drive up.
  if (peers->size() >= kMaxPeers) host = kOthers;
  return (*peers)[std::move(host)];
}

void CounterAggregator::AddTo(const ConnectionCounters& connection, Peer* peer) {
  peer->traffic += connection.traffic;
  peer->lanes.resize(std::max(peer->lanes.size(), connection.lanes.size()));
  for (std::size_t i = 0; i < connection.lanes.size(); ++i) {
    peer->lanes[i] += connection.lanes[i].traffic;
  }
}

void CounterAggregator::OnBegin(std::string_view peer_name, bool from_outside) {
  ++(from_outside ? accepted_ : dialled_);
  (void)PlaceOf(peer_name, &peers_);
}

void CounterAggregator::OnEnd(const ConnectionCounters& connection, bool was_lost) {
  if (was_lost) ++lost_;
  AddTo(connection, &PlaceOf(connection.peer, &peers_));
}

EndpointCounters CounterAggregator::Snapshot(std::vector<ConnectionCounters> open,
                                             std::uint64_t lost) const {
  EndpointCounters counters;
  counters.connections_open = open.size();
  counters.connections_accepted = accepted_;
  counters.connections_dialled = dialled_;
  counters.connections_lost = lost_ + lost;
  // A copy: open connections are added to the totals of ended ones, and counted again next time.
  Peers all = peers_;
  for (const ConnectionCounters& connection : open) {
    Peer& peer = PlaceOf(connection.peer, &all);
    AddTo(connection, &peer);
    ++peer.open;
  }
  counters.connections = std::move(open);
  for (auto& [host, peer] : all) {
    counters.traffic += peer.traffic;
    counters.peers.push_back({host, peer.open, peer.traffic, std::move(peer.lanes)});
  }
  return counters;
}

}  // namespace ferry::transfer
