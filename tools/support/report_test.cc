// Tests of tables, JSON rows and progress lines.

#include "tools/support/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tools/support/json.h"
#include "tools/testing/captured_output.h"

namespace ferry::tools {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

PerfRow Example() {
  PerfRow row;
  row.op = "write";
  row.provider = "tcp";
  row.size = 64 << 20;
  row.block_size = 16 << 10;
  row.lanes = 2;
  row.iterations = 40;
  row.wait = "block";
  row.congestion_control = "cubic";
  row.seconds_avg = 0.012;
  row.seconds_p50 = 0.0115;
  row.seconds_p99 = 0.0201;
  row.gbps = 5.5;
  row.ops_per_second = 83.3;
  row.cpu_seconds_per_gb = 0.275;
  row.floor_gbps = 5.0;
  row.floor_cpu_seconds_per_gb = 0.25;
  row.verified = true;
  row.rounds = {{5.5, 5.0}};
  return row;
}

std::string FirstOf(const PerfRow& row) {
  const std::string text = PerfTableLine(row);
  return text.substr(0, text.find('\n'));
}

// What follows the average.
std::string MoreOf(const PerfRow& row) {
  const std::string text = PerfTableLine(row);
  const auto end = text.find('\n', text.find("Avg: "));
  return end == std::string::npos ? "" : text.substr(end + 1);
}

TEST(PerfTable, LinesUpUnderItsHead) {
  EXPECT_EQ(PerfTableHead(),
            "op         size   block   p50 ms   p99 ms    GB/s    ops/s   floor share CPU s/GB "
            "CPU ratio verified");
  EXPECT_EQ(PerfTableLine(Example()),
            "write    64 MiB  16 KiB   11.500   20.100   5.500     83.3   5.000  1.10    0.275 "
            "     1.10      yes\n"
            "  Avg: 12.000 ms, BW: 5.500 GB/s");
}

TEST(PerfTable, FitsATerminalAndNamesNoColumnTwice) {
  EXPECT_LE(PerfTableHead().size(), 100U);
  EXPECT_EQ(PerfTableHead().find("floor"), PerfTableHead().rfind("floor"));
  PerfRow row = Example();
  row.size = std::uint64_t{64} << 30;
  row.seconds_p99 = 10.5;
  row.gbps = 323.456;
  row.ops_per_second = 1234567.8;
  row.floor_gbps = 123.456;
  EXPECT_LE(FirstOf(row).size(), 100U);
}

TEST(PerfTable, ShowsWhatWasNotMeasuredAsADash) {
  PerfRow row = Example();
  row.block_size = 0;
  row.floor_gbps.reset();
  row.floor_cpu_seconds_per_gb.reset();
  row.verified.reset();
  EXPECT_EQ(FirstOf(row),
            "write    64 MiB       -   11.500   20.100   5.500     83.3       -     -    0.275 "
            "        -        -");
}

TEST(PerfTable, GivesLatencyItsOwnLine) {
  PerfRow row = Example();
  row.half_rtt_us_p50 = 4.25;
  row.half_rtt_us_p99 = 9;
  EXPECT_EQ(MoreOf(row), "       half round trip of 8 bytes: p50 4.2 us, p99 9.0 us");
}

TEST(PerfTable, ComparesLatencyWithTheFloorWhereThereIsOne) {
  PerfRow row = Example();
  row.half_rtt_us_p50 = 4.25;
  row.half_rtt_us_p99 = 9;
  row.floor_half_rtt_us_p50 = 3.5;
  EXPECT_THAT(PerfTableLine(row), EndsWith("p99 9.0 us; floor p50 3.5 us, p99 - us"));
}

TEST(PerfTable, NamesThePathOfGpuMemoryAndEscapesThePeersReason) {
  PerfRow row = Example();
  EXPECT_EQ(MoreOf(row), "") << "of host memory there is one path";
  row.memory = "cuda:0-cuda:1";
  row.path = "gpu-copy";
  row.path_reason = "the peer\x1b[2J allows it";
  EXPECT_EQ(MoreOf(row), "  path: gpu-copy, the peer\\x1b[2J allows it");
}

TEST(PerfTable, ComparesGpuMemoryWithTheSlowerOfNetworkAndCopy) {
  PerfRow row = Example();
  row.h2d_gbps = 50;
  row.d2h_gbps = 25.5;
  row.floor_gbps = 11;
  EXPECT_EQ(MoreOf(row),
            "  plain copies: 50.000 GB/s to the GPU, 25.500 from it; 0.500 of what is possible");
  row.h2d_gbps = 5.5;
  EXPECT_THAT(MoreOf(row), HasSubstr("; 1.000 of what"));
  row.floor_gbps.reset();
  row.d2h_gbps.reset();
  EXPECT_EQ(MoreOf(row), "  plain copies: 5.500 GB/s to the GPU, - from it; - of what is possible");
}

TEST(PerfTable, HasALineForEachFurtherMeasurement) {
  PerfRow row = Example();
  row.overlap = 0.456;
  EXPECT_EQ(MoreOf(row), "  overlap of copies and sockets: 45.6 % of the shorter");
  row.overlap.reset();
  row.launch_us = 12.345;
  EXPECT_EQ(MoreOf(row),
            "  receiver: 12.35 us from a chunk's arrival until its copy is queued, - at most");
  row.launch_us.reset();
  row.crc_gbps = 2.75;
  row.crc_cpu_seconds_per_gb = 0.5;
  EXPECT_EQ(MoreOf(row), "  with CRC32C: 2.750 GB/s, 0.500 of it without; 0.500 CPU s/GB");
}

TEST(PerfTable, AFloorThatMovedNothingHasNoShare) {
  PerfRow row = Example();
  row.floor_gbps = 0;
  row.floor_cpu_seconds_per_gb = 0;
  row.verified = false;
  EXPECT_THAT(FirstOf(row), EndsWith("0.000     -    0.275         -       no"));
  EXPECT_TRUE(ToJson(row)["floor_ratio"].is_null());
}

TEST(PerfTable, LongTimesAndManyOperationsHaveFewerDigits) {
  PerfRow row = Example();
  row.seconds_p50 = 0.99999;
  row.seconds_p99 = 1;
  row.ops_per_second = 99999.94;
  EXPECT_THAT(PerfTableLine(row), HasSubstr(" 999.990   1000.0 "));
  EXPECT_THAT(PerfTableLine(row), HasSubstr(" 99999.9 "));
  row.ops_per_second = 100000;
  EXPECT_THAT(PerfTableLine(row), HasSubstr("  100000 "));
}

TEST(PerfJson, HasTheFieldsOfAMeasurementTogether) {
  PerfRow row = Example();
  for (const char* field : {"h2d_gbps", "ceiling_ratio", "overlap", "crc_gbps", "crc_ratio",
                            "launch_us", "longest_launch_us", "floor_half_rtt_us_p50"}) {
    EXPECT_FALSE(ToJson(row).contains(field)) << field;
  }
  row.h2d_gbps = 11;
  row.overlap = 0.5;
  row.crc_gbps = 2.75;
  row.launch_us = 3;
  row.half_rtt_us_p50 = 4;
  const Json json = ToJson(row);
  EXPECT_DOUBLE_EQ(json["ceiling_ratio"].get<double>(), 1.1) << "of the floor, which is less";
  EXPECT_TRUE(json["d2h_gbps"].is_null());
  EXPECT_DOUBLE_EQ(json["crc_ratio"].get<double>(), 0.5);
  EXPECT_TRUE(json["crc_cpu_seconds_per_gb"].is_null());
  EXPECT_TRUE(json["longest_launch_us"].is_null());
  EXPECT_TRUE(json["floor_half_rtt_us_p99"].is_null());
  EXPECT_EQ(json["overlap"], 0.5);
}

TEST(PerfJson, TellsWhatHappenedToTheLanes) {
  PerfRow row = Example();
  row.transport = {.lanes = {{"eth0", 2}, {"eth1", 1}},
                   .retries = 1,
                   .lanes_lost = 2,
                   .lanes_replaced = 3,
                   .lane_stalls = 4,
                   .retransmitted_segments = 5};
  EXPECT_EQ(DumpJson(ToJson(row)["transport"]),
            R"({"lanes":{"eth0":2,"eth1":1},"retries":1,"lanes_lost":2,"lanes_replaced":3,)"
            R"("lane_stalls":4,"retransmitted_segments":5})");
}

TEST(TransportLines, AreLeftOutWhereNothingHappenedOnOneInterface) {
  EXPECT_EQ(TransportLine({}), "");
  EXPECT_EQ(TransportLine({.lanes = {{"eth0", 8}}, .retransmitted_segments = 100}), "");
  EXPECT_EQ(TransportLine({.lanes = {{"eth0", 2}, {"eth1", 1}}}),
            "transport: 2 lanes by eth0, 1 lanes by eth1, 0 slices sent again, 0 lanes lost, 0 "
            "replaced, 0 stalls, 0 TCP segments sent again");
  for (const PerfRow::Transport& eventful : {PerfRow::Transport{.lanes = {}, .retries = 1},
                                             PerfRow::Transport{.lanes = {}, .lanes_lost = 1},
                                             PerfRow::Transport{.lanes = {}, .lanes_replaced = 1},
                                             PerfRow::Transport{.lanes = {}, .lane_stalls = 1}}) {
    EXPECT_THAT(TransportLine(eventful), HasSubstr(" 1 "));
  }
}

TEST(PerfJson, HasRatiosOfWhatItShows) {
  const Json json = ToJson(Example());
  EXPECT_DOUBLE_EQ(json["floor_ratio"].get<double>(), 1.1);
  EXPECT_DOUBLE_EQ(json["cpu_ratio"].get<double>(), 1.1);
  EXPECT_EQ(json["rounds"].dump(), R"([{"gbps":5.5,"floor_gbps":5.0}])");
  EXPECT_FALSE(json.contains("half_rtt_us_p50"));
}

TEST(PerfJson, HasNullForWhatWasNotMeasured) {
  PerfRow row = Example();
  row.floor_gbps.reset();
  row.verified.reset();
  const Json json = ToJson(row);
  EXPECT_TRUE(json["floor_gbps"].is_null());
  EXPECT_TRUE(json["floor_ratio"].is_null());
  EXPECT_TRUE(json["verified"].is_null());
}

TEST(Progress, SaysBytesRateAndTimeLeft) {
  constexpr std::uint64_t kMebi = 1 << 20;
  EXPECT_EQ(ProgressText(0, 10 * kMebi, 1), "0 of 10 MiB (0 %)");
  EXPECT_EQ(ProgressText(512 * kMebi, 2048 * kMebi, 0.5),
            "512 of 2048 MiB (25 %), 1.07 GB/s, 2 s left");
  EXPECT_EQ(ProgressText(4 * kMebi, 6 * kMebi, 2), "4 of 6 MiB (67 %), 2.1 MB/s, 1 s left");
  EXPECT_EQ(ProgressText(7 * kMebi, 6 * kMebi, 2), "6 of 6 MiB (100 %), 3.1 MB/s, 0 s left");
}

TEST(Progress, OfNothingIsAllOfIt) {
  EXPECT_EQ(ProgressText(0, 0, 1), "0 of 0 MiB (100 %)");
  EXPECT_EQ(ProgressText(1 << 20, 1 << 21, 0), "1 of 2 MiB (50 %)") << "without a rate yet";
}

TEST(Progress, IsNotShownInAFile) {
  CapturedOutput err(STDERR_FILENO);
  {
    Progress progress;
    progress.Show("half");
    ByteProgress bytes(100);
    bytes.Show(50);
  }
  EXPECT_EQ(err.Take(), "");
}

// ---- messages -----------------------------------------------------------------------------------

struct PrintedError {
  std::string out;
  std::string err;
};
PrintedError Print(const Invocation& invocation, const Error& error) {
  CapturedOutput out(STDOUT_FILENO);
  CapturedOutput err(STDERR_FILENO);
  PrintError(invocation, error);
  return {out.Take(), err.Take()};
}

TEST(Messages, AnErrorIsALineOnStderrAndWithJsonAnObjectOnStdout) {
  Invocation invocation;
  invocation.name = "ferry perf client";
  const Error error(Code::kPeerLost, "gone:\x1b[2J\n");
  const PrintedError text = Print(invocation, error);
  EXPECT_EQ(text.err, "ferry perf client: gone:\\x1b[2J\\x0a\n");
  EXPECT_EQ(text.out, "");
  invocation.json = true;
  const PrintedError json = Print(invocation, error);
  EXPECT_EQ(json.err, text.err);
  EXPECT_EQ(json.out, "{\"error\":{\"code\":\"PeerLost\",\"message\":\"gone:\\u001b[2J\\n\"}}\n");
}

TEST(Statistics, MedianIsTheMiddle) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({1, 2, 3, 10}), 2.5);
}

TEST(Statistics, PercentileIsAValueThatOccurs) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(Percentile(values, 0.5), 50);
  EXPECT_EQ(Percentile(values, 0.99), 99);
  EXPECT_EQ(Percentile(values, 1), 100);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile(values, 0), 1);
  EXPECT_EQ(Percentile(values, 0.001), 1);
  EXPECT_EQ(Percentile({2, 1}, 0.5), 1);
  EXPECT_EQ(Percentile({2, 1}, 0.51), 2);
}

TEST(Printable, EscapesWhatMovesTheCursor) {
  EXPECT_EQ(Printable("a\nb\x1b[2J\x7f \xC3\xBC"), "a\\x0ab\\x1b[2J\\x7f \xC3\xBC");
}

}  // namespace
}  // namespace ferry::tools
