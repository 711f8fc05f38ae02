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
#include "ferry/net/provider.h"
#include "ferry/transfer/operation_kind.h"

// What has happened, in numbers. Snapshots are plain data: each number in them was right at some
// moment while the snapshot was taken, but not all at the same one. Counts of a connection only
// grow; those of an endpoint and of a peer go on when connections end.
namespace ferry::transfer {

// Of the slots between one GPU's memory and the network, one way.
struct StagerCounters {
  std::uint64_t launches = 0;  // of kernels that copy, so far
  std::uint64_t slots = 0;     // that they copied
  std::uint64_t bytes = 0;     // likewise
  std::uint64_t free = 0;      // slots that nobody has now
  std::uint64_t waiting = 0;   // who would have one, now
};

// Of one GPU whose memory is used. When all connections have ended all its slots are free.
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

// Grows by its owner's hand, one thread at a time (a loop); read by any. Costs what a plain
// variable does: no locked instruction.
class LoopCounter {
 public:
  void Add(std::uint64_t n = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Of one lane, over all that have taken the place of each other.
struct LaneTraffic {
  // Metadata and payload of frames that have left whole, or come whole; without what the provider
  // and the layers below put around them.
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  // Of these bytes the payload: sent, with what was sent again; received into its place, without
  // what was refused.
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t payload_bytes_received = 0;
  std::uint64_t retries = 0;                 // slices and messages sent, or asked for, again
  std::uint64_t retransmitted_segments = 0;  // by the kernel, as of the last heartbeat

  LaneTraffic& operator+=(const LaneTraffic& other) noexcept;
};

struct OperationCounts {
  std::uint64_t begun = 0;
  std::array<std::uint64_t, kOutcomes> ended{};  // by outcome
};

// Of a connection, or of several together.
struct TrafficCounters {
  std::array<OperationCounts, kOperationKinds> operations;  // by OperationKind
  LaneTraffic lanes;                                        // of all together
  std::uint64_t lanes_lost = 0;                             // to the network
  std::uint64_t lanes_replaced = 0;       // by others, after a loss or for a better way
  std::uint64_t lane_stalls = 0;          // times that a lane was silent for config.lane_timeout
  std::uint64_t refused_accesses = 0;     // of the peer, by our checks
  std::uint64_t checksum_mismatches = 0;  // in what came

  const OperationCounts& of(OperationKind kind) const noexcept {
    return operations[static_cast<std::size_t>(kind)];
  }
  TrafficCounters& operator+=(const TrafficCounters& other) noexcept;
};

struct LaneCounters {
  net::LaneInfo info;  // as it began, or came up last
  bool up = false;
  LaneTraffic traffic;
  std::uint64_t rate = 0;  // bytes per second, as measured while it was busy; 0: not yet
  net::PathStats path;     // as of the last heartbeat
};

struct ConnectionCounters {
  std::string peer;      // address
  std::string endpoint;  // the peer's id
  bool called = false;   // this side has connected
  bool lost = false;
  std::uint64_t held_bytes = 0;  // that the peer makes this side hold now (config.peer_memory)
  TrafficCounters traffic;
  std::vector<LaneCounters> lanes;  // by number
};

// All connections that there have been to one host.
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
  std::uint64_t connections_lost = 0;   // all that ended otherwise than by this side's wish
  std::uint64_t greetings_refused = 0;  // that wished to connect, lane by lane, and were not let in
  std::uint64_t regions = 0;            // registered, with buffers of large messages under way
  std::uint64_t region_bytes = 0;       // of these; what two of them share counts twice
  std::uint64_t held_bytes = 0;         // for all peers together now (config.peer_memory_total)
  TrafficCounters traffic;              // of all connections there have been
  std::vector<StagingCounters> staging;         // of GPUs whose memory is used, by ordinal
  std::vector<PeerCounters> peers;              // by host
  std::vector<ConnectionCounters> connections;  // those open
};

// "ok", or the code's name.
const char* OutcomeName(std::size_t outcome) noexcept;
// The place of a status in OperationCounts::ended.
std::size_t OutcomeOf(const Status& status) noexcept;

}  // namespace ferry::transfer
