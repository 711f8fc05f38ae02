// Facts and measurements of lanes, for logs, reports and counters.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ferry/core/deadline.h"

namespace ferry::net {

// Identifies one TLS connection: both ends compute the same bytes, and no two connections share
// them (RFC 9266, tls-exporter). All zeros without TLS. Not a secret.
using ChannelBinding = std::array<std::byte, 32>;

// Counted by a lane that copies chunks from where its network has left them. Any thread.
struct LaunchCounts {
  std::atomic<std::uint64_t> chunks{0};
  // From the network's report of a chunk until its copy is queued: all chunks, and the longest.
  std::atomic<std::int64_t> nanoseconds{0};
  std::atomic<std::int64_t> longest_nanoseconds{0};
};

// Facts about a lane, for logs and reports. The first four are not empty, and buffer sizes are
// above 0: a provider without interfaces or buffers of the kernel's gives a name or size of its
// own.
struct LaneInfo {
  std::string local;               // "127.0.0.1:5000"
  std::string remote;              // the same form
  std::string interface;           // that the route to the peer uses: "lo", "eth0"
  std::string congestion_control;  // in force, with the reason: "reno (bbr replaced: ...)"
  bool same_machine = false;       // the peer's address is ours; so is that of a proxy here
  std::uint64_t send_buffer_bytes = 0;
  std::uint64_t recv_buffer_bytes = 0;
  bool authenticated = false;     // the provider has authenticated the peer cryptographically
  std::string security = "none";  // "TLSv1.3 TLS_AES_256_GCM_SHA384, certificate CN=node7"
  ChannelBinding channel_binding{};
  // Null for lanes that count none. Shared by the lane and all copies of this.
  std::shared_ptr<const LaunchCounts> launches = nullptr;
};

// What the transport measured on the network path to the peer; for TCP from TCP_INFO (tcp(7)).
struct PathStats {
  bool known = false;  // the rest is 0 otherwise
  microseconds round_trip{0};
  microseconds round_trip_variation{0};
  std::uint64_t congestion_window_bytes = 0;
  std::uint64_t delivery_rate = 0;           // bytes per second, as last measured
  std::uint64_t retransmitted_segments = 0;  // since the lane began
  std::uint64_t acknowledged_bytes = 0;      // since the lane began, by the peer's kernel
};

}  // namespace ferry::net
