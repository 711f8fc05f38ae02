// Selects the operations of a timed part that are verified after its clock has stopped, and the
// memory slots that they use.
//
// Operations repeat: all of them move the same bytes to the same place, so the next operation
// overwrites the result of a wrong one. Marked operations do not: their source is a separate slot
// with new bytes in each round, and each has a destination slot that no other operation of the
// part writes. So their bytes can be checked afterwards, and bytes left by an earlier round are
// not mistaken for theirs, without any cost inside the timed part.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ferry/core/result.h"
#include "tools/perf/case.h"
#include "tools/support/json_fwd.h"

namespace ferry::tools {

// The slots of a side's memory: slot 0 for the operations that are not marked, then those for the
// marked ones. A source has one more, a destination as many as there may be marks.
inline constexpr std::uint64_t kPlainSlot = 0;
inline constexpr std::uint64_t kMarkedSource = 1;

inline constexpr std::uint64_t kMaxMarks = 17;
// How many operations of a part of this case may be marked: the last one and, of the others, as
// many as fit in a little memory, at least one. The slots of a side never need more than
// `most_bytes`: fewer operations are marked then, or none.
std::uint64_t MarksFor(const PerfCase& perf_case,
                       std::uint64_t most_bytes = ~std::uint64_t{0}) noexcept;
// Number of slots of a side with `marks` marks.
std::uint64_t SlotsOf(bool is_source, std::uint64_t marks) noexcept;

// A sorted set of a part's operations, by number from 0 on.
class Marks {
 public:
  Marks() = default;  // none
  // Selects the last of `count` operations and a few random others: one in a hundred, but at least
  // one if there is another, and at most `most` in total.
  static Marks Choose(std::uint64_t count, std::uint64_t most);
  // Parses the marks in a peer's request for `count` operations. Errors: kCorrupt.
  static Result<Marks> FromJson(const Json& request, std::uint64_t count, std::uint64_t most);
  Json ToJson() const;

  std::span<const std::uint64_t> operations() const noexcept { return operations_; }

 private:
  std::vector<std::uint64_t> operations_;
};

// Iterates over a part's operations. The marks must outlive it.
class SlotCursor {
 public:
  explicit SlotCursor(const Marks& marks) : left_(marks.operations()) {}

  // The destination slot of the next operation: kPlainSlot, or one of its own.
  std::uint64_t NextDestination() noexcept {
    const bool marked = !left_.empty() && left_.front() == at_;
    ++at_;
    if (!marked) return kPlainSlot;
    left_ = left_.subspan(1);
    return ++marked_;
  }

 private:
  std::span<const std::uint64_t> left_;
  std::uint64_t at_ = 0;
  std::uint64_t marked_ = 0;
};

}  // namespace ferry::tools
