// Counters, events and log lines of one connection.
#pragma once
#include <fmt/core.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/log_limiter.h"
#include "ferry/core/result.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/operation_kind.h"
#include "ferry/transfer/stats/event_ring.h"

namespace ferry::transfer {

// Whether an operation of this kind sends data, rather than wait for the peer's.
inline bool PutsBytesOnTheWire(OperationKind kind) { return kind != OperationKind::kRecv; }

// What a connection counts, remembers and logs. Any thread, except where the home loop is named.
class ConnectionStats {
 public:
  // The end of an operation, as far as it is counted.
  struct Ended {
    OperationKind kind = OperationKind::kWrite;
    std::uint64_t id = 0;
    bool begun = false;    // it had begun to send, or was posted
    bool by_loss = false;  // the connection was lost before
  };

  explicit ConnectionStats(std::string peer_name) : peer_name_(std::move(peer_name)) {}

  // Call before the connection starts. `log` must outlive the connection's loops.
  void SetRefusalLog(LogLimiter* log) noexcept { refusal_log_ = log; }

  // Appends to the event ring.
  template <class... Args>
  void Note(fmt::format_string<Args...> format, Args&&... args) {
    events_.Add(fmt::vformat(format, fmt::make_format_args(args...)));
  }
  const EventRing& events() const noexcept { return events_; }
  // The latest events in one line; "" if there are none.
  std::string EventsInALine() const;
  // Counts an access of the peer that was refused, and logs it.
  void CountRefusal(const Error& error);
  std::uint64_t refusals() const noexcept { return refusals_.load(std::memory_order_relaxed); }
  void CountMismatch() noexcept { mismatches_.fetch_add(1, std::memory_order_relaxed); }
  // All but the traffic of the lanes.
  TrafficCounters Traffic() const;
  // `events`: those before the loss. `everyday`: nobody has to look into it.
  void LogLoss(const Error& error, bool everyday, const std::string& events) const;

  // ---- Home loop.
  void CountBegin(OperationKind kind) noexcept { CountsOf(kind).begun.Add(); }
  void CountEnd(const Ended& ended, const Status& status);
  // Whether an operation that had begun to send has failed by the end of the connection.
  bool loss_hurt() const noexcept { return loss_hurt_; }
  void CountLaneLost(std::uint32_t lane, const Error& error);
  void CountLaneReplaced(std::uint32_t lane, const net::LaneInfo& info);
  void CountStall(std::uint32_t lane, Clock::duration silent);

 private:
  struct OperationCounters {
    LoopCounter begun;
    std::array<LoopCounter, kOutcomes> ended;
  };

  OperationCounters& CountsOf(OperationKind kind) noexcept {
    return operations_[static_cast<std::size_t>(kind)];
  }
  // Logs an event that a peer can cause at will; rate-limited.
  void LogLimited(LogFields fields, const std::string& sentence);

  const std::string peer_name_;
  LogLimiter* refusal_log_ = nullptr;
  EventRing events_;
  std::array<OperationCounters, kOperationKinds> operations_;
  LoopCounter lanes_lost_;
  LoopCounter lanes_replaced_;
  LoopCounter lane_stalls_;
  bool loss_hurt_ = false;  // home loop
  std::atomic<std::uint64_t> refusals_{0};
  std::atomic<std::uint64_t> mismatches_{0};
};

}  // namespace ferry::transfer
