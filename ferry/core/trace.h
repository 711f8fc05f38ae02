// A timeline of named spans, written for Perfetto.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"

namespace ferry {

// A timeline of named spans in named lanes. Any thread. Keeps every span, about 100 bytes each.
class Trace {
 public:
  // A lane is created with its first span; viewers show lanes in that order. Spans of one lane must
  // be disjoint or nested, or viewers draw them wrongly. A span that ends before it begins has no
  // length.
  void Add(std::string_view lane, std::string_view name, Clock::time_point begin,
           Clock::time_point end);
  // The same, but the span begins where the lane's last one ended if that is later: for work that
  // is serialised, this counts only the time when it was this one's turn.
  void AddInTurn(std::string_view lane, std::string_view name, Clock::time_point begin,
                 Clock::time_point end);
  // Adds all spans of another trace, to lanes of the same names.
  void Append(const Trace& other);

  std::size_t Count(std::string_view lane) const;
  // The lanes whose names begin with `prefix`, in order of creation.
  std::vector<std::string> LanesLike(std::string_view prefix) const;
  // The time in which some lane of `a` and some lane of `b` were busy at once, divided by the busy
  // time of the less busy side: 0 to 1. 0 where a side was never busy; unknown lanes count as never
  // busy.
  double Overlap(const std::vector<std::string>& a, const std::vector<std::string>& b) const;

  // Writes JSON that Perfetto and chrome://tracing open: complete events, with lane names as thread
  // names ("Trace Event Format", Google). Times count from the first begin. Replaces an existing
  // file. Errors: kInvalidArgument where the file cannot be written.
  Status Write(const std::string& path) const;

 private:
  struct Span {
    std::uint32_t lane = 0;  // index in lanes_
    std::string name;
    Clock::time_point begin;
    Clock::time_point end;
  };
  using Interval = std::pair<Clock::time_point, Clock::time_point>;

  std::string ToJson() const;
  // These need the mutex.
  std::uint32_t LaneLocked(std::string_view name);
  void AddLocked(std::uint32_t lane, std::string_view name, Clock::time_point begin,
                 Clock::time_point end);
  std::vector<Interval> BusyLocked(const std::vector<std::string>& lanes) const;

  mutable std::mutex mutex_;
  std::vector<std::string> lanes_;
  std::vector<Clock::time_point> last_ends_;  // by lane
  std::vector<Span> spans_;
};

// The trace that transfers of this process record to, or null: lanes "lane N sends" and "lane N
// receives" for sockets, "GPU N D2H", "GPU N H2D" and "GPU N copies" for copies. Any thread. A
// trace must outlive all operations that begin while it is set.
Trace* ActiveTrace() noexcept;
void SetActiveTrace(Trace* trace) noexcept;

}  // namespace ferry
