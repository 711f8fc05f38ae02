// The operations of a connection by id, with their deadlines.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/number_map.h"
#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

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

}  // namespace ferry::transfer
