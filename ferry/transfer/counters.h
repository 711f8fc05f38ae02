// Counter snapshots of lanes, connections, peers and endpoints.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/lane_info.h"
#include "ferry/transfer/operation_kind.h"

// Counters of an endpoint and its connections. Snapshots are plain data. Each number was correct at
// some moment during the snapshot, not all at the same moment. Counters of a connection only
// increase; those of an endpoint and of a peer keep the totals of ended connections.
namespace ferry::transfer {

// Counters of the slots between one GPU's memory and the network, one way.
struct StagerCounters {
  std::uint64_t launches = 0;  // of kernels that copy, so far
  std::uint64_t slots = 0;     // that they copied
  std::uint64_t bytes = 0;     // that they copied
  std::uint64_t free = 0;      // slots that nobody has now
  std::uint64_t waiting = 0;   // who would have one, now
};

// Counters of one GPU whose memory is used. When all connections have ended all its slots are free.
struct StagingCounters {
  int ordinal = -1;
  std::uint64_t slots = 0;  // for each way
  StagerCounters to_network;
  StagerCounters from_network;
};

// One thing that happened to a connection.
struct ConnectionEvent {
  std::chrono::system_clock::time_point at;
  Clock::time_point when;  // the same moment, for ages
  std::string text;        // "lane 2 was lost: ..."; at most 160 bytes, without its end
};

inline constexpr std::size_t kOperationKinds = 5;  // OperationKind
inline constexpr std::size_t kOutcomes = 11;       // 0: ok; else a Code

// A counter with one writer thread at a time (a loop) and any number of readers. Incrementing costs
// as much as for a plain variable: no locked instruction.
class LoopCounter {
 public:
  void Add(std::uint64_t n = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Traffic of one lane, including all lanes it replaced.
struct LaneTraffic {
  // Metadata and payload, in bytes, of frames sent or received completely, without overhead of the
  // provider and the layers below.
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  // Payload part of those bytes. Sent: includes resends. Received: what was put in place, without
  // refused payloads.
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t payload_bytes_received = 0;
  std::uint64_t retries = 0;                 // slices and messages sent or requested again
  std::uint64_t retransmitted_segments = 0;  // TCP retransmits, as of the last heartbeat

  LaneTraffic& operator+=(const LaneTraffic& other) noexcept;
};

struct OperationCounts {
  std::uint64_t begun = 0;
  std::array<std::uint64_t, kOutcomes> ended{};  // by outcome, see OutcomeOf()
};

// Traffic of one connection, or the sum over several.
struct TrafficCounters {
  std::array<OperationCounts, kOperationKinds> operations;  // by OperationKind
  LaneTraffic lanes;                                        // sum over all lanes
  std::uint64_t lanes_lost = 0;                             // dropped by the network
  std::uint64_t lanes_replaced = 0;       // after a loss, or for a better network path
  std::uint64_t lane_stalls = 0;          // times that a lane was silent for config.lane_timeout
  std::uint64_t refused_accesses = 0;     // accesses of the peer that our checks refused
  std::uint64_t checksum_mismatches = 0;  // in received frames

  const OperationCounts& of(OperationKind kind) const noexcept {
    return operations[static_cast<std::size_t>(kind)];
  }
  TrafficCounters& operator+=(const TrafficCounters& other) noexcept;
};

struct LaneCounters {
  net::LaneInfo info;  // as of its first or latest lane
  bool up = false;
  LaneTraffic traffic;
  std::uint64_t rate = 0;  // bytes per second while busy; 0: not measured yet
  net::PathStats path;     // as of the last heartbeat
};

struct ConnectionCounters {
  std::string peer;      // address of the peer
  std::string endpoint;  // the peer's id
  bool called = false;   // this side dialed
  bool lost = false;
  // Held for the peer now, with the buffers of its lanes (config.peer_memory).
  std::uint64_t held_bytes = 0;
  TrafficCounters traffic;
  std::vector<LaneCounters> lanes;  // by number
};

// Totals of all connections to one host.
struct PeerCounters {
  std::string host;  // "other": those that came after the first kMaxPeers hosts
  std::uint64_t open_connections = 0;
  TrafficCounters traffic;
  std::vector<LaneTraffic> lanes;  // by number
};
inline constexpr std::size_t kMaxPeers = 256;

struct EndpointCounters {
  std::uint64_t connections_open = 0;
  std::uint64_t connections_accepted = 0;
  std::uint64_t connections_dialled = 0;
  std::uint64_t connections_lost = 0;    // ended for any reason but this side's request
  std::uint64_t handshakes_refused = 0;  // refused handshakes, counted per lane
  std::uint64_t regions = 0;             // registered, with buffers of large messages in flight
  std::uint64_t region_bytes = 0;        // bytes of those; overlaps count twice
  // For all peers together now, without the buffers of lanes (config.peer_memory_total).
  std::uint64_t held_bytes = 0;
  TrafficCounters traffic;                      // all connections so far
  std::vector<StagingCounters> staging;         // per GPU in use, by ordinal
  std::vector<PeerCounters> peers;              // by host
  std::vector<ConnectionCounters> connections;  // open ones
};

// "ok", or the name of the Code.
const char* OutcomeName(std::size_t outcome) noexcept;
// Index of a status in OperationCounts::ended.
std::size_t OutcomeOf(const Status& status) noexcept;

}  // namespace ferry::transfer
