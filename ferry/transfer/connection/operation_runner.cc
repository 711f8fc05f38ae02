// Begins, aborts and ends the operations of a connection.
#include "ferry/transfer/connection/operation_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/transfer/connection/lane_monitor.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/gpu/staged_copy.h"

namespace ferry::transfer {

// ---- OperationTable -----------------------------------------------------------------------------

namespace {

// This many stale entries are tolerated.
constexpr std::size_t kFewStale = 64;
// Memory for this many due times (16 KiB) is kept.
constexpr std::size_t kKeptCapacity = 1024;

}  // namespace

void OperationTable::Insert(const Op& operation, Deadline due) {
  Entry& entry = operations_[operation->id];
  FERRY_CHECK(entry.operation == nullptr, operation->id);
  entry.operation = operation;
  Schedule(operation->id, &entry, due);
}

OperationTable::Op OperationTable::Find(std::uint64_t id) const {
  const Entry* const entry = operations_.Find(id);
  return entry == nullptr ? nullptr : entry->operation;
}

OperationTable::Op OperationTable::Take(std::uint64_t id) {
  Entry* const entry = operations_.Find(id);
  if (entry == nullptr) return nullptr;
  Schedule(id, entry, Deadline::Never());
  Op taken = std::move(entry->operation);
  operations_.Erase(id);
  return taken;
}

void OperationTable::SetDue(std::uint64_t id, Deadline due) {
  if (Entry* const entry = operations_.Find(id)) Schedule(id, entry, due);
}

Deadline OperationTable::NextDue() {
  while (!schedule_.empty() && !Stands(schedule_.front())) DropFirst();
  return schedule_.empty() ? Deadline::Never() : Deadline::At(schedule_.front().when);
}

std::vector<OperationTable::Op> OperationTable::TakeDue(Clock::time_point now) {
  std::vector<Op> due;
  for (Deadline next = NextDue(); !next.never() && next.when() <= now; next = NextDue()) {
    const std::uint64_t id = schedule_.front().id;
    Entry* const entry = operations_.Find(id);
    due.push_back(entry->operation);
    DropFirst();
    Schedule(id, entry, Deadline::Never());
  }
  return due;
}

std::vector<OperationTable::Op> OperationTable::All() const {
  std::vector<Op> all;
  all.reserve(operations_.size());
  operations_.ForEach([&](std::uint64_t, const Entry& entry) { all.push_back(entry.operation); });
  return all;
}

// ---- due times ----------------------------------------------------------------------------------

void OperationTable::Schedule(std::uint64_t id, Entry* entry, Deadline due) {
  if (entry->due.when() == due.when()) return;
  if (!entry->due.never()) --scheduled_;
  entry->due = due;
  if (!due.never()) {
    ++scheduled_;
    schedule_.push_back({due.when(), id});
    std::push_heap(schedule_.begin(), schedule_.end(), std::greater<>());
  }
  if (schedule_.size() > kFewStale + 2 * scheduled_) DropStale();
}

bool OperationTable::Stands(const Due& due) const noexcept {
  const Entry* const entry = operations_.Find(due.id);
  return entry != nullptr && !entry->due.never() && entry->due.when() == due.when;
}

void OperationTable::DropFirst() {
  std::pop_heap(schedule_.begin(), schedule_.end(), std::greater<>());
  schedule_.pop_back();
  FreeUnused();
}

// Also drops duplicates: an operation may have had the same due time before.
void OperationTable::DropStale() {
  const auto stale = [this](const Due& due) { return !Stands(due); };
  schedule_.erase(std::remove_if(schedule_.begin(), schedule_.end(), stale), schedule_.end());
  std::sort(schedule_.begin(), schedule_.end());
  schedule_.erase(std::unique(schedule_.begin(), schedule_.end()), schedule_.end());
  FreeUnused();
}

// Only if three quarters are unused, so that the amortized cost per dropped entry stays small.
void OperationTable::FreeUnused() {
  if (schedule_.capacity() > kKeptCapacity && schedule_.size() <= schedule_.capacity() / 4) {
    schedule_.shrink_to_fit();
  }
}

// ---- SliceDealer --------------------------------------------------------------------------------

SliceDealer::SliceDealer(const LaneLives* lives)
    : lives_(lives), first_bulk_(FirstBulkLaneOf(lives->size())) {}

bool SliceDealer::IsSmall(const Plan& plan) const {
  return first_bulk_ > 0 && plan.slice_count == 1 && plan.bytes <= kMaxSmallBytes && !plan.staged &&
         plan.shared_with == 0;
}

// A program that keeps many small operations in flight posts them in batches. If the first of each
// batch went over the first lane, every batch would wait for one more lane.
bool SliceDealer::GoesWithMessages() {
  if (small_in_flight_++ >= kMaxSmallDepth) small_as_bulk_ = kSmallAsBulk;
  if (small_as_bulk_ > 0) {
    --small_as_bulk_;
    return false;
  }
  return lives_->up(0);
}

// A small operation uses the first lane alone, which is on the home loop: no other thread is woken.
LaneSet SliceDealer::Begin(OperationState* operation) {
  operation->small = IsSmall(*operation->plan);
  if (operation->small && GoesWithMessages()) return LaneBit(0);
  return LanesFor(operation->plan->slice_count);
}

bool SliceDealer::BulkIsDown() const { return !lives_->AnyUp(first_bulk_); }

LaneSet SliceDealer::LanesFor(std::size_t slices) const {
  const bool none_is_up = BulkIsDown();
  LaneSet chosen = none_is_up && first_bulk_ > 0 ? LaneBit(0) : 0;
  for (std::size_t i = first_bulk_; i < lives_->size() && slices > 0; ++i) {
    if (!lives_->up(i) && !none_is_up) continue;
    chosen |= LaneBit(i);
    --slices;
  }
  return chosen;
}

bool SliceDealer::FirstCarries(const OperationState& operation) const {
  return operation.small || BulkIsDown();
}

void SliceDealer::End(OperationState* operation) {
  if (std::exchange(operation->small, false)) --small_in_flight_;
}

// ---- OperationDrain -----------------------------------------------------------------------------

void OperationDrain::Begin(Clock::time_point now) {
  if (began_ == Clock::time_point{}) began_ = now;
  since_ = looked_ = now;
  acknowledged_.clear();
}

OperationDrain::Verdict OperationDrain::Judge(const DrainLook& look, const LaneLives& lives,
                                              Limits limits, Clock::time_point now) {
  const bool too_long = now - began_ >= std::max(limits.grace, limits.total);
  const bool progressed = HasProgressed(look, lives, now) && !too_long;
  const bool grace_is_over = too_long || now - since_ >= limits.grace;
  if (!progressed && !grace_is_over) return Verdict::kWait;
  if (!progressed && !IsExcused(look, lives, too_long ? began_ : since_)) return Verdict::kGiveUp;
  since_ = now;
  return Verdict::kAskLanes;
}

Clock::time_point OperationDrain::NextLook(Limits limits, Clock::time_point now) const {
  const Clock::duration step = std::max<Clock::duration>(limits.grace / 4, milliseconds(5));
  return std::min(now + step, since_ + limits.grace);
}

// Whether, since the last check, the peer was heard and more was acknowledged over a lane that
// holds the operation. Acknowledgements alone do not suffice: the peer's kernel sends them even if
// the process is stopped.
bool OperationDrain::HasProgressed(const DrainLook& look, const LaneLives& lives,
                                   Clock::time_point now) {
  const auto before = std::exchange(acknowledged_, {});
  const auto looked = std::exchange(looked_, now);
  bool more = false;
  for (std::size_t i = 0; i < look.holds.size(); ++i) {
    acknowledged_.push_back(look.acknowledged[i]);
    more |= look.holds[i] && !before.empty() && before[i] != look.acknowledged[i];
  }
  return more && lives.AnyNoticedSince(looked);
}

// A lane that is down settles its frames when it is replaced, and so does a lane that is silent
// while others are not: the heartbeat limits those.
bool OperationDrain::IsExcused(const DrainLook& look, const LaneLives& lives,
                               Clock::time_point since) const {
  const bool peer_heard = lives.AnyNoticedSince(since);
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const bool in_use = lives.UpSince(i, since_);
    if (look.holds[i] && in_use && (lives.NoticedSince(i, since) || !peer_heard)) return false;
  }
  return true;
}

// ---- OperationRunner ----------------------------------------------------------------------------

namespace {

// An operation that was being aborted when the connection was lost ends with the reason for that.
Error FirstError(const OperationState& operation, const Error& lost) {
  if (operation.abort_error) return *operation.abort_error;
  return operation.ledger.error().value_or(lost);
}

}  // namespace

OperationRunner::OperationRunner(ConnectionCommon* common, const LaneGroup* lanes,
                                 LaneMonitor* monitor, MessageQueue* messages)
    : common_(common),
      lanes_(lanes),
      monitor_(monitor),
      messages_(messages),
      dealer_(&monitor->lives()) {
  common_->context.operations = this;
}

std::string OperationRunner::NameOf(const OperationState& operation) const {
  return fmt::format("{} {} to {}", OperationName(operation.kind), operation.id,
                     common_->context.peer_name);
}

// ---- from the application -----------------------------------------------------------------------

// Ends the operation even if the loop stops before it could run this task.
struct OperationRunner::Submission {
  OperationRunner* runner;
  std::shared_ptr<void> keep;  // the connection, which has the runner
  OperationRef operation;

  Submission(OperationRunner* its_runner, OperationRef its_operation)
      : runner(its_runner),
        keep(its_runner->lanes_->KeepAlive()),
        operation(std::move(its_operation)) {}
  Submission(Submission&&) = default;
  Submission& operator=(Submission&&) = delete;
  ~Submission() {
    if (!operation) return;
    operation->local_pins.clear();
    operation->Complete(Error(Code::kCancelled, "this endpoint was closed"));
  }
  void operator()() { runner->Begin(std::exchange(operation, nullptr)); }
};

void OperationRunner::Submit(OperationRef operation) {
  in_flight_.fetch_add(1);
  // If none of our data is in flight the calling thread sends at once. Otherwise the loop has a
  // turn coming, and what has queued up by then is sent in one system call.
  const bool at_once =
      !PutsBytesOnTheWire(operation->kind) || sending_.fetch_add(1, std::memory_order_relaxed) == 0;
  Submission submission(this, std::move(operation));
  if (at_once) {
    common_->home->PostOrRun(std::move(submission));
  } else {
    common_->home->Post(std::move(submission));
  }
}

void OperationRunner::Cancel(OperationRef operation) {
  common_->home->PostOrRun([keep = lanes_->KeepAlive(), this, operation = std::move(operation)] {
    Abort(operation, Error(Code::kCancelled, NameOf(*operation) + " was cancelled"));
  });
}

// Its own deadline may have passed just now; then the first of the two aborts it.
void OperationRunner::Expire(OperationRef operation) {
  common_->home->PostOrRun([keep = lanes_->KeepAlive(), this, operation = std::move(operation)] {
    if (table_.Contains(operation->id) && !operation->aborting) AbortLate(operation);
  });
}

// The operation may have been cancelled or timed out while it waited.
void OperationRunner::OnStreamReached(OperationRef operation, const Status& reached) {
  common_->home->Post(
      [keep = lanes_->KeepAlive(), this, operation = std::move(operation), reached] {
        if (!table_.Contains(operation->id)) return;  // it has ended meanwhile
        if (common_->state.lost()) return End(*operation, common_->state.error());
        if (reached) return BeginNow(operation);
        End(*operation,
            Error(reached.error().code(),
                  fmt::format("{} did not begin because the stream that it waits for failed: {}",
                              NameOf(*operation), reached.error().message())));
      });
}

// ---- the life of an operation -------------------------------------------------------------------

// The deadline counts from here, also while the operation waits for its stream.
void OperationRunner::Begin(const OperationRef& operation) {
  common_->stats.CountBegin(operation->kind);
  table_.Insert(operation, operation->deadline);
  if (common_->state.lost()) return End(*operation, common_->state.error());
  Schedule();
  if (!operation->waits_for_stream) BeginNow(operation);
}

void OperationRunner::BeginNow(const OperationRef& operation) {
  operation->waits_for_stream = false;
  switch (operation->kind) {
    case OperationKind::kWrite:
    case OperationKind::kRead: return BeginSlices(operation);
    case OperationKind::kSend: return messages_->BeginSend(operation);
    case OperationKind::kRecv: return messages_->BeginReceive(operation);
    case OperationKind::kNotify: return SendNotification(operation);
  }
}

void OperationRunner::BeginSlices(const OperationRef& operation) {
  operation->Enter(OperationState::Phase::kSlices);
  operation->ledger.Begin(operation->plan->slice_count);
  lanes_->AddWork(dealer_.Begin(operation.get()), operation);
}

// For a write this runs after all its slices are acknowledged, so the notification cannot overtake
// the data.
void OperationRunner::SendNotification(const OperationRef& operation) {
  operation->Enter(OperationState::Phase::kNotify);
  operation->ledger.BeginPulled();
  Send(wire::Type::kNotify, operation->id, {}, operation->notification, operation);
}

void OperationRunner::PostRoundDone(const OperationRef& operation) {
  // Always posted: the caller is in the middle of its own bookkeeping.
  common_->home->Post([keep = lanes_->KeepAlive(), this, operation] { OnRoundDone(operation); });
}

// The end of a round of slices: a message continues with its FIN, a write with its notification;
// otherwise the operation ends.
void OperationRunner::OnRoundDone(const OperationRef& operation) {
  if (!table_.Contains(operation->id)) return;  // the connection has failed meanwhile
  const auto error = operation->ledger.error();
  const bool of_slices = operation->phase() == OperationState::Phase::kSlices;
  if (operation->kind == OperationKind::kSend && of_slices) {
    messages_->SendFin(operation->id, error ? Status(*error) : Ok());
  }
  if (error) return End(*operation, *error);
  if (operation->kind == OperationKind::kWrite && of_slices && !operation->notification.empty()) {
    return SendNotification(operation);
  }
  End(*operation, Ok());
}

// The only place where an operation ends; idempotent, because the table holds it exactly once. Pins
// and shares are released before the caller can see the end.
void OperationRunner::End(OperationState& operation, Status status) {
  const OperationRef ended = table_.Take(operation.id);
  if (!ended) return;
  common_->stats.CountEnd({.kind = operation.kind,
                           .id = operation.id,
                           .begun = operation.phase() != OperationState::Phase::kNew,
                           .by_loss = common_->state.lost()},
                          status);
  operation.local_pins.clear();
  drains_.erase(operation.id);
  dealer_.End(&operation);
  if (operation.plan && operation.plan->shared_with != 0) {
    common_->context.sharing->EndUseOnLoop(*operation.plan);
  }
  if (operation.kind != OperationKind::kRecv) {
    operation.outcome.bytes = !status ? 0
                              : operation.plan
                                  ? operation.plan->bytes
                                  : operation.message.size() + operation.notification.size();
  }
  if (PutsBytesOnTheWire(operation.kind)) sending_.fetch_sub(1, std::memory_order_relaxed);
  in_flight_.fetch_sub(1);
  operation.Complete(std::move(status));
  common_->home->NotifyWaiters();
}

// Ends an operation early, for a cancel or a deadline. At once where nothing is in flight; slices
// in flight are drained first, because the peer may still write them.
void OperationRunner::Abort(const OperationRef& operation, const Error& error) {
  if (!table_.Contains(operation->id) || std::exchange(operation->aborting, true)) return;
  table_.SetDue(operation->id, Deadline::Never());
  switch (operation->phase()) {
    case OperationState::Phase::kNew: return End(*operation, error);
    case OperationState::Phase::kPosted:
    case OperationState::Phase::kReceiving: return messages_->AbortReceive(operation, error);
    case OperationState::Phase::kRtsSent:
      messages_->SendFin(operation->id, error);
      return End(*operation, error);
    case OperationState::Phase::kSlices:
    case OperationState::Phase::kMessage:
    case OperationState::Phase::kNotify: break;
  }
  if (operation->ledger.Stop(error)) return OnRoundDone(operation);
  if (operation->kind == OperationKind::kRead) {
    lanes_->PostToAll([operation](LaneEngine& lane) { lane.AbandonReads(operation); });
  }
  Drain(operation);
}

void OperationRunner::Stop(const Error& error) {
  if (check_timer_ != 0) common_->home->CancelTimerOnLoop(std::exchange(check_timer_, 0));
  for (const OperationRef& operation : table_.All()) {
    // Operations whose memory a lane may still touch end when the lanes are closed.
    if (operation->ledger.active()) {
      if (operation->ledger.Stop(error)) End(*operation, *operation->ledger.error());
    } else if (operation->phase() != OperationState::Phase::kReceiving) {
      End(*operation, FirstError(*operation, error));
    }
  }
}

void OperationRunner::Close(const Error& error) {
  for (const OperationRef& operation : table_.All()) {
    if (const auto copy = std::exchange(operation->receiving.staged, nullptr)) {
      AwaitStagedCopy(*copy);
    }
    End(*operation, FirstError(*operation, error));
  }
}

// ---- the lanes ----------------------------------------------------------------------------------

void OperationRunner::Send(wire::Type type, std::uint64_t operation_id,
                           std::span<const std::byte> body, std::span<const std::byte> payload,
                           OperationRef operation) {
  lanes_->front().SendSequenced(type, operation_id, body, payload, std::move(operation));
}

void OperationRunner::Revoke(const std::shared_ptr<RegionState>& region, EventLoop::Task then) {
  lanes_->Run(
      region->openers.LanesOf(common_->context.number),
      [region](LaneEngine& lane) { lane.Revoke(region.get()); }, std::move(then));
}

void OperationRunner::Fail(const Error& error) {
  common_->home->Post([keep = lanes_->KeepAlive(), this, error] { common_->fail_now(error); });
}

// Handed to all lanes: any of them may be the first to have room.
void OperationRunner::DealAgain(const OperationRef& operation) {
  common_->home->Post([keep = lanes_->KeepAlive(), this, operation] {
    if (dealer_.FirstCarries(*operation)) lanes_->front().AddWork(operation);
  });
  for (std::size_t i = lanes_->first_bulk(); i < lanes_->size(); ++i) {
    lanes_->Post(i, [operation](LaneEngine& lane) { lane.AddWork(operation); });
  }
}

// Also done when a lane comes up: operations may have begun while there was none.
void OperationRunner::DealRestSoon() {
  if (common_->state.lost() || std::exchange(deal_rest_due_, true)) return;
  common_->home->Post([keep = lanes_->KeepAlive(), this] {
    deal_rest_due_ = false;
    if (!common_->state.lost()) DealRest();
  });
}

// A lane has been lost, and may not come back: operations that waited for it alone are offered to
// others. If no lane for bulk is up the first lane carries everything.
void OperationRunner::DealRest() {
  for (const OperationRef& operation : table_.All()) {
    const bool has_slices = operation->phase() == OperationState::Phase::kSlices;
    if (!has_slices || operation->ledger.left() == 0) continue;
    lanes_->AddWork(dealer_.LanesFor(operation->plan->slice_count), operation);
  }
}

// ---- deadlines ----------------------------------------------------------------------------------

void OperationRunner::Schedule() {
  const Deadline deadline = table_.NextDue();
  // A lost connection ends all its operations anyway, and may be destroyed before a timer fires.
  if (common_->state.lost() || deadline.never() || deadline.when() >= next_check_) return;
  next_check_ = deadline.when();
  if (check_timer_ != 0) common_->home->CancelTimerOnLoop(check_timer_);
  check_timer_ = common_->home->AddTimerOnLoop(next_check_, [this] {
    check_timer_ = 0;
    CheckDue();
  });
}

void OperationRunner::CheckDue() {
  next_check_ = Clock::time_point::max();
  const std::vector<OperationRef> due = table_.TakeDue(Clock::now());
  Schedule();
  for (const OperationRef& operation : due) {
    if (operation->aborting) {
      LookAtDrain(operation);
      continue;
    }
    AbortLate(operation);
  }
}

// Only the lanes know what an operation that moves bytes waits for.
void OperationRunner::AbortLate(const OperationRef& operation) {
  const Error late(Code::kTimedOut, NameOf(*operation) +
                                        " did not end before its deadline; allow more time or "
                                        "check the peer");
  switch (operation->phase()) {
    case OperationState::Phase::kNew:
    case OperationState::Phase::kRtsSent:
    case OperationState::Phase::kPosted: return Abort(operation, late);
    case OperationState::Phase::kSlices:
    case OperationState::Phase::kMessage:
    case OperationState::Phase::kNotify:
    case OperationState::Phase::kReceiving: break;
  }
  auto waits =
      std::make_shared<std::vector<std::string>>(lanes_->size());  // shared by lanes' tasks
  lanes_->Run(
      kAllLanes,
      [waits, operation](LaneEngine& lane) {
        (*waits)[lane.index()] = lane.Waits(operation.get());
      },
      [keep = lanes_->KeepAlive(), this, operation, waits, late] {
        std::string text = late.message();
        for (std::size_t lane = 0; lane < waits->size(); ++lane) {
          if (!(*waits)[lane].empty()) text += fmt::format("; lane {} is {}", lane, (*waits)[lane]);
        }
        Abort(operation, Error(late.code(), text));
      });
}

// ---- drains -------------------------------------------------------------------------------------

OperationDrain::Limits OperationRunner::DrainLimits() const {
  return {.grace = common_->config.drain_grace, .total = common_->config.peer_timeout};
}

void OperationRunner::Drain(const OperationRef& operation) {
  monitor_->Notice();
  drains_[operation->id].Begin(Clock::now());
  AskLanes();
  LookAtDrain(operation);
}

void OperationRunner::AskLanes() {
  lanes_->PostToAll([](LaneEngine& lane) {
    lane.DropStopped();
    lane.Probe();
  });
}

void OperationRunner::LookAtDrain(const OperationRef& operation) {
  table_.SetDue(operation->id, Deadline::Never());          // until the lanes have answered
  auto look = std::make_shared<DrainLook>(lanes_->size());  // shared by the lanes' tasks
  lanes_->Run(
      kAllLanes,
      [operation, look](LaneEngine& lane) {
        const bool holds = lane.HoldsOperation(operation.get());
        look->holds[lane.index()] = holds;
        look->acknowledged[lane.index()] = holds ? lane.Acknowledged() : 0;
      },
      [keep = lanes_->KeepAlive(), this, operation, look] { JudgeDrain(operation, *look); });
}

void OperationRunner::JudgeDrain(const OperationRef& operation, const DrainLook& look) {
  if (common_->state.ending() || !table_.Contains(operation->id)) return;
  monitor_->Notice();
  const auto now = Clock::now();
  OperationDrain& drain = drains_[operation->id];
  switch (drain.Judge(look, monitor_->lives(), DrainLimits(), now)) {
    case OperationDrain::Verdict::kWait: break;
    case OperationDrain::Verdict::kAskLanes: AskLanes(); break;
    case OperationDrain::Verdict::kGiveUp:
      return common_->fail_now(Error(
          Code::kPeerLost,
          fmt::format(
              "{} did not acknowledge a cancelled or late {} within {:.1f} s "
              "(FERRY_DRAIN_GRACE, FERRY_PEER_TIMEOUT), so the connection was closed; reconnect",
              common_->context.peer_name, OperationName(operation->kind),
              Seconds(now - drain.began()))));
  }
  table_.SetDue(operation->id, Deadline::At(drain.NextLook(DrainLimits(), now)));
  Schedule();
}

}  // namespace ferry::transfer
