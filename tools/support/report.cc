// Implements tables, JSON rows, messages and progress lines of the tools.

#include "tools/support/report.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ferry/core/units.h"
#include "tools/support/json.h"

namespace ferry::tools {
namespace {

constexpr auto kProgressAfter = std::chrono::seconds(1);
constexpr auto kProgressEvery = milliseconds(100);

// At most 100 characters. What holds for all rows of a run is in the lines above the table; the
// rest of a row is in its JSON.
constexpr const char* kColumns =
    "{:<5} {:>9} {:>7} {:>8} {:>8} {:>7} {:>8} {:>7} {:>5} {:>8} {:>9} {:>8}";

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

std::optional<double> Ratio(double ours, const std::optional<double>& floor) {
  if (!floor || *floor <= 0) return std::nullopt;
  return ours / *floor;
}

std::string Fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }
std::string Fixed(const std::optional<double>& value, int digits) {
  return value ? Fixed(*value, digits) : "-";
}

std::string Milliseconds(double seconds) { return Fixed(seconds * 1e3, seconds < 1 ? 3 : 1); }

std::string YesNo(const std::optional<bool>& value) {
  if (!value) return "-";
  return *value ? "yes" : "no";
}

// A closed stdout is not a failure.
void Put(std::FILE* file, std::string_view text) {
  (void)std::fwrite(text.data(), 1, text.size(), file);
  (void)std::fflush(file);
}

std::string LatencyLine(const PerfRow& row) {
  std::string line = fmt::format("       half round trip of 8 bytes: p50 {} us, p99 {} us",
                                 Fixed(row.half_rtt_us_p50, 1), Fixed(row.half_rtt_us_p99, 1));
  if (row.floor_half_rtt_us_p50) {
    line += fmt::format("; floor p50 {} us, p99 {} us", Fixed(row.floor_half_rtt_us_p50, 1),
                        Fixed(row.floor_half_rtt_us_p99, 1));
  }
  return line;
}

// The ceiling of transfers between GPUs: the slower of the network and the copy into the GPU.
std::optional<double> CeilingOf(const PerfRow& row) {
  if (!row.floor_gbps || !row.h2d_gbps) return std::nullopt;
  return std::min(*row.floor_gbps, *row.h2d_gbps);
}

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 != 0) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

// The nearest rank, without interpolation: a value that was measured.
double Percentile(std::vector<double> values, double share) {
  const auto rank = std::ceil(share * static_cast<double>(values.size()));
  const auto index = static_cast<std::size_t>(std::max(rank, 1.0)) - 1;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::min(index, values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Json ToJson(const PerfRow& row) {
  Json json;
  json["op"] = row.op;
  json["memory"] = row.memory;
  json["provider"] = row.provider;
  json["size"] = row.size;
  json["block_size"] = row.block_size;
  json["lanes"] = row.lanes;
  json["iterations"] = row.iterations;
  json["seconds_avg"] = row.seconds_avg;
  json["seconds_p50"] = row.seconds_p50;
  json["seconds_p99"] = row.seconds_p99;
  json["gbps"] = row.gbps;
  json["floor_gbps"] = OrNull(row.floor_gbps);
  json["floor_ratio"] = OrNull(Ratio(row.gbps, row.floor_gbps));
  json["cpu_seconds_per_gb"] = row.cpu_seconds_per_gb;
  json["floor_cpu_seconds_per_gb"] = OrNull(row.floor_cpu_seconds_per_gb);
  json["cpu_ratio"] = OrNull(Ratio(row.cpu_seconds_per_gb, row.floor_cpu_seconds_per_gb));
  json["ops_per_second"] = row.ops_per_second;
  json["verified"] = row.verified ? Json(*row.verified) : Json(nullptr);
  json["verified_operations"] = row.verified_operations;
  json["depth"] = row.depth;
  json["wait"] = row.wait;
  json["congestion_control"] = row.congestion_control;
  json["security"] = row.security;
  json["path"] = row.path;
  json["path_reason"] = row.path_reason;
  if (row.h2d_gbps) {
    json["h2d_gbps"] = *row.h2d_gbps;
    json["d2h_gbps"] = OrNull(row.d2h_gbps);
    json["ceiling_ratio"] = OrNull(Ratio(row.gbps, CeilingOf(row)));
  }
  if (row.overlap) json["overlap"] = *row.overlap;
  if (row.crc_gbps) {
    json["crc_gbps"] = *row.crc_gbps;
    json["crc_ratio"] = *row.crc_gbps / row.gbps;
    json["crc_cpu_seconds_per_gb"] = OrNull(row.crc_cpu_seconds_per_gb);
  }
  if (row.launch_us) {
    json["launch_us"] = *row.launch_us;
    json["longest_launch_us"] = OrNull(row.longest_launch_us);
  }
  if (row.half_rtt_us_p50) {
    json["half_rtt_us_p50"] = OrNull(row.half_rtt_us_p50);
    json["half_rtt_us_p99"] = OrNull(row.half_rtt_us_p99);
    json["floor_half_rtt_us_p50"] = OrNull(row.floor_half_rtt_us_p50);
    json["floor_half_rtt_us_p99"] = OrNull(row.floor_half_rtt_us_p99);
  }
  Json rounds = Json::array();
  for (const PerfRow::Round& round : row.rounds) {
    rounds.push_back(Json{{"gbps", round.gbps}, {"floor_gbps", OrNull(round.floor_gbps)}});
  }
  json["rounds"] = std::move(rounds);
  json["transport"] = Json{{"lanes", row.transport.lanes},
                           {"retries", row.transport.retries},
                           {"lanes_lost", row.transport.lanes_lost},
                           {"lanes_replaced", row.transport.lanes_replaced},
                           {"lane_stalls", row.transport.lane_stalls},
                           {"retransmitted_segments", row.transport.retransmitted_segments}};
  return json;
}

std::string AverageText(double seconds, double gbps) {
  return fmt::format("Avg: {} ms, BW: {:.3f} GB/s", Milliseconds(seconds), gbps);
}

std::string PerfTableHead() {
  return fmt::format(kColumns, "op", "size", "block", "p50 ms", "p99 ms", "GB/s", "ops/s", "floor",
                     "share", "CPU s/GB", "CPU ratio", "verified");
}

std::string PerfTableLine(const PerfRow& row) {
  std::string line = fmt::format(
      kColumns, row.op, FormatSize(row.size),
      row.block_size == 0 ? "-" : FormatSize(row.block_size), Milliseconds(row.seconds_p50),
      Milliseconds(row.seconds_p99), Fixed(row.gbps, 3),
      Fixed(row.ops_per_second, row.ops_per_second < 1e5 ? 1 : 0), Fixed(row.floor_gbps, 3),
      Fixed(Ratio(row.gbps, row.floor_gbps), 2), Fixed(row.cpu_seconds_per_gb, 3),
      Fixed(Ratio(row.cpu_seconds_per_gb, row.floor_cpu_seconds_per_gb), 2), YesNo(row.verified));
  line += "\n  " + AverageText(row.seconds_avg, row.gbps);
  if (row.half_rtt_us_p50) line += "\n" + LatencyLine(row);
  if (row.memory != "host") {
    line += fmt::format("\n  path: {}, {}", row.path, Printable(row.path_reason));
  }
  if (row.h2d_gbps) {
    line += fmt::format("\n  plain copies: {} GB/s to the GPU, {} from it; {} of what is possible",
                        Fixed(row.h2d_gbps, 3), Fixed(row.d2h_gbps, 3),
                        Fixed(Ratio(row.gbps, CeilingOf(row)), 3));
  }
  if (row.overlap) {
    line += fmt::format("\n  overlap of copies and sockets: {:.1f} % of the shorter",
                        *row.overlap * 100);
  }
  if (row.launch_us) {
    line += fmt::format(
        "\n  receiver: {} us from a chunk's arrival until its copy is queued, {} at "
        "most",
        Fixed(row.launch_us, 2), Fixed(row.longest_launch_us, 2));
  }
  if (row.crc_gbps) {
    line += fmt::format("\n  with CRC32C: {} GB/s, {} of it without; {} CPU s/GB",
                        Fixed(row.crc_gbps, 3), Fixed(*row.crc_gbps / row.gbps, 3),
                        Fixed(row.crc_cpu_seconds_per_gb, 3));
  }
  return line;
}

std::string TransportLine(const PerfRow::Transport& transport) {
  const bool eventful = transport.retries > 0 || transport.lanes_lost > 0 ||
                        transport.lanes_replaced > 0 || transport.lane_stalls > 0;
  if (!eventful && transport.lanes.size() <= 1) return "";
  std::string line = "transport:";
  for (const auto& [interface, lanes] : transport.lanes) {
    line += fmt::format(" {} lanes by {},", lanes, interface);
  }
  return line + fmt::format(
                    " {} slices sent again, {} lanes lost, {} replaced, {} stalls, {} TCP "
                    "segments sent again",
                    transport.retries, transport.lanes_lost, transport.lanes_replaced,
                    transport.lane_stalls, transport.retransmitted_segments);
}

void PrintLine(std::string_view text) { Put(stdout, std::string(text) + "\n"); }
void PrintNote(std::string_view text) { Put(stderr, std::string(text) + "\n"); }

void PrintError(const Invocation& invocation, const Error& error) {
  PrintNote(fmt::format("{}: {}", invocation.name, Printable(error.message())));
  if (invocation.json) PrintLine(DumpJson(ErrorToJson(error)));
}

// Text of a peer, or from a file, must not move the terminal's cursor or change its colours.
std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    printable += byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return printable;
}

std::string ProgressText(std::uint64_t done, std::uint64_t total, double seconds) {
  constexpr double kMebi = 1 << 20;
  done = std::min(done, total);
  const auto moved = static_cast<double>(done);
  const auto all = static_cast<double>(total);
  std::string text = fmt::format("{:.0f} of {:.0f} MiB ({:.0f} %)", moved / kMebi, all / kMebi,
                                 total == 0 ? 100 : 100 * moved / all);
  if (done == 0 || seconds <= 0) return text;
  const double rate = moved / seconds;
  const bool fast = rate >= 1e8;
  return text + fmt::format(", {:.{}f} {}/s, {:.0f} s left", fast ? rate / 1e9 : rate / 1e6,
                            fast ? 2 : 1, fast ? "GB" : "MB", (all - moved) / rate);
}

Progress::Progress()
    : terminal_(::isatty(STDERR_FILENO) == 1), next_(Clock::now() + kProgressAfter) {}

Progress::~Progress() {
  if (shown_) Put(stderr, "\r\x1b[K");
}

void Progress::Show(std::string_view text) {
  const auto now = Clock::now();
  // Not into files and pipes, and not at all for what ends within a second.
  if (!terminal_ || now < next_) return;
  next_ = now + kProgressEvery;
  shown_ = true;
  Put(stderr, fmt::format("\r\x1b[K{}", text));
}

}  // namespace ferry::tools
