#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/transfer/operation.h"

namespace ferry::transfer {

// The operations of one connection that have begun and not ended, by number, and when each is to be
// looked at: at its deadline, or when the time for its cancellation is over. One thread.
//
// Insert with the latest time of all, Erase and NextDue take constant time, however many operations
// there are; Insert with another time and SetDue take logarithmic time.
class OperationTable {
 public:
  using Op = std::shared_ptr<OperationState>;

  // `operation->id` must be new.
  void Insert(const Op& operation, Deadline due);
  bool Contains(std::uint64_t id) const { return operations_.count(id) != 0; }
  // Null where there is none.
  Op Find(std::uint64_t id) const;
  // False where there was none.
  bool Erase(std::uint64_t id);
  // Nothing where there is no such operation.
  void SetDue(std::uint64_t id, Deadline due);
  // When the first operation is due; never if none is.
  Deadline NextDue() const;
  // Those due by `now`, in order. They stay in the table, due at no time until SetDue.
  std::vector<Op> TakeDue(Clock::time_point now);
  std::vector<Op> All() const;
  std::size_t size() const noexcept { return operations_.size(); }

 private:
  using Schedule = std::multimap<Clock::time_point, std::uint64_t>;  // to the operation's number
  struct Entry {
    Op operation;
    Schedule::iterator due;  // end(): at no time
  };

  Schedule::iterator AddDue(std::uint64_t id, Deadline due);

  std::unordered_map<std::uint64_t, Entry> operations_;
  Schedule schedule_;
};

}  // namespace ferry::transfer
