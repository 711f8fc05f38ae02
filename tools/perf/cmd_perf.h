// Jobs of `ferry perf` and the control messages between its client and server.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/transfer/connection.h"
#include "tools/perf/case.h"
#include "tools/perf/memory.h"

namespace ferry::tools {

// The job of `ferry perf client`, from its command line.
struct PerfJob {
  std::vector<PerfCase> cases;
  Config config;
  std::uint64_t iterations = 0;  // in a round; 0: for about half a second
  std::uint64_t warmup = 2;
  std::uint64_t depth = 1;
  std::uint64_t rounds = 5;
  bool verify = true;
  bool floor = true;
  bool crc = false;  // measures with checksums beside without
  bool json = false;
  std::string trace;  // a file for the timeline of one more operation of each case; empty: none
  microseconds deadline = std::chrono::seconds(60);  // for each case
  MemoryChoice memory;
  MemoryChoice peer_memory;
};

// How long a chunk waits for the receiver's CPU: from the plugin's report of its arrival until its
// copy is queued, over all chunks of the connection's lanes.
struct LaunchMicroseconds {
  double average = 0;
  double longest = 0;
};
// Counts what has come to this side; none where the connection has no lanes over a plugin, or
// nothing has come over them.
std::optional<LaunchMicroseconds> LaunchesOf(const transfer::Connection& connection);

// A timed part: some operations.
struct Sample {
  double seconds = 0;
  double cpu_seconds = 0;                                   // of both processes
  std::optional<LaunchMicroseconds> launch = std::nullopt;  // through a plugin
};

// Measures every case against the server at "host:port" and prints a row for each.
Status RunPerfClient(const PerfJob& job, const std::string& address);

struct PerfServerJob {
  Config config;
  MemoryChoice gpu;     // that a plugin's lanes are for; host: the first
  Config floor_config;  // with the ports that the floor may take
  bool json = false;
};
// Serves clients, one after another, until interrupted.
Status RunPerfServer(const PerfServerJob& job);

// The requests of a client: the value of "do" in its messages, the fields that accompany it, and ->
// the fields of the answer. The server answers each with one message; for those marked * it first
// sends "ready": true.
namespace perf_request {
inline constexpr const char* kSetUp =
    "set up";  // op, size, block_size, slots, marks, seconds, memory -> key
inline constexpr const char* kBegin = "begin";  // *
inline constexpr const char* kEnd =
    "end";  // -> cpu_seconds since kBegin (launch_us, longest_launch_us)
inline constexpr const char* kReceive = "receive";  // * count, depth, marks -> as kEnd
inline constexpr const char* kPong = "pong";        // * count
inline constexpr const char* kFill = "fill";        // slot, seed
inline constexpr const char* kPoison = "poison";
inline constexpr const char* kCheck = "check";    // slot, seed -> (wrong_at)
inline constexpr const char* kResult = "result";  // seconds_avg, gbps, for people at the server
inline constexpr const char* kFloorOpen =
    "floor open";  // sockets, congestion_control -> port, token
inline constexpr const char* kFloorRun =
    "floor run";  // * to_server, count, depth, chunk -> cpu_seconds
inline constexpr const char* kFloorPong = "floor pong";  // * count, spin
}  // namespace perf_request

inline constexpr std::uint64_t kMaxDepth = 65536;

inline constexpr std::uint64_t kDataTag = 2;
inline constexpr std::uint64_t kPingTag = 3;
inline constexpr std::uint64_t kPongTag = 4;
inline constexpr std::size_t kPingBytes = 8;

// The settings of the floor's sockets: `config` with the congestion control that a lane reports.
Config FloorConfig(const Config& config, const std::string& congestion_control);

}  // namespace ferry::tools
