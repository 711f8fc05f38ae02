// The life of a connection's operations: begin, rounds of slices, cancel, deadline and end.
#pragma once
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/number_map.h"
#include "ferry/transfer/connection/connection_state.h"
#include "ferry/transfer/connection/lane_group.h"
#include "ferry/transfer/lane/message_queue.h"
#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

class LaneLives;

// The operations of a connection by id, and when each is due. Not thread-safe.
//
// Due times are in a heap that is never searched. When an operation ends or its due time changes,
// its heap entry becomes stale. Stale entries are dropped when they reach the top, or all together
// once they outnumber the operations. So the cost per operation does not depend on their number,
// except for cache misses. Memory that many operations needed is freed after they end.
class OperationTable {
 public:
  using Op = OperationRef;

  // `operation->id` must be new.
  void Insert(const Op& operation, Deadline due);
  bool Contains(std::uint64_t id) const { return operations_.Find(id) != nullptr; }
  // Null if there is none.
  Op Find(std::uint64_t id) const;
  // Removes and returns it; null if there is none.
  Op Take(std::uint64_t id);
  // Does nothing if there is no such operation.
  void SetDue(std::uint64_t id, Deadline due);
  // Earliest due time; never() if there is none.
  Deadline NextDue();
  // Operations due by `now`, earliest first. They stay in the table, without a due time until
  // SetDue.
  std::vector<Op> TakeDue(Clock::time_point now);
  std::vector<Op> All() const;
  std::size_t size() const noexcept { return operations_.size(); }
  // Number of heap entries that memory is allocated for.
  std::size_t schedule_capacity() const noexcept { return schedule_.capacity(); }

 private:
  struct Entry {
    Op operation;
    Deadline due = Deadline::Never();
  };
  struct Due {
    Clock::time_point when;
    std::uint64_t id;
    // NOLINTNEXTLINE(modernize-use-nullptr): not a pointer but the 0 of a comparison
    friend auto operator<=>(const Due&, const Due&) = default;
  };

  void Schedule(std::uint64_t id, Entry* entry, Deadline due);
  // Whether the operation exists and is still due at that time.
  bool Stands(const Due& due) const noexcept;
  void DropFirst();
  void DropStale();
  void FreeUnused();

  NumberMap<Entry, SeededHashOfRuns> operations_;  // ids are consecutive
  std::vector<Due> schedule_;                      // a min-heap
  std::size_t scheduled_ = 0;                      // operations that have a due time
};

// A write or read of host memory up to kMaxSmallBytes uses the first lane, with the messages,
// unless kMaxSmallDepth of them are already in flight: those of a deep queue count as bulk.
inline constexpr std::uint64_t kMaxSmallBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxSmallDepth = 4;
// Once that limit is reached, this many of the next small operations count as bulk, too.
inline constexpr std::uint64_t kSmallAsBulk = 64;

// Chooses the lanes that carry an operation's slices. Home loop only.
class SliceDealer {
 public:
  // `lives`: of the connection's lanes; must outlive this object.
  explicit SliceDealer(const LaneLives* lives);

  // The lanes for an operation that begins its slices. Counts it as in flight until End().
  LaneSet Begin(OperationState* operation);
  // The lanes for an operation with this many slices: as many as it has slices; those that are up,
  // or all if none is.
  LaneSet LanesFor(std::size_t slices) const;
  // Whether the first lane, too, carries slices of the operation that were returned.
  bool FirstCarries(const OperationState& operation) const;
  void End(OperationState* operation);

 private:
  // Excludes operations that need staging slots or GPU copies: a lane waits for those.
  bool IsSmall(const Plan& plan) const;
  bool GoesWithMessages();
  bool BulkIsDown() const;

  const LaneLives* const lives_;
  const std::size_t first_bulk_;
  std::uint64_t small_in_flight_ = 0;  // operations marked `small`
  std::uint64_t small_as_bulk_ = 0;    // number of next small operations that count as bulk
};

// The end of an operation that was cancelled, or is late, while some of its slices are in flight.
// They still arrive at the peer; only their acknowledgement, or a closed connection, proves that
// they have.
//
// The peer is pinged over every lane, so that answers on other lanes tell a stopped peer from a
// network that has dropped one lane of several. A slow link is neither: as long as the peer is
// heard, and acknowledges more over a lane that the operation waits for, drain_grace starts again.
// Acknowledgements of the lane's TCP count, too: a slice may take longer than the grace. The limit
// for all of that is peer_timeout, after which a completely silent peer is given up anyway. A lane
// has at most as many bytes in flight as it carried within the last drain_grace
// (LaneRate::drainable), or one slice; only a new lane, whose rate is unknown, has more.

// The answers of the lanes about one operation; each lane writes its own entries.
struct DrainLook {
  explicit DrainLook(std::size_t lanes) : holds(lanes), acknowledged(lanes) {}

  std::vector<std::atomic<bool>> holds;  // whether the lane holds the operation
  std::vector<std::atomic<std::uint64_t>> acknowledged;
};

// An operation that drains. A default one has not begun.
class OperationDrain {
 public:
  struct Limits {
    Clock::duration grace{};  // since the last progress
    Clock::duration total{};  // while there is progress
  };
  enum class Verdict : std::uint8_t {
    kWait,      // look again
    kAskLanes,  // as before, and ask every lane for a sign of life
    kGiveUp,    // the peer does not acknowledge
  };

  // Lanes are asked now.
  void Begin(Clock::time_point now);
  // Judges the lanes' answers. Call LaneLives::Notice() for each lane before.
  Verdict Judge(const DrainLook& look, const LaneLives& lives, Limits limits,
                Clock::time_point now);
  // When to look next, after kWait or kAskLanes.
  Clock::time_point NextLook(Limits limits, Clock::time_point now) const;
  // The first time that lanes were asked.
  Clock::time_point began() const noexcept { return began_; }

 private:
  bool HasProgressed(const DrainLook& look, const LaneLives& lives, Clock::time_point now);
  bool IsExcused(const DrainLook& look, const LaneLives& lives, Clock::time_point since) const;

  Clock::time_point began_{};
  Clock::time_point since_{};                // the last progress, or began_
  Clock::time_point looked_{};               // the last look for some
  std::vector<std::uint64_t> acknowledged_;  // by lane, as it was then; 0 of those without
};

class LaneMonitor;

// Runs the operations of a connection. Each that was submitted ends exactly once, also if the
// connection fails, and only when no lane holds a pointer into its memory. Home loop only, except
// where any thread is named.
class OperationRunner final : public OperationHost {
 public:
  // All must outlive the runner, which enters itself in the context.
  OperationRunner(ConnectionCommon* common, const LaneGroup* lanes, LaneMonitor* monitor,
                  MessageQueue* messages);

  // ---- Any thread.
  std::uint64_t NewId() noexcept { return last_id_.fetch_add(1) + 1; }
  // Operations that have begun and not ended; compared with config.max_operations.
  std::uint32_t in_flight() const noexcept { return in_flight_.load(); }
  void Submit(OperationRef operation);
  void Cancel(OperationRef operation);
  // Ends it as its own deadline would.
  void Expire(OperationRef operation);
  // Called after Submit() once the stream that the operation waits for has reached its mark, or
  // with the error that prevents it.
  void OnStreamReached(OperationRef operation, const Status& reached);

  // ---- The lanes have changed.
  //
  // Deals what waits for lanes to those that are up now; soon, in one pass for all changes.
  void DealRestSoon();
  // The connection was lost, and every lane will close: ends what no lane holds.
  void Stop(const Error& error);
  // No lane touches memory any more: ends the rest.
  void Close(const Error& error);

  // OperationHost; the first two on any thread.
  void PostRoundDone(const OperationRef& operation) override;
  void DealAgain(const OperationRef& operation) override;
  void Send(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
            std::span<const std::byte> payload, OperationRef operation) override;
  bool MaySendRts() const override { return lanes_->front().MaySendRts(); }
  bool MayAnswer() const override { return lanes_->front().MayAnswer(); }
  void DropMessage(const OperationState& receive) override {
    lanes_->front().DropMessage(&receive);
  }
  void Revoke(const std::shared_ptr<RegionState>& region, EventLoop::Task then) override;
  OperationRef Find(std::uint64_t operation_id) const override { return table_.Find(operation_id); }
  void End(OperationState& operation, Status status) override;
  void BeginSlices(const OperationRef& operation) override;
  void Fail(const Error& error) override;

 private:
  struct Submission;
  void Begin(const OperationRef& operation);
  void BeginNow(const OperationRef& operation);
  void SendNotification(const OperationRef& operation);
  void OnRoundDone(const OperationRef& operation);
  void Abort(const OperationRef& operation, const Error& error);
  void DealRest();
  // "write 3 to 10.0.0.1:7000", for errors.
  std::string NameOf(const OperationState& operation) const;

  // Sets the timer for the earliest due operation.
  void Schedule();
  void CheckDue();
  void AbortLate(const OperationRef& operation);

  // For an operation that is being aborted: waits until the peer has acknowledged its slices in
  // flight (OperationDrain).
  void Drain(const OperationRef& operation);
  void AskLanes();
  void LookAtDrain(const OperationRef& operation);
  void JudgeDrain(const OperationRef& operation, const DrainLook& look);
  OperationDrain::Limits DrainLimits() const;

  ConnectionCommon* const common_;
  const LaneGroup* const lanes_;
  LaneMonitor* const monitor_;
  MessageQueue* const messages_;
  std::atomic<std::uint64_t> last_id_{0};
  std::atomic<std::uint32_t> in_flight_{0};
  std::atomic<std::uint32_t> sending_{0};  // those of in_flight_ that send data
  OperationTable table_;
  SliceDealer dealer_;
  std::unordered_map<std::uint64_t, OperationDrain> drains_;  // by operation, of those in table_
  bool deal_rest_due_ = false;                                // DealRest is posted
  Clock::time_point next_check_ = Clock::time_point::max();
  EventLoop::TimerId check_timer_ = 0;
};

}  // namespace ferry::transfer
