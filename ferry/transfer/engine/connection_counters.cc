// Counters, events and log lines of a connection.
#include <fmt/core.h>

#include <algorithm>

#include "ferry/core/log.h"
#include "ferry/transfer/engine/connection_core.h"

// Reports the state of a connection: its counters, and its latest events after a failure.
namespace ferry::transfer {
namespace {

constexpr std::size_t kEventsInALine = 16;

// Failures that a person should see in the log: those caused by a silent peer or a broken machine.
// A receive that times out is normal.
bool IsWorthAWarning(const OperationState& operation, Code code) {
  return code == Code::kCorrupt ||
         (code == Code::kTimedOut && operation.kind != OperationKind::kRecv);
}

}  // namespace

TrafficCounters ConnectionCore::Traffic() const {
  TrafficCounters traffic;
  for (std::size_t kind = 0; kind < kOperationKinds; ++kind) {
    OperationCounts& counts = traffic.operations[kind];
    // Operations that have ended were begun before, so `begun` is read later.
    for (std::size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      counts.ended[outcome] = operation_counts_[kind].ended[outcome].get();
    }
    counts.begun = operation_counts_[kind].begun.get();
  }
  for (const auto& lane : lanes_) traffic.lanes += lane->Traffic();
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
  // The lanes may have no info yet, while the connection is brought up.
  for (std::size_t i = 0; i < counters.lanes.size(); ++i) {
    counters.lanes[i].traffic = lanes_[i]->Traffic();
    counters.lanes[i].rate = lanes_[i]->rate();
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
  // Failures caused by the end of the connection are logged with that, and cancelling is normal.
  if (status || lost_.load() || status.error().code() == Code::kCancelled) return;
  if (!WorthKeeping(count.get())) return;
  const std::string before = events_.Describe(kEventsInALine);
  const Error& error = status.error();
  Note("{} {} ended by {}, {} of that kind so far", OperationName(operation.kind), operation.id,
       CodeName(error.code()), count.get());
  // The caller has the error; the log adds only the events before it.
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

// Peers come and go: a warning only if operations of this side failed because of it.
void ConnectionCore::LogPeerClose() const {
  std::optional<std::string> before;
  {
    const std::lock_guard lock(error_mutex_);
    before = unlogged_close_;
  }
  if (before) LogLoss(LostError(), !failed_by_loss_, *before);
}

}  // namespace ferry::transfer
