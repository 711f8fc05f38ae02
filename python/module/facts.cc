// Converts the library's plain data (connection facts, counters, events) to Python objects.

#include "python/module/facts.h"

#include <chrono>

#include "ferry/core/bytes.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;

nb::str Text(const std::string& text) { return nb::str(text.c_str(), text.size()); }

nb::dict FactsOf(const transfer::OperationCounts& counts) {
  nb::dict facts;
  facts["begun"] = counts.begun;
  for (std::size_t outcome = 0; outcome < transfer::kOutcomes; ++outcome) {
    if (counts.ended.at(outcome) > 0) {
      facts[transfer::OutcomeName(outcome)] = counts.ended.at(outcome);
    }
  }
  return facts;
}

nb::dict FactsOf(const transfer::LaneTraffic& traffic) {
  nb::dict facts;
  facts["bytes_sent"] = traffic.bytes_sent;
  facts["bytes_received"] = traffic.bytes_received;
  facts["payload_bytes_sent"] = traffic.payload_bytes_sent;
  facts["payload_bytes_received"] = traffic.payload_bytes_received;
  facts["retries"] = traffic.retries;
  facts["retransmitted_segments"] = traffic.retransmitted_segments;
  return facts;
}

nb::dict FactsOf(const transfer::TrafficCounters& traffic) {
  nb::dict facts = FactsOf(traffic.lanes);
  nb::dict operations;
  for (std::size_t kind = 0; kind < transfer::kOperationKinds; ++kind) {
    operations[transfer::OperationName(static_cast<transfer::OperationKind>(kind))] =
        FactsOf(traffic.operations.at(kind));
  }
  facts["operations"] = operations;
  facts["lanes_lost"] = traffic.lanes_lost;
  facts["lanes_replaced"] = traffic.lanes_replaced;
  facts["lane_stalls"] = traffic.lane_stalls;
  facts["refused_accesses"] = traffic.refused_accesses;
  facts["checksum_mismatches"] = traffic.checksum_mismatches;
  return facts;
}

nb::dict FactsOf(const net::LaneInfo& lane) {
  nb::dict facts;
  facts["local"] = Text(lane.local);
  facts["remote"] = Text(lane.remote);
  facts["interface"] = Text(lane.interface);
  facts["congestion_control"] = Text(lane.congestion_control);
  facts["same_machine"] = lane.same_machine;
  facts["authenticated"] = lane.authenticated;
  facts["security"] = Text(lane.security);
  return facts;
}

}  // namespace

nb::bytes ToPython(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

std::span<const std::byte> BytesOf(const nb::bytes& bytes) {
  return std::as_bytes(std::span(bytes.c_str(), bytes.size()));
}

nb::dict FactsOf(const transfer::ConnectionInfo& info) {
  nb::dict facts;
  facts["provider"] = Text(info.provider);
  facts["peer"] = Text(info.peer);
  facts["endpoint"] = Text(info.endpoint);
  nb::list lanes;
  for (const net::LaneInfo& lane : info.lanes) lanes.append(FactsOf(lane));
  facts["lanes"] = lanes;
  facts["refused_accesses"] = info.refused_accesses;
  facts["checksums"] = info.checksums;
  return facts;
}

nb::dict FactsOf(const transfer::ConnectionCounters& counters) {
  nb::dict facts = FactsOf(counters.traffic);
  facts["peer"] = Text(counters.peer);
  facts["endpoint"] = Text(counters.endpoint);
  facts["called"] = counters.called;
  facts["lost"] = counters.lost;
  return facts;
}

nb::dict FactsOf(const transfer::EndpointCounters& counters) {
  nb::dict facts = FactsOf(counters.traffic);
  facts["connections_open"] = counters.connections_open;
  facts["connections_accepted"] = counters.connections_accepted;
  facts["connections_dialled"] = counters.connections_dialled;
  facts["connections_lost"] = counters.connections_lost;
  facts["handshakes_refused"] = counters.handshakes_refused;
  facts["regions"] = counters.regions;
  facts["region_bytes"] = counters.region_bytes;
  nb::list connections;
  for (const auto& connection : counters.connections) connections.append(FactsOf(connection));
  facts["connections"] = connections;
  return facts;
}

nb::list FactsOf(const std::vector<transfer::ConnectionEvent>& events) {
  nb::list facts;
  for (const auto& event : events) {
    const std::chrono::duration<double> at = event.at.time_since_epoch();
    facts.append(nb::make_tuple(at.count(), Text(event.text)));
  }
  return facts;
}

}  // namespace ferry::python
