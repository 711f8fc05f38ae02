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
#include "ferry/tools/command.h"
#include "ferry/tools/json_fwd.h"

namespace ferry::tools {

// The middle value; of an even number of them, the mean of the middle two. Not of nothing.
double Median(std::vector<double> values);
// The smallest value that at least `share` of them do not exceed. Not of nothing.
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
  // Of GPU memory: one plain copy of the same bytes from pinned memory, and to it, at best.
  std::optional<double> h2d_gbps;
  std::optional<double> d2h_gbps;
  // The same with a CRC32C for every slice, in turn with the rounds without.
  std::optional<double> crc_gbps;
  std::optional<double> crc_cpu_seconds_per_gb;

  // Through a plugin: LaunchMicroseconds.
  std::optional<double> launch_us;
  std::optional<double> longest_launch_us;

  // Half of the round trip of 8 bytes, in microseconds; of sends only.
  std::optional<double> half_rtt_us_p50;
  std::optional<double> half_rtt_us_p99;
  std::optional<double> floor_half_rtt_us_p50;
  std::optional<double> floor_half_rtt_us_p99;

  struct Round {
    double gbps = 0;
    std::optional<double> floor_gbps;
  };
  std::vector<Round> rounds;
  // Of one more operation, as this side saw it: for how much of the shorter's time copies of a GPU
  // and sockets were busy at once; 0 to 1.
  std::optional<double> overlap;

  // What happened on the way, since the connection began.
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
std::string PerfTableHead();
std::string PerfTableLine(const PerfRow& row);
// "" where all went as it should, over one interface.
std::string TransportLine(const PerfRow::Transport& transport);

// To stdout, with a line end, at once.
void PrintLine(std::string_view text);
// Likewise to stderr.
void PrintNote(std::string_view text);
// One sentence on stderr, and with --json an object on stdout.
void PrintError(const Invocation& invocation, const Error& error);
// Without control characters, which a peer may have put in.
std::string Printable(std::string_view text);

// A line on a terminal that says how far a slow thing has come; nothing for what is over within a
// second, or where stderr is no terminal.
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

// How many of a transfer's bytes have been moved, at which rate since it began, and for how long it
// will go on like this: "512 of 2048 MiB (25 %), 1.20 GB/s, 2 s left".
std::string ProgressText(std::uint64_t done, std::uint64_t total, double seconds);

// Progress of so many bytes, from now on.
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
