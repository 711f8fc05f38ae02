#include <fmt/core.h>

#include <algorithm>

#include "ferry/core/log.h"
#include "ferry/transfer/connection_core.h"

// What a connection tells of itself: its numbers, and its last events where something went wrong.
namespace ferry::transfer {
namespace {

constexpr std::size_t kEventsInALine = 16;

// Operations that the caller will hear of, and a person should: what a peer's silence or a broken
// machine does to them. Waiting for a message in vain is an everyday thing.
bool IsWorthAWarning(const OperationState& operation, Code code) {
  return code == Code::kCorrupt ||
         (code == Code::kTimedOut && operation.kind != OperationKind::kRecv);
}

}  // namespace

TrafficCounters ConnectionCore::Traffic() const {
  TrafficCounters traffic;
  for (std::size_t kind = 0; kind < kOperationKinds; ++kind) {
    OperationCounts& counts = traffic.operations[kind];
    // What has ended was begun before.
    for (std::size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      counts.ended[outcome] = operation_counts_[kind].ended[outcome].get();
    }
    counts.begun = operation_counts_[kind].begun.get();
  }
  for (const auto& channel : channels_) traffic.lanes += channel->Traffic();
  traffic.lanes_lost = lanes_lost_.load(std::memory_order_relaxed);
  traffic.lanes_replaced = lanes_replaced_.load(std::memory_order_relaxed);
  traffic.lane_stalls = lane_stalls_.load(std::memory_order_relaxed);
  traffic.refused_accesses = refusals_.load(std::memory_order_relaxed);
  traffic.checksum_mismatches = mismatches_.load(std::memory_order_relaxed);
  return traffic;
}

ConnectionCounters ConnectionCore::Counters() const {
  ConnectionCounters counters;
  counters.peer = peer_name();
  counters.endpoint = peer_.endpoint.ToString();
  counters.called = called();
  counters.lost = lost();
  counters.held_bytes = memory_.held();
  {
    const std::lock_guard lock(infos_mutex_);
    for (const LaneRecord& lane : lane_records_) {
      counters.lanes.push_back({.info = lane.info,
                                .up = lane.up && !counters.lost,
                                .traffic = {},
                                .rate = 0,
                                .path = lane.path});
    }
  }
  // None yet, where the connection is being brought up.
  for (std::size_t i = 0; i < counters.lanes.size(); ++i) {
    counters.lanes[i].traffic = channels_[i]->Traffic();
    counters.lanes[i].rate = channels_[i]->rate();
  }
  counters.traffic = Traffic();
  return counters;
}

void ConnectionCore::CountEndOnLoop(const OperationState& operation, const Status& status) {
  LoopCounter& count =
      operation_counts_[static_cast<std::size_t>(operation.kind)].ended[OutcomeOf(status)];
  count.Add();
  if (!status && lost_.load() && PutsBytesOnTheWire(operation.kind) &&
      operation.phase != OperationState::Phase::kNew) {
    failed_by_loss_ = true;
  }
  // What ends with the connection is told with that, and cancelling is nothing out of the ordinary.
  if (status || lost_.load() || status.error().code() == Code::kCancelled) return;
  if (!WorthKeeping(count.get())) return;
  const std::string before = events_.Describe(kEventsInALine);
  const Error& error = status.error();
  Note("{} {} ended by {}, {} of that kind so far", OperationName(operation.kind), operation.id,
       CodeName(error.code()), count.get());
  // The caller has the error; what came before it is all that the log can add.
  if (before.empty() || !IsWorthAWarning(operation, error.code())) return;
  LogWith(LogLevel::kWarn, "transfer", {{"peer", peer_name()}, {"events", before}},
          "{} ({} of this kind so far); events: {}", error.message(), count.get(), before);
}

std::string ConnectionCore::EventsInALine() const { return events_.Describe(kEventsInALine); }

void ConnectionCore::LogLoss(const Error& error, bool everyday, const std::string& before) const {
  if (everyday) {
    return LogWith(LogLevel::kInfo, "transfer", {{"peer", peer_name()}},
                   "connection to {} ended: {}", peer_name(), error.ToString());
  }
  LogWith(LogLevel::kWarn, "transfer", {{"peer", peer_name()}, {"events", before}},
          "connection to {} was lost: {}; events: {}", peer_name(), error.ToString(),
          before.empty() ? "none" : before);
}

// Peers come and go: that is worth a warning only where something of ours came to nothing by it.
void ConnectionCore::LogPeerClose() const {
  std::optional<std::string> before;
  {
    const std::lock_guard lock(error_mutex_);
    before = unlogged_close_;
  }
  if (before) LogLoss(LostError(), !failed_by_loss_, *before);
}

}  // namespace ferry::transfer
