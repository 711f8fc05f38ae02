// Output of the tools: rows of `ferry perf`, messages and progress.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "tools/support/command.h"
#include "tools/support/json_fwd.h"

namespace ferry::tools {

// The median; for an even count the mean of the two middle values. `values` must not be empty.
double Median(std::vector<double> values);
// The smallest value that at least `share` (0 to 1) of the values do not exceed. `values` must not
// be empty.
double Percentile(std::vector<double> values, double share);

// One line of `ferry perf`. Rates are in units of 1e9 bytes per second. Absent: not measured.
struct PerfRow {
  std::string op;
  std::string memory = "host";
  std::string provider;
  std::uint64_t size = 0;
  std::uint64_t block_size = 0;
  std::uint64_t lanes = 0;
  std::uint64_t iterations = 0;  // in each round
  std::uint64_t depth = 1;
  std::string wait;
  std::string congestion_control;  // with the reason
  std::string security = "none";   // of the lanes: TLS's version, cipher and proof
  std::string path = "network";    // that the bytes went: transfer::PathName()
  std::string path_reason;

  // Medians over the rounds, but for the percentiles, which are of all operations.
  double seconds_avg = 0;
  double seconds_p50 = 0;
  double seconds_p99 = 0;
  double gbps = 0;
  double ops_per_second = 0;
  double cpu_seconds_per_gb = 0;  // of both processes
  std::optional<double> floor_gbps;
  std::optional<double> floor_cpu_seconds_per_gb;
  std::optional<bool> verified;
  std::uint64_t verified_operations = 0;  // of those that were timed
  std::string wrong;                      // what was found first where they were not right
  // For GPU memory: best rate of one plain copy of the same bytes from, and to, pinned memory.
  std::optional<double> h2d_gbps;
  std::optional<double> d2h_gbps;
  // With a CRC32C for every slice, measured in alternation with rounds without.
  std::optional<double> crc_gbps;
  std::optional<double> crc_cpu_seconds_per_gb;

  // Through a plugin: LaunchMicroseconds.
  std::optional<double> launch_us;
  std::optional<double> longest_launch_us;

  // Half of the round trip time of 8 bytes, in microseconds; for sends only.
  std::optional<double> half_rtt_us_p50;
  std::optional<double> half_rtt_us_p99;
  std::optional<double> floor_half_rtt_us_p50;
  std::optional<double> floor_half_rtt_us_p99;

  struct Round {
    double gbps = 0;
    std::optional<double> floor_gbps;
  };
  std::vector<Round> rounds;
  // Overlap of GPU copies and sockets in one more operation, as seen by this side: the share of the
  // shorter one's time in which both were busy, 0 to 1.
  std::optional<double> overlap;

  // Transport events since the connection was made.
  struct Transport {
    std::map<std::string, std::uint64_t> lanes;  // that are up, by interface
    std::uint64_t retries = 0;
    std::uint64_t lanes_lost = 0;
    std::uint64_t lanes_replaced = 0;
    std::uint64_t lane_stalls = 0;
    std::uint64_t retransmitted_segments = 0;
  };
  Transport transport;
};
Json ToJson(const PerfRow& row);
// "Avg: 6.214 ms, BW: 10.800 GB/s"
std::string AverageText(double seconds, double gbps);
std::string PerfTableHead();
std::string PerfTableLine(const PerfRow& row);
// Empty if there were no such events and one interface was used.
std::string TransportLine(const PerfRow::Transport& transport);

// Writes a line to stdout and flushes it.
void PrintLine(std::string_view text);
// Writes a line to stderr and flushes it.
void PrintNote(std::string_view text);
// One sentence on stderr, and with --json an object on stdout.
void PrintError(const Invocation& invocation, const Error& error);
// Escapes control characters, which a peer may have sent.
std::string Printable(std::string_view text);

// A progress line on a terminal; prints nothing for work that ends within a second, or if stderr is
// not a terminal.
class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void Show(std::string_view text);

 private:
  const bool terminal_;
  Clock::time_point next_;
  bool shown_ = false;
};

// Progress of a transfer: bytes moved, average rate and remaining time at that rate: "512 of 2048
// MiB (25 %), 1.20 GB/s, 2 s left".
std::string ProgressText(std::uint64_t done, std::uint64_t total, double seconds);

// Progress of `total` bytes, timed from construction.
class ByteProgress {
 public:
  explicit ByteProgress(std::uint64_t total) : total_(total) {}
  void Show(std::uint64_t done) {
    progress_.Show(ProgressText(done, total_, Seconds(Clock::now() - begin_)));
  }

 private:
  const std::uint64_t total_;
  const Clock::time_point begin_ = Clock::now();
  Progress progress_;
};

}  // namespace ferry::tools
