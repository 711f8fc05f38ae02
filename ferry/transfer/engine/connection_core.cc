// Operations of a connection: begin, deadlines, liveness and the end.
#include "ferry/transfer/engine/connection_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/log.h"
#include "ferry/transfer/recovery/lane_health.h"

namespace ferry::transfer {
ConnectionCore::ConnectionCore(const Config& config, RegionTable* regions, Peer peer,
                               std::vector<EventLoop*> loops)
    : config_(config),
      regions_(regions),
      peer_(std::move(peer)),
      home_(loops.front()),
      lane_context_(ContextFor(loops.size())),
      given_up_(loops.size()) {
  for (std::size_t i = 0; i < loops.size(); ++i) {
    lanes_.push_back(std::make_unique<LaneEngine>(lane_context_, this, this, loops[i],
                                                  static_cast<std::uint32_t>(i)));
  }
  open_lanes_ = lanes_.size();
  lives_.resize(lanes_.size());
}

ConnectionCore::~ConnectionCore() = default;

LaneContext ConnectionCore::ContextFor(std::size_t lanes) {
  LaneContext context;
  context.config = &config_;
  context.regions = regions_;
  context.memory = &memory_;
  context.sharing = &sharing_;
  context.connection = this;
  context.peer = peer_.endpoint;
  context.peer_name = peer_.name;
  context.window_bytes = peer_.window_bytes;
  context.checksums = peer_.checksums;
  context.lanes = lanes;
  context.bulk_lanes = lanes - FirstBulkLaneOf(lanes);
  return context;
}

void ConnectionCore::SendControlOnLoop(wire::Type type, std::span<const std::byte> body) {
  lanes_.front()->SendSequenced(type, 0, body, {}, nullptr);
}

void ConnectionCore::StartOnLoop() {
  if (ending_) return;
  started_ = true;
  if (failed_early_) return FailOnLoop(*failed_early_);
  if (lost_.load()) return;  // LaneFailed will report it
  next_beat_ = Clock::now();
  for (LaneLife& life : lives_) life.heard_at = next_beat_;
  OnEveryLane([](LaneEngine& lane) { lane.Beat(/*heard=*/false); }, [] {});
  HeartbeatOnLoop();
  if (lane_health_) lane_health_->StartOnLoop();
}

// ---- from the application -----------------------------------------------------------------------

// Ends the operation even if the loop stops before it could run this task.
struct ConnectionCore::Begin {
  std::shared_ptr<ConnectionCore> connection;
  Op operation;

  Begin(std::shared_ptr<ConnectionCore> c, Op o)
      : connection(std::move(c)), operation(std::move(o)) {}
  Begin(Begin&&) = default;
  Begin& operator=(Begin&&) = delete;
  ~Begin() {
    if (!operation) return;
    operation->local_pins.clear();
    operation->Complete(Error(Code::kCancelled, "this endpoint was closed"));
  }
  void operator()() { connection->BeginOnLoop(std::exchange(operation, nullptr)); }
};

void ConnectionCore::Submit(Op operation) {
  in_flight_.fetch_add(1);
  // If none of our data is in flight the calling thread sends at once. Otherwise the loop has a
  // turn coming, and what has queued up by then is sent in one system call.
  const bool at_once =
      !PutsBytesOnTheWire(operation->kind) || sending_.fetch_add(1, std::memory_order_relaxed) == 0;
  Begin begin(shared_from_this(), std::move(operation));
  if (at_once) {
    home_->PostOrRun(std::move(begin));
  } else {
    home_->Post(std::move(begin));
  }
}

void ConnectionCore::Cancel(Op operation) {
  home_->PostOrRun([self = shared_from_this(), operation = std::move(operation)] {
    self->AbortOnLoop(operation,
                      Error(Code::kCancelled,
                            fmt::format("{} {} to {} was cancelled", OperationName(operation->kind),
                                        operation->id, self->peer_name())));
  });
}

Error ConnectionCore::LostError() const {
  const std::lock_guard lock(error_mutex_);
  return Error(lost_code_, lost_reason_);
}

void ConnectionCore::CountRefusal(const Error& error) {
  const std::uint64_t nth = refusals_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (WorthKeeping(nth)) Note("access {} was refused to the peer: {}", nth, error.message());
  LogLimited({{"peer", peer_name()}}, fmt::format("refused {}: {}", peer_name(), error.message()));
}

void ConnectionCore::LogLimited(LogFields fields, const std::string& sentence) {
  if (refusal_log_ == nullptr) return;
  refusal_log_->Write(LogLevel::kWarn, "transfer", net::HostOf(peer_name()), fields, sentence);
}

bool ConnectionCore::TakeNotification(std::vector<std::byte>* bytes) {
  const std::lock_guard lock(notifications_mutex_);
  if (notifications_.empty()) return false;
  *bytes = std::move(notifications_.front());
  notifications_.pop_front();
  notification_bytes_ -= bytes->size();
  memory_.RemoveTried(kKeptRecordBytes + bytes->size());
  // LaneClosedOnLoop() stores closed_ first, then sets the flag for good under the mutex.
  if (notifications_.empty() && !closed()) notification_ready_.Set(false);
  return true;
}

Result<UniqueFd> ConnectionCore::NotificationDescriptor() {
  const std::lock_guard lock(notifications_mutex_);
  return notification_ready_.Descriptor(!notifications_.empty() || closed());
}

void ConnectionCore::Fail(const Error& error) {
  home_->Post([self = shared_from_this(), error] { self->FailOnLoop(error); });
}

// ---- the life of an operation -------------------------------------------------------------------

ConnectionCore::Op ConnectionCore::FindOnLoop(std::uint64_t id) const {
  return operations_.Find(id);
}

// The deadline counts from here, also while the operation waits for its stream.
void ConnectionCore::BeginOnLoop(const Op& operation) {
  operation_counts_[static_cast<std::size_t>(operation->kind)].begun.Add();
  operations_.Insert(operation, operation->deadline);
  if (lost_.load()) return EndOnLoop(operation, LostError());
  ScheduleOnLoop();
  if (!operation->waits_for_stream) BeginNowOnLoop(operation);
}

// The operation may have been cancelled or timed out while it waited.
void ConnectionCore::StreamReached(Op operation, const Status& reached) {
  home_->Post([self = shared_from_this(), operation = std::move(operation), reached] {
    if (!self->operations_.Contains(operation->id)) return;  // it has ended meanwhile
    if (self->lost_.load()) return self->EndOnLoop(operation, self->LostError());
    if (reached) return self->BeginNowOnLoop(operation);
    self->EndOnLoop(
        operation,
        Error(
            reached.error().code(),
            fmt::format("{} {} to {} did not begin because the stream that it waits for failed: {}",
                        OperationName(operation->kind), operation->id, self->peer_name(),
                        reached.error().message())));
  });
}

void ConnectionCore::BeginNowOnLoop(const Op& operation) {
  operation->waits_for_stream = false;
  switch (operation->kind) {
    case OperationKind::kWrite:
    case OperationKind::kRead: return BeginSlicesOnLoop(operation);
    case OperationKind::kSend: return BeginSendOnLoop(operation);
    case OperationKind::kRecv: return BeginReceiveOnLoop(operation);
    case OperationKind::kNotify: return SendNotificationOnLoop(operation);
  }
}

// A small operation uses the first lane alone, which is on the home loop: no other thread is woken.
void ConnectionCore::BeginSlicesOnLoop(const Op& operation) {
  operation->phase = OperationState::Phase::kSlices;
  operation->ledger.Begin(operation->plan->slices.size());
  operation->small = MayGoWithMessagesOnLoop(operation);
  if (operation->small && GoesWithMessagesOnLoop()) {
    return lanes_.front()->AddWork(operation);
  }
  DealOnLoop(operation);
}

// A program that keeps many small operations in flight posts them in batches. If the first of each
// batch went over the first lane, every batch would wait for one more lane.
bool ConnectionCore::GoesWithMessagesOnLoop() {
  if (small_in_flight_++ >= kMaxSmallDepth) small_as_bulk_ = kSmallAsBulk;
  if (small_as_bulk_ > 0) {
    --small_as_bulk_;
    return false;
  }
  return lives_.front().up;
}

// For a write this runs after all its slices are acknowledged, so the notification cannot overtake
// the data.
void ConnectionCore::SendNotificationOnLoop(const Op& operation) {
  operation->phase = OperationState::Phase::kNotify;
  operation->ledger.BeginPulled();
  lanes_.front()->SendSequenced(wire::Type::kNotify, operation->id, {}, operation->notification,
                                operation);
}

void ConnectionCore::PostRoundDone(const Op& operation) {
  // Always posted: the caller is in the middle of its own bookkeeping.
  home_->Post([self = shared_from_this(), operation] { self->OnRoundDone(operation); });
}

// The end of a round of slices: a message continues with its FIN, a write with its notification;
// otherwise the operation ends.
void ConnectionCore::OnRoundDone(const Op& operation) {
  if (!operations_.Contains(operation->id)) return;  // the connection has failed meanwhile
  const auto error = operation->ledger.error();
  if (operation->kind == OperationKind::kSend &&
      operation->phase == OperationState::Phase::kSlices) {
    SendFinOnLoop(operation->id, error ? Status(*error) : Ok());
  }
  if (error) return EndOnLoop(operation, *error);
  const bool notify = operation->kind == OperationKind::kWrite &&
                      operation->phase == OperationState::Phase::kSlices &&
                      !operation->notification.empty();
  if (notify) return SendNotificationOnLoop(operation);
  EndOnLoop(operation, Ok());
}

// The only place where an operation ends; idempotent, because the table holds it exactly once. Pins
// and shares are released before the caller can see the end.
void ConnectionCore::EndOnLoop(const Op& operation, Status status) {
  if (!operations_.Erase(operation->id)) return;
  CountEndOnLoop(*operation, status);
  operation->local_pins.clear();
  if (std::exchange(operation->small, false)) --small_in_flight_;
  if (operation->plan && operation->plan->shared_with != 0) {
    sharing_.EndUseOnLoop(*operation->plan);
  }
  if (operation->kind != OperationKind::kRecv) {
    operation->bytes = !status ? 0
                       : operation->plan
                           ? operation->plan->bytes
                           : operation->message.size() + operation->notification.size();
  }
  if (PutsBytesOnTheWire(operation->kind)) sending_.fetch_sub(1, std::memory_order_relaxed);
  in_flight_.fetch_sub(1);
  operation->Complete(std::move(status));
  home_->NotifyWaiters();
}

// Ends an operation early, for a cancel or a deadline. At once where nothing is in flight; slices
// in flight are drained first, because the peer may still write them.
void ConnectionCore::AbortOnLoop(const Op& operation, const Error& error) {
  if (!operations_.Contains(operation->id) || std::exchange(operation->aborting, true)) return;
  operations_.SetDue(operation->id, Deadline::Never());
  switch (operation->phase) {
    case OperationState::Phase::kNew: return EndOnLoop(operation, error);
    case OperationState::Phase::kPosted:
    case OperationState::Phase::kReceiving: return AbortReceiveOnLoop(operation, error);
    case OperationState::Phase::kRtsSent:
      SendFinOnLoop(operation->id, error);
      return EndOnLoop(operation, error);
    case OperationState::Phase::kSlices:
    case OperationState::Phase::kMessage:
    case OperationState::Phase::kNotify: break;
  }
  if (operation->ledger.Stop(error)) return OnRoundDone(operation);
  if (operation->kind == OperationKind::kRead) AbandonReads(operation);
  DrainOnLoop(operation);
}

void ConnectionCore::AbandonReads(const Op& operation) {
  for (const auto& lane : lanes_) {
    lane->loop()->Post(
        [self = shared_from_this(), operation, at = lane.get()] { at->AbandonReads(operation); });
  }
}

// ---- deadlines and liveness ---------------------------------------------------------------------

void ConnectionCore::ScheduleOnLoop() {
  const Deadline deadline = operations_.NextDue();
  // A lost connection ends all its operations anyway, and may be destroyed before a timer fires.
  if (lost_.load() || deadline.never() || deadline.when() >= next_check_) return;
  next_check_ = deadline.when();
  if (check_timer_ != 0) home_->CancelTimerOnLoop(check_timer_);
  check_timer_ = home_->AddTimerOnLoop(next_check_, [this] {
    check_timer_ = 0;
    CheckDeadlinesOnLoop();
  });
}

void ConnectionCore::CheckDeadlinesOnLoop() {
  next_check_ = Clock::time_point::max();
  const std::vector<Op> due = operations_.TakeDue(Clock::now());
  ScheduleOnLoop();
  for (const Op& operation : due) {
    if (operation->aborting) {
      LookAtDrainOnLoop(operation);
      continue;
    }
    AbortOnLoop(
        operation,
        Error(Code::kTimedOut,
              fmt::format(
                  "{} {} to {} did not end before its deadline; allow more time or check the peer",
                  OperationName(operation->kind), operation->id, peer_name())));
  }
}

// After a gap, for example when the process was stopped, the sockets hold what has arrived since.
// So silence is judged only after every lane has read its socket.
void ConnectionCore::HeartbeatOnLoop() {
  heartbeat_timer_ = 0;
  if (lost_.load()) return;
  const Clock::duration late = Clock::now() - next_beat_;
  if (late < config_.heartbeat_interval) return BeatOnLoop(Clock::duration::zero());
  // A loop polls its sockets between two tasks.
  OnEveryLane([](LaneEngine& lane) { lane.Look(); },
              [self = shared_from_this(), late] {
                self->OnEveryLane([](LaneEngine&) {}, [self, late] { self->BeatOnLoop(late); });
              });
}

void ConnectionCore::BeatOnLoop(Clock::duration missed) {
  if (lost_.load()) return;
  const auto now = Clock::now();
  const auto heard_at = BeatLanesOnLoop(now, missed);
  if (lost_.load()) return;
  next_beat_ = std::min<Clock::time_point>(now + config_.heartbeat_interval,
                                           heard_at + config_.peer_timeout);
  heartbeat_timer_ = home_->AddTimerOnLoop(next_beat_, [this] { HeartbeatOnLoop(); });
}

// ---- the end ------------------------------------------------------------------------------------

void ConnectionCore::MarkLost(const Error& error, bool peer_closed) {
  const std::string before = EventsInALine();
  {
    const std::lock_guard lock(error_mutex_);
    if (lost_.load()) return;
    lost_code_ = error.code();
    lost_reason_ = error.message();
    // Acknowledgements may still arrive on the other lanes, so LaneClosedOnLoop() logs the
    // close.
    if (peer_closed) unlogged_close_ = before;
    lost_.store(true);
  }
  if (!peer_closed) LogLoss(error, error.code() == Code::kCancelled, before);
  Note("the connection ended: {}", error.message());
}

void ConnectionCore::FailOnLoop(const Error& cause) {
  if (ending_) return;
  if (!started_) {
    // Some channels have no lane yet.
    if (!failed_early_) failed_early_ = cause;
    return;
  }
  ending_ = true;
  MarkLost(cause);
  const Error error = LostError();
  if (check_timer_ != 0) home_->CancelTimerOnLoop(std::exchange(check_timer_, 0));
  for (EventLoop::TimerId* timer : {&heartbeat_timer_, &last_words_timer_}) {
    if (*timer != 0) home_->CancelTimerOnLoop(std::exchange(*timer, 0));
  }
  if (lane_health_) lane_health_->StopOnLoop();
  // The lanes go on until they are closed: a message that still arrives finds no receive.
  matcher_ = Matcher();
  CountKeptOnLoop();
  for (const Op& operation : operations_.All()) {
    // Operations whose memory a lane may still touch end when the lanes are closed.
    if (operation->ledger.active()) {
      if (operation->ledger.Stop(error)) EndOnLoop(operation, *operation->ledger.error());
    } else if (operation->phase != OperationState::Phase::kReceiving) {
      EndOnLoop(operation, error);
    }
  }
  for (const auto& lane : lanes_) {
    lane->loop()->Post([self = shared_from_this(), error, at = lane.get()] { at->Close(error); });
  }
  home_->NotifyWaiters();
}

void ConnectionCore::PostLaneClosed(std::uint32_t index) {
  LaneEngine* const lane = lanes_[index].get();
  lane->loop()->Post([self = shared_from_this(), lane] {
    lane->Free();
    self->home_->Post([self] { self->LaneClosedOnLoop(); });
  });
}

void ConnectionCore::LaneClosedOnLoop() {
  if (--open_lanes_ > 0) return;
  if (!ending_) {
    // The peer has closed every lane before LaneFailed ran.
    started_ = true;
    FailOnLoop(*lanes_.front()->closed_by());
  }
  for (const auto& [id, receive] : landing_) regions_->Remove(receive->landing);
  landing_.clear();
  sharing_.EndOnLoop();
  for (const Op& operation : operations_.All()) {
    if (const auto copy = std::exchange(operation->staged, nullptr)) AwaitStagedCopy(*copy);
    EndOnLoop(operation, operation->abort_error ? *operation->abort_error : LostError());
  }
  LogPeerClose();
  closed_.store(true);
  {
    const std::lock_guard lock(notifications_mutex_);
    notification_ready_.Set(true);
  }
  home_->NotifyWaiters();
  if (closed_callback_) closed_callback_();
}

void ConnectionCore::Close(const Error& error) {
  home_->Post([self = shared_from_this(), error] {
    if (!self->started_) return self->FailOnLoop(error);  // lanes are still being adopted
    // Nothing new begins: data in flight would turn an orderly close into a reset.
    self->MarkLost(error);
    // Every lane sends its acknowledgements before any lane closes: the peer may see the end of one
    // lane first.
    self->OnEveryLane([](LaneEngine& lane) { lane.FlushDueAck(); },
                      [self, error] { self->FailOnLoop(error); });
  });
}

void ConnectionCore::LaneFailed(const Error& error) {
  MarkLost(error);
  // A loop polls its sockets between two tasks.
  OnEveryLane([](LaneEngine&) {},
              [self = shared_from_this(), error] {
                self->OnEveryLane([](LaneEngine&) {}, [self, error] { self->FailOnLoop(error); });
              });
}

void ConnectionCore::Revoke(const std::shared_ptr<RegionState>& region, EventLoop::Task then) {
  OnLanes(
      region->openers.LanesOf(number()), [region](LaneEngine& lane) { lane.Revoke(region.get()); },
      std::move(then));
}

void ConnectionCore::TakeBack(const std::shared_ptr<RegionState>& region) {
  home_->Post([self = shared_from_this(), region] { self->sharing_.TakeBackOnLoop(region.get()); });
}

void ConnectionCore::FailIfHolding(const std::shared_ptr<RegionState>& region,
                                   std::uint64_t lanes) {
  const auto fail_holder = [this, region](LaneEngine& lane) {
    if (!lane.Holds(region.get())) return;
    Fail(Error(Code::kPeerLost,
               fmt::format("{} has not acknowledged data that it read from region {}, which is "
                           "being deregistered, for {:.1f} s (FERRY_DRAIN_GRACE); the connection "
                           "was closed, reconnect",
                           peer_name(), region->id, Seconds(config_.drain_grace))));
  };
  OnLanes(lanes, fail_holder, [] {});
}

void ConnectionCore::OnLanes(std::uint64_t lanes, const std::function<void(LaneEngine&)>& work,
                             EventLoop::Task then) {
  struct Round {
    std::atomic<std::size_t> left;
    EventLoop::Task then;
  };
  std::vector<LaneEngine*> chosen;
  for (const auto& lane : lanes_) {
    if ((lanes >> lane->index() & 1U) != 0) chosen.push_back(lane.get());
  }
  if (chosen.empty()) return home_->Post(std::move(then));
  auto round = std::make_shared<Round>();  // shared by the lanes' tasks; the last one uses it
  round->left.store(chosen.size());
  round->then = std::move(then);
  for (LaneEngine* const lane : chosen) {
    lane->loop()->Post([self = shared_from_this(), work, round, lane] {
      work(*lane);
      if (round->left.fetch_sub(1) == 1) self->home_->Post(std::move(round->then));
    });
  }
}

}  // namespace ferry::transfer
