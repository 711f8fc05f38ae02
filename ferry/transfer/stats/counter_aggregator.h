// Counters of ended connections, kept so that an endpoint's totals never decrease.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/transfer/counters.h"

namespace ferry::transfer {

// What an endpoint remembers of connections that have ended, so that its counts never go back. Not
// safe by itself: whoever has it locks. Memory is bounded by kMaxPeers, whoever connects.
class CounterAggregator {
 public:
  // Before it is looked at: its host gets its place.
  void OnBegin(std::string_view peer_name, bool from_outside);
  // Once, when it has ended and no longer counts; it must not be among `open` again. `was_lost`: it
  // ended otherwise than by this side's wish.
  void OnEnd(const ConnectionCounters& connection, bool was_lost);

  // With the connections that have begun and not ended, `lost` of which were lost already. Fills in
  // all but regions and handshakes.
  EndpointCounters Snapshot(std::vector<ConnectionCounters> open, std::uint64_t lost) const;

  // Returns the host: "10.0.0.1" for "10.0.0.1:7471", "::1" for "[::1]:7471".
  static std::string HostOf(std::string_view peer_name);

 private:
  struct Peer {
    TrafficCounters traffic;
    std::vector<LaneTraffic> lanes;
    std::uint64_t open = 0;
  };
  using Peers = std::map<std::string, Peer, std::less<>>;
  static Peer& PlaceOf(std::string_view peer_name, Peers* peers);
  static void AddTo(const ConnectionCounters& connection, Peer* peer);

  Peers peers_;  // by host; entries stay while a connection of the host is open
  std::uint64_t accepted_ = 0;
  std::uint64_t dialled_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace ferry::transfer
