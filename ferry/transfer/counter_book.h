// Counters of ended connections, kept so that an endpoint's totals never decrease.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/transfer/counters.h"

namespace ferry::transfer {

class ConnectionCore;

// Accumulates the counters of connections that have ended, so that an endpoint's totals never
// decrease. Not thread-safe: the owner locks. Memory is bounded by kMaxPeers hosts.
class CounterBook {
 public:
  // Reserves an entry for the connection's host. Call before the connection is included in
  // Snapshot().
  void OnBegin(const ConnectionCore& connection, bool from_outside);
  // Call once, when the connection has ended and its counters no longer change; it must not be
  // passed to Snapshot() again.
  void OnEnd(const ConnectionCore& connection);

  // `open`: connections that have begun and not ended. Fills in all fields except regions and
  // refused handshakes.
  EndpointCounters Snapshot(const std::vector<const ConnectionCore*>& open) const;

  // Returns the host: "10.0.0.1" for "10.0.0.1:7471", "::1" for "[::1]:7471".
  static std::string HostOf(std::string_view peer_name);

 private:
  struct Peer {
    TrafficCounters traffic;
    std::vector<LaneTraffic> lanes;
    std::uint64_t open = 0;
  };
  using Peers = std::map<std::string, Peer, std::less<>>;
  static Peer& PlaceOf(const ConnectionCore& connection, Peers* peers);
  static void AddTo(const ConnectionCore& connection, Peer* peer);

  Peers peers_;  // by host; entries stay while a connection of the host is open
  std::uint64_t accepted_ = 0;
  std::uint64_t dialled_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace ferry::transfer
