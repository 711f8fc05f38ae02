// Builds the Prometheus metric families from a counter snapshot.
#include "ferry/transfer/stats/metrics_families.h"

#ifdef FERRY_HAVE_PROMETHEUS
#include <prometheus/metric_family.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "ferry/transfer/stats/counter_aggregator.h"

namespace ferry::transfer {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Family {
 public:
  Family(MetricType type, std::string name, std::string help) {
    family_.type = type;
    family_.name = std::move(name);
    family_.help = std::move(help);
  }
  void Add(double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family_.metric.push_back(std::move(metric));
  }
  void Add(std::uint64_t value, Labels labels = {}) {
    Add(static_cast<double>(value), std::move(labels));
  }
  MetricFamily Take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

// ---- of the endpoint ----------------------------------------------------------------------------

struct EndpointRow {
  MetricType type;
  const char* name;
  const char* help;
  std::uint64_t EndpointCounters::*value;
};
constexpr EndpointRow kEndpointRows[] = {
    {MetricType::Gauge, "ferry_connections", "Connections that are open.",
     &EndpointCounters::connections_open},
    {MetricType::Counter, "ferry_connections_accepted_total", "Connections that peers have dialed.",
     &EndpointCounters::connections_accepted},
    {MetricType::Counter, "ferry_connections_dialled_total",
     "Connections that this side has dialed.", &EndpointCounters::connections_dialled},
    {MetricType::Counter, "ferry_connections_lost_total",
     "Connections that ended for any reason but this side's request.",
     &EndpointCounters::connections_lost},
    {MetricType::Counter, "ferry_handshakes_refused_total", "Pending peers that were refused.",
     &EndpointCounters::handshakes_refused},
    {MetricType::Gauge, "ferry_regions",
     "Registered regions, with buffers of large messages in flight.", &EndpointCounters::regions},
    {MetricType::Gauge, "ferry_peer_memory_bytes",
     "Bytes that peers make the endpoint hold (FERRY_PEER_MEMORY_TOTAL).",
     &EndpointCounters::held_bytes},
    {MetricType::Gauge, "ferry_region_bytes", "Bytes of these regions.",
     &EndpointCounters::region_bytes},
};

// ---- of peers and lanes -------------------------------------------------------------------------

struct LaneRow {
  const char* name;
  const char* help;
  std::uint64_t LaneTraffic::*value;
};
constexpr LaneRow kLaneRows[] = {
    {"ferry_bytes_sent_total", "Bytes of frames sent, metadata and payload.",
     &LaneTraffic::bytes_sent},
    {"ferry_bytes_received_total", "Bytes of frames received, metadata and payload.",
     &LaneTraffic::bytes_received},
    {"ferry_frames_sent_total", "Frames sent.", &LaneTraffic::frames_sent},
    {"ferry_frames_received_total", "Frames received.", &LaneTraffic::frames_received},
    {"ferry_payload_bytes_sent_total", "Bytes of payload sent, including resends.",
     &LaneTraffic::payload_bytes_sent},
    {"ferry_payload_bytes_received_total", "Bytes of payload put in their places.",
     &LaneTraffic::payload_bytes_received},
    {"ferry_retries_total", "Slices and messages sent or requested again.", &LaneTraffic::retries},
    {"ferry_tcp_retransmitted_segments_total", "TCP segments that the kernel has retransmitted.",
     &LaneTraffic::retransmitted_segments},
};

struct PeerRow {
  const char* name;
  const char* help;
  std::uint64_t TrafficCounters::*value;
};
constexpr PeerRow kPeerRows[] = {
    {"ferry_lanes_lost_total", "Lanes that the network has dropped.", &TrafficCounters::lanes_lost},
    {"ferry_lanes_replaced_total", "Lanes that were replaced.", &TrafficCounters::lanes_replaced},
    {"ferry_lane_stalls_total", "Times that a lane was silent for lane_timeout.",
     &TrafficCounters::lane_stalls},
    {"ferry_refused_accesses_total", "Accesses of peers that were refused.",
     &TrafficCounters::refused_accesses},
    {"ferry_checksum_mismatches_total", "Payloads whose checksum was wrong.",
     &TrafficCounters::checksum_mismatches},
};

void AddOperations(const EndpointCounters& counters, std::vector<MetricFamily>* families) {
  Family begun(MetricType::Counter, "ferry_operations_begun_total", "Operations begun.");
  Family ended(MetricType::Counter, "ferry_operations_ended_total",
               "Operations ended, by outcome: ok or the error's code.");
  for (const PeerCounters& peer : counters.peers) {
    for (std::size_t i = 0; i < kOperationKinds; ++i) {
      const OperationCounts& counts = peer.traffic.operations[i];
      const Labels labels{{"peer", peer.host},
                          {"kind", OperationName(static_cast<OperationKind>(i))}};
      begun.Add(counts.begun, labels);
      for (std::size_t outcome = 0; outcome < kOutcomes; ++outcome) {
        // Outcome 0 is ok and always there; errors that never occurred would only be rows of zeros.
        if (outcome != 0 && counts.ended[outcome] == 0) continue;
        Labels all = labels;
        all.push_back({"outcome", OutcomeName(outcome)});
        ended.Add(counts.ended[outcome], std::move(all));
      }
    }
  }
  families->push_back(begun.Take());
  families->push_back(ended.Take());
}

void AddTraffic(const EndpointCounters& counters, std::vector<MetricFamily>* families) {
  for (const LaneRow& row : kLaneRows) {
    Family family(MetricType::Counter, row.name, row.help);
    for (const PeerCounters& peer : counters.peers) {
      for (std::size_t i = 0; i < peer.lanes.size(); ++i) {
        family.Add(peer.lanes[i].*row.value, {{"peer", peer.host}, {"lane", std::to_string(i)}});
      }
    }
    families->push_back(family.Take());
  }
  for (const PeerRow& row : kPeerRows) {
    Family family(MetricType::Counter, row.name, row.help);
    for (const PeerCounters& peer : counters.peers) {
      family.Add(peer.traffic.*row.value, {{"peer", peer.host}});
    }
    families->push_back(family.Take());
  }
}

// ---- of lanes that are up -----------------------------------------------------------------------

// All lanes to one host over one interface.
struct Way {
  std::uint64_t lanes = 0;
  std::uint64_t rate = 0;
  std::uint64_t delivery_rate = 0;
  std::uint64_t window_bytes = 0;
  microseconds round_trip{0};  // the longest
};

void AddWays(const EndpointCounters& counters, std::vector<MetricFamily>* families) {
  std::map<std::pair<std::string, std::string>, Way> ways;  // by host and interface
  for (const ConnectionCounters& connection : counters.connections) {
    std::string host = CounterAggregator::HostOf(connection.peer);
    const bool known = std::any_of(counters.peers.begin(), counters.peers.end(),
                                   [&](const PeerCounters& peer) { return peer.host == host; });
    // As CounterAggregator::PlaceOf() counts it.
    if (!known) host = "other";
    for (const LaneCounters& lane : connection.lanes) {
      if (!lane.up) continue;
      Way& way = ways[{host, lane.info.interface}];
      ++way.lanes;
      way.rate += lane.rate;
      way.delivery_rate += lane.path.delivery_rate;
      way.window_bytes += lane.path.congestion_window_bytes;
      way.round_trip = std::max(way.round_trip, lane.path.round_trip);
    }
  }
  Family lanes(MetricType::Gauge, "ferry_lanes", "Lanes that are up.");
  Family rate(MetricType::Gauge, "ferry_lane_rate_bytes_per_second",
              "Throughput of the lanes when they were last busy, summed.");
  Family delivery(MetricType::Gauge, "ferry_tcp_delivery_rate_bytes_per_second",
                  "TCP's own estimate for the lanes, summed.");
  Family window(MetricType::Gauge, "ferry_tcp_congestion_window_bytes",
                "Congestion windows of the lanes, summed.");
  Family round_trip(MetricType::Gauge, "ferry_tcp_round_trip_seconds",
                    "The longest smoothed round trip of the lanes.");
  for (const auto& [key, way] : ways) {
    const Labels labels{{"peer", key.first}, {"interface", key.second}};
    lanes.Add(way.lanes, labels);
    rate.Add(way.rate, labels);
    delivery.Add(way.delivery_rate, labels);
    window.Add(way.window_bytes, labels);
    round_trip.Add(Seconds(way.round_trip), labels);
  }
  for (Family* family : {&lanes, &rate, &delivery, &window, &round_trip}) {
    families->push_back(family->Take());
  }
}

}  // namespace

std::vector<MetricFamily> FamiliesOf(const EndpointCounters& counters) {
  std::vector<MetricFamily> families;
  for (const EndpointRow& row : kEndpointRows) {
    Family family(row.type, row.name, row.help);
    family.Add(counters.*row.value);
    families.push_back(family.Take());
  }
  AddOperations(counters, &families);
  AddTraffic(counters, &families);
  AddWays(counters, &families);
  return families;
}

}  // namespace ferry::transfer
#endif
