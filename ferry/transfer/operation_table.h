#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/number_map.h"
#include "ferry/transfer/operation_state.h"

namespace ferry::transfer {

// The operations of a connection by number, and when each is due. One thread.
//
// Due times are in a heap that is never searched. When an operation ends or its due time changes,
// its entry in the heap becomes stale. Stale entries are dropped when they come up, or all together
// once they outnumber the operations. The cost of an operation does not depend on how many there
// are, but for cache misses. Memory that many operations needed is freed after them.
class OperationTable {
 public:
  using Op = std::shared_ptr<OperationState>;

  // `operation->id` must be new.
  void Insert(const Op& operation, Deadline due);
  bool Contains(std::uint64_t id) const { return operations_.Find(id) != nullptr; }
  // Null where there is none.
  Op Find(std::uint64_t id) const;
  // False where there was none.
  bool Erase(std::uint64_t id);
  // Nothing where there is no such operation.
  void SetDue(std::uint64_t id, Deadline due);
  // When the first operation is due; never if none is.
  Deadline NextDue();
  // Those due by `now`, in order. They stay in the table, due at no time until SetDue.
  std::vector<Op> TakeDue(Clock::time_point now);
  std::vector<Op> All() const;
  std::size_t size() const noexcept { return operations_.size(); }
  // How many due times there is memory for.
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
  // Whether the operation is there and still due then.
  bool Stands(const Due& due) const noexcept;
  void DropFirst();
  void DropStale();
  void FreeUnused();

  NumberMap<Entry, SeededHashOfRuns> operations_;  // numbers are counted up
  std::vector<Due> schedule_;                      // a heap, first the earliest
  std::size_t scheduled_ = 0;                      // operations that are due at some time
};

}  // namespace ferry::transfer
