// Table of operations and heap of their due times.
#include "ferry/transfer/connection/operation_table.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "ferry/core/check.h"

namespace ferry::transfer {
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

}  // namespace ferry::transfer
