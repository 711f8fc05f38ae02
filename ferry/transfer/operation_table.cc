#include "ferry/transfer/operation_table.h"

#include "ferry/core/check.h"

namespace ferry::transfer {

void OperationTable::Insert(const Op& operation, Deadline due) {
  const bool is_new =
      operations_.emplace(operation->id, Entry{operation, AddDue(operation->id, due)}).second;
  FERRY_CHECK(is_new, operation->id);
}

// Most operations have the same time from their beginning on, so the newest is due last.
OperationTable::Schedule::iterator OperationTable::AddDue(std::uint64_t id, Deadline due) {
  if (due.never()) return schedule_.end();
  return schedule_.emplace_hint(schedule_.end(), due.when(), id);
}

OperationTable::Op OperationTable::Find(std::uint64_t id) const {
  const auto it = operations_.find(id);
  return it == operations_.end() ? nullptr : it->second.operation;
}

bool OperationTable::Erase(std::uint64_t id) {
  const auto it = operations_.find(id);
  if (it == operations_.end()) return false;
  if (it->second.due != schedule_.end()) schedule_.erase(it->second.due);
  operations_.erase(it);
  return true;
}

void OperationTable::SetDue(std::uint64_t id, Deadline due) {
  const auto it = operations_.find(id);
  if (it == operations_.end()) return;
  if (it->second.due != schedule_.end()) schedule_.erase(it->second.due);
  it->second.due = AddDue(id, due);
}

Deadline OperationTable::NextDue() const {
  return schedule_.empty() ? Deadline::Never() : Deadline::At(schedule_.begin()->first);
}

std::vector<OperationTable::Op> OperationTable::TakeDue(Clock::time_point now) {
  std::vector<Op> due;
  while (!schedule_.empty() && schedule_.begin()->first <= now) {
    Entry& entry = operations_.find(schedule_.begin()->second)->second;
    schedule_.erase(schedule_.begin());
    entry.due = schedule_.end();
    due.push_back(entry.operation);
  }
  return due;
}

std::vector<OperationTable::Op> OperationTable::All() const {
  std::vector<Op> all;
  all.reserve(operations_.size());
  for (const auto& [id, entry] : operations_) all.push_back(entry.operation);
  return all;
}

}  // namespace ferry::transfer
