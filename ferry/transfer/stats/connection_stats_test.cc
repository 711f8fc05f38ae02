// Tests the counters and events of a connection.
#include "ferry/transfer/stats/connection_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

const Error kTooLate(Code::kTimedOut, "too late");

std::uint64_t CountOf(const ConnectionStats& stats, OperationKind kind, const Status& status) {
  return stats.Traffic().of(kind).ended[OutcomeOf(status)];
}

TEST(ConnectionStats, CountsOperationsByKindAndOutcome) {
  ConnectionStats stats("peer:1");
  stats.CountBegin(OperationKind::kWrite);
  stats.CountBegin(OperationKind::kWrite);
  stats.CountBegin(OperationKind::kRecv);
  stats.CountEnd({.kind = OperationKind::kWrite, .id = 1, .begun = true}, Ok());
  stats.CountEnd({.kind = OperationKind::kWrite, .id = 2, .begun = true}, kTooLate);
  EXPECT_EQ(stats.Traffic().of(OperationKind::kWrite).begun, 2u);
  EXPECT_EQ(stats.Traffic().of(OperationKind::kRecv).begun, 1u);
  EXPECT_EQ(CountOf(stats, OperationKind::kWrite, Ok()), 1u);
  EXPECT_EQ(CountOf(stats, OperationKind::kWrite, kTooLate), 1u);
  EXPECT_EQ(CountOf(stats, OperationKind::kRecv, Ok()), 0u);
}

TEST(ConnectionStats, FailuresAreEventsEverMoreRarely) {
  ConnectionStats stats("peer:1");
  for (std::uint64_t id = 1; id <= 100; ++id) {
    stats.CountEnd({.kind = OperationKind::kRead, .id = id, .begun = true}, kTooLate);
  }
  EXPECT_EQ(stats.events().Events().size(), 7u) << "the 1st, 2nd, 4th, 8th ...";
}

TEST(ConnectionStats, SuccessAndCancelsAreNoEvents) {
  ConnectionStats stats("peer:1");
  stats.CountEnd({.kind = OperationKind::kRead, .id = 1, .begun = true}, Ok());
  stats.CountEnd({.kind = OperationKind::kRead, .id = 2, .begun = true},
                 Error(Code::kCancelled, "cancelled"));
  EXPECT_EQ(stats.EventsInALine(), "");
}

TEST(ConnectionStats, ALossHurtsIfSomethingThatWasSentHasFailed) {
  const Error lost(Code::kPeerLost, "lost");
  ConnectionStats stats("peer:1");
  stats.CountEnd({.kind = OperationKind::kRecv, .id = 1, .begun = true, .by_loss = true}, lost);
  stats.CountEnd({.kind = OperationKind::kWrite, .id = 2, .begun = false, .by_loss = true}, lost);
  stats.CountEnd({.kind = OperationKind::kWrite, .id = 3, .begun = true, .by_loss = true}, Ok());
  EXPECT_FALSE(stats.loss_hurt());
  stats.CountEnd({.kind = OperationKind::kWrite, .id = 4, .begun = true, .by_loss = true}, lost);
  EXPECT_TRUE(stats.loss_hurt());
  EXPECT_EQ(stats.EventsInALine(), "") << "it is logged with the end of the connection";
}

TEST(ConnectionStats, LanesAndRefusalsAreCountedAndRemembered) {
  ConnectionStats stats("peer:1");
  stats.CountLaneLost(2, kTooLate);
  stats.CountLaneReplaced(2, {});
  stats.CountStall(1, milliseconds(3000));
  stats.CountRefusal(Error(Code::kRefused, "no right"));
  stats.CountMismatch();
  const TrafficCounters traffic = stats.Traffic();
  EXPECT_EQ(traffic.lanes_lost, 1u);
  EXPECT_EQ(traffic.lanes_replaced, 1u);
  EXPECT_EQ(traffic.lane_stalls, 1u);
  EXPECT_EQ(traffic.refused_accesses, 1u);
  EXPECT_EQ(traffic.checksum_mismatches, 1u);
  const std::string events = stats.EventsInALine();
  EXPECT_THAT(events, HasSubstr("lane 2 was lost: too late"));
  EXPECT_THAT(events, HasSubstr("lane 2 resumed on"));
  EXPECT_THAT(events, HasSubstr("lane 1 has been silent for 3.0 s"));
  EXPECT_THAT(events, HasSubstr("access 1 was refused to the peer: no right"));
}

}  // namespace
}  // namespace ferry::transfer
