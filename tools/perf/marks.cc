// Implements the selection and the slots of verified operations.

#include "tools/perf/marks.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "ferry/core/random.h"
#include "ferry/core/units.h"
#include "tools/support/json.h"

namespace ferry::tools {
namespace {

// Destination memory for the marked operations besides the last one.
constexpr std::uint64_t kMarkedBytes = 16 * kMiB;
// Few enough for their colder memory not to show in the rate.
constexpr std::uint64_t kOperationsOfMark = 100;

}  // namespace

std::uint64_t MarksFor(const PerfCase& perf_case, std::uint64_t most_bytes) noexcept {
  const std::uint64_t slot = perf_case.SlotBytes();
  const std::uint64_t wanted = 1 + std::clamp<std::uint64_t>(kMarkedBytes / slot, 1, kMaxMarks - 1);
  const std::uint64_t slots = most_bytes / slot;  // of which the first is for all the others
  return slots == 0 ? 0 : std::min(wanted, slots - 1);
}

std::uint64_t SlotsOf(bool is_source, std::uint64_t marks) noexcept {
  if (marks == 0) return 1;
  return is_source ? kMarkedSource + 1 : 1 + marks;
}

Marks Marks::Choose(std::uint64_t count, std::uint64_t most) {
  Marks marks;
  if (count == 0 || most == 0) return marks;
  const std::uint64_t last = count - 1;
  const std::uint64_t others =
      std::min({last, most - 1, std::max<std::uint64_t>(last / kOperationsOfMark, 1)});
  std::set<std::uint64_t> chosen;
  while (chosen.size() < others) chosen.insert(RandomU64() % last);
  marks.operations_.assign(chosen.begin(), chosen.end());
  marks.operations_.push_back(last);
  return marks;
}

Result<Marks> Marks::FromJson(const Json& request, std::uint64_t count, std::uint64_t most) {
  const Error wrong(Code::kCorrupt,
                    fmt::format("the client's \"marks\" are not at most {} of {} operations in "
                                "order; use the same version of ferry on both sides",
                                most, count));
  const auto field = request.find("marks");
  if (field == request.end() || !field->is_array() || field->size() > most) return wrong;
  Marks marks;
  for (const Json& one : *field) {
    if (!one.is_number_unsigned()) return wrong;
    const auto operation = one.get<std::uint64_t>();
    const bool follows = marks.operations_.empty() || operation > marks.operations_.back();
    if (!follows || operation >= count) return wrong;
    marks.operations_.push_back(operation);
  }
  return marks;
}

Json Marks::ToJson() const { return Json(operations_); }

}  // namespace ferry::tools
