// Names and indexes of operation outcomes.
#include "ferry/transfer/counters.h"

namespace ferry::transfer {

LaneTraffic& LaneTraffic::operator+=(const LaneTraffic& other) noexcept {
  bytes_sent += other.bytes_sent;
  bytes_received += other.bytes_received;
  frames_sent += other.frames_sent;
  frames_received += other.frames_received;
  payload_bytes_sent += other.payload_bytes_sent;
  payload_bytes_received += other.payload_bytes_received;
  retries += other.retries;
  retransmitted_segments += other.retransmitted_segments;
  return *this;
}

TrafficCounters& TrafficCounters::operator+=(const TrafficCounters& other) noexcept {
  for (std::size_t kind = 0; kind < operations.size(); ++kind) {
    operations[kind].begun += other.operations[kind].begun;
    for (std::size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      operations[kind].ended[outcome] += other.operations[kind].ended[outcome];
    }
  }
  lanes += other.lanes;
  lanes_lost += other.lanes_lost;
  lanes_replaced += other.lanes_replaced;
  lane_stalls += other.lane_stalls;
  refused_accesses += other.refused_accesses;
  checksum_mismatches += other.checksum_mismatches;
  return *this;
}

const char* OutcomeName(std::size_t outcome) noexcept {
  return outcome == 0 ? "ok" : CodeName(static_cast<Code>(outcome));
}

std::size_t OutcomeOf(const Status& status) noexcept {
  return status ? 0 : static_cast<std::size_t>(status.error().code());
}

}  // namespace ferry::transfer
