// The life of a connection's operations: begin, rounds of slices, cancel, deadline and end.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/transfer/connection/connection_common.h"
#include "ferry/transfer/connection/lane_group.h"
#include "ferry/transfer/connection/message_queue.h"
#include "ferry/transfer/connection/operation_table.h"
#include "ferry/transfer/connection/slice_dealer.h"
#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

class LaneMonitor;

// Runs the operations of a connection. Each that was submitted ends exactly once, also if the
// connection fails, and only when no lane holds a pointer into its memory. Home loop only, except
// where any thread is named.
class OperationRunner final : public MessageHost {
 public:
  // All must outlive the runner.
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
  // The operation's current round of slices is complete.
  void PostRoundDone(const OperationRef& operation);
  // Hands the operation's remaining slices, some of which were returned, to all lanes that may
  // carry them.
  void DealAgain(const OperationRef& operation);

  // ---- The lanes have changed.
  //
  // Deals what waits for lanes to those that are up now; soon, in one pass for all changes.
  void DealRestSoon();
  // The connection was lost, and every lane will close: ends what no lane holds.
  void Stop(const Error& error);
  // No lane touches memory any more: ends the rest.
  void Close(const Error& error);

  // MessageHost
  std::shared_ptr<void> KeepAlive() override { return lanes_->KeepAlive(); }
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
  // flight (operation_drain.h).
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
  bool deal_rest_due_ = false;  // DealRest is posted
  Clock::time_point next_check_ = Clock::time_point::max();
  EventLoop::TimerId check_timer_ = 0;
};

}  // namespace ferry::transfer
