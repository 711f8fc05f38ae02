// Tests the records of a connection's lanes.
#include "ferry/transfer/stats/lane_records.h"

#include <gtest/gtest.h>

#include <string>

namespace ferry::transfer {
namespace {

net::LaneInfo LaneOn(const std::string& interface) {
  net::LaneInfo info;
  info.interface = interface;
  return info;
}

TEST(LaneRecords, AreEmptyUntilTheyAreSet) {
  LaneRecords records;
  EXPECT_TRUE(records.Infos().empty());
  EXPECT_TRUE(records.Counters().empty());
  records.Set({LaneOn("eth0"), LaneOn("eth1")});
  EXPECT_EQ(records.Infos().size(), 2u);
  EXPECT_TRUE(records.Counters()[0].up && records.Counters()[1].up);
}

TEST(LaneRecords, ALostLaneKeepsItsLastStateUntilItIsReplaced) {
  LaneRecords records;
  records.Set({LaneOn("eth0"), LaneOn("eth1")});
  records.SetUp(1, false);
  EXPECT_FALSE(records.Counters()[1].up);
  EXPECT_EQ(records.Infos()[1].interface, "eth1");
  records.SetUp(1, true);
  records.SetInfo(1, LaneOn("eth2"));
  records.SetPath(1, {.retransmitted_segments = 5});
  EXPECT_EQ(records.Counters()[1].info.interface, "eth2");
  EXPECT_EQ(records.Counters()[1].path.retransmitted_segments, 5u);
  EXPECT_EQ(records.Counters()[0].info.interface, "eth0");
}

}  // namespace
}  // namespace ferry::transfer
