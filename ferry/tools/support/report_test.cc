// Tests of tables, JSON rows and progress lines.

#include "ferry/tools/support/report.h"

#include <gtest/gtest.h>

#include "ferry/tools/support/json.h"

namespace ferry::tools {
namespace {

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

TEST(PerfTable, LinesUpUnderItsHead) {
  EXPECT_EQ(PerfTableHead(),
            "op         size   block   p50 ms   p99 ms    GB/s    ops/s   floor share CPU s/GB "
            "CPU ratio verified");
  EXPECT_EQ(PerfTableLine(Example()),
            "write    64 MiB  16 KiB   11.500   20.100   5.500     83.3   5.000  1.10    0.275 "
            "     1.10      yes");
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
  EXPECT_LE(PerfTableLine(row).size(), 100U);
}

TEST(PerfTable, ShowsWhatWasNotMeasuredAsADash) {
  PerfRow row = Example();
  row.block_size = 0;
  row.floor_gbps.reset();
  row.floor_cpu_seconds_per_gb.reset();
  row.verified.reset();
  EXPECT_EQ(PerfTableLine(row),
            "write    64 MiB       -   11.500   20.100   5.500     83.3       -     -    0.275 "
            "        -        -");
}

TEST(PerfTable, GivesLatencyItsOwnLine) {
  PerfRow row = Example();
  row.half_rtt_us_p50 = 4.25;
  row.half_rtt_us_p99 = 9;
  const std::string line = PerfTableLine(row);
  EXPECT_EQ(line.substr(line.find('\n') + 1),
            "       half round trip of 8 bytes: p50 4.2 us, p99 9.0 us");
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
}

TEST(Printable, EscapesWhatMovesTheCursor) {
  EXPECT_EQ(Printable("a\nb\x1b[2J\x7f \xC3\xBC"), "a\\x0ab\\x1b[2J\\x7f \xC3\xBC");
}

}  // namespace
}  // namespace ferry::tools
