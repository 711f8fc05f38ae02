// Counts what happens to a connection and logs what a person should see.
#include "ferry/transfer/stats/connection_stats.h"

#include "ferry/core/log_limiter.h"
#include "ferry/net/address.h"

namespace ferry::transfer {
namespace {

constexpr std::size_t kEventsInALine = 16;

// Failures that a person should see in the log: those caused by a silent peer or a broken machine.
// A receive that times out is normal.
bool IsWorthAWarning(OperationKind kind, Code code) {
  return code == Code::kCorrupt || (code == Code::kTimedOut && kind != OperationKind::kRecv);
}

// A peer can cause these lines as often as it connects.
void LogOfPeer(const std::string& peer_name, LogLevel level, LogFields fields,
               const std::string& text) {
  PeerLogLimiter().Write(level, "transfer", net::HostOf(peer_name), fields, text);
}

}  // namespace

std::string ConnectionStats::EventsInALine() const { return events_.Describe(kEventsInALine); }

TrafficCounters ConnectionStats::Traffic() const {
  TrafficCounters traffic;
  for (std::size_t kind = 0; kind < kOperationKinds; ++kind) {
    OperationCounts& counts = traffic.operations[kind];
    // Operations that have ended were begun before, so `begun` is read later.
    for (std::size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      counts.ended[outcome] = operations_[kind].ended[outcome].get();
    }
    counts.begun = operations_[kind].begun.get();
  }
  traffic.lanes_lost = lanes_lost_.get();
  traffic.lanes_replaced = lanes_replaced_.get();
  traffic.lane_stalls = lane_stalls_.get();
  traffic.refused_accesses = refusals_.load(std::memory_order_relaxed);
  traffic.checksum_mismatches = mismatches_.load(std::memory_order_relaxed);
  return traffic;
}

void ConnectionStats::CountRefusal(const Error& error) {
  const std::uint64_t nth = refusals_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (WorthKeeping(nth)) Note("access {} was refused to the peer: {}", nth, error.message());
  LogLimited({{"peer", peer_name_}}, fmt::format("refused {}: {}", peer_name_, error.message()));
}

void ConnectionStats::LogLimited(LogFields fields, const std::string& sentence) {
  if (refusal_log_ == nullptr) return;
  refusal_log_->Write(LogLevel::kWarn, "transfer", net::HostOf(peer_name_), fields, sentence);
}

void ConnectionStats::CountEnd(const Ended& ended, const Status& status) {
  LoopCounter& count = CountsOf(ended.kind).ended[OutcomeOf(status)];
  count.Add();
  if (!status && ended.by_loss && ended.begun && PutsBytesOnTheWire(ended.kind)) loss_hurt_ = true;
  // Failures caused by the end of the connection are logged with that, and cancelling is normal.
  if (status || ended.by_loss || status.error().code() == Code::kCancelled) return;
  if (!WorthKeeping(count.get())) return;
  const std::string before = EventsInALine();
  const Error& error = status.error();
  Note("{} {} ended by {}, {} of that kind so far", OperationName(ended.kind), ended.id,
       CodeName(error.code()), count.get());
  // The caller has the error; the log adds only the events before it.
  if (before.empty() || !IsWorthAWarning(ended.kind, error.code())) return;
  LogOfPeer(
      peer_name_, LogLevel::kWarn, {{"peer", peer_name_}, {"events", before}},
      fmt::format("{} ({} of this kind so far); events: {}", error.message(), count.get(), before));
}

void ConnectionStats::CountLaneLost(std::uint32_t lane, const Error& error) {
  lanes_lost_.Add();
  Note("lane {} was lost: {}", lane, error.message());
  LogLimited({{"peer", peer_name_}, {"lane", std::to_string(lane)}},
             fmt::format("lane {} to {} was lost: {}", lane, peer_name_, error.message()));
}

void ConnectionStats::CountLaneReplaced(std::uint32_t lane, const net::LaneInfo& info) {
  lanes_replaced_.Add();
  Note("lane {} resumed on {} ({} to {})", lane, info.interface, info.local, info.remote);
  LogOfPeer(peer_name_, LogLevel::kInfo, {{"peer", peer_name_}, {"lane", std::to_string(lane)}},
            fmt::format("lane {} to {} resumed on {} ({} to {})", lane, peer_name_, info.interface,
                        info.local, info.remote));
}

void ConnectionStats::CountStall(std::uint32_t lane, Clock::duration silent) {
  lane_stalls_.Add();
  Note("lane {} has been silent for {:.1f} s", lane, Seconds(silent));
}

void ConnectionStats::LogLoss(const Error& error, bool everyday, const std::string& events) const {
  if (everyday) {
    return LogOfPeer(peer_name_, LogLevel::kInfo, {{"peer", peer_name_}},
                     fmt::format("connection to {} ended: {}", peer_name_, error.ToString()));
  }
  LogOfPeer(peer_name_, LogLevel::kWarn, {{"peer", peer_name_}, {"events", events}},
            fmt::format("connection to {} was lost: {}; events: {}", peer_name_, error.ToString(),
                        events.empty() ? "none" : events));
}

}  // namespace ferry::transfer
