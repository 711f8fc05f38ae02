#include "ferry/tools/report.h"

#include <gtest/gtest.h>

#include "ferry/tools/json.h"

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
            "op     memory provider       size    block lanes  iters    avg ms    p50 ms    "
            "p99 ms    GB/s   floor  share CPU s/GB    floor  ratio     ops/s verified");
  EXPECT_EQ(PerfTableLine(Example()),
            "write  host   tcp          64 MiB   16 KiB     2     40    12.000    11.500    "
            "20.100   5.500   5.000  1.100    0.275    0.250   1.10      83.3      yes");
}

TEST(PerfTable, ShowsWhatWasNotMeasuredAsADash) {
  PerfRow row = Example();
  row.block_size = 0;
  row.floor_gbps.reset();
  row.floor_cpu_seconds_per_gb.reset();
  row.verified.reset();
  EXPECT_EQ(PerfTableLine(row),
            "write  host   tcp          64 MiB        -     2     40    12.000    11.500    "
            "20.100   5.500       -      -    0.275        -      -      83.3        -");
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
