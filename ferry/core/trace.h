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

// A timeline: what was under way when, as named spans in named lanes. Any thread. Keeps all it is
// given, about 100 bytes a span.
class Trace {
 public:
  // A lane comes into being with its first span; viewers show lanes in that order. Spans of one
  // lane lie beside or within each other, or viewers draw them wrongly. One that ends before it
  // begins has no length.
  void Add(std::string_view lane, std::string_view name, Clock::time_point begin,
           Clock::time_point end);
  // The same, but it begins where the lane's last span ended if that is later: of things that wait
  // for each other, only the time in which it was this one's turn.
  void AddInTurn(std::string_view lane, std::string_view name, Clock::time_point begin,
                 Clock::time_point end);
  // Adds all spans of another trace, to lanes of the same names.
  void Append(const Trace& other);

  std::size_t Count(std::string_view lane) const;
  // Of those that begin with this, in their order.
  std::vector<std::string> LanesLike(std::string_view prefix) const;
  // The time in which some lane of `a` and some lane of `b` were busy at once, as a share of the
  // busy time of that side which was busy for less: 0 to 1. 0 where a side was never busy; lanes
  // that are not there count as never busy.
  double Overlap(const std::vector<std::string>& a, const std::vector<std::string>& b) const;

  // As JSON that Perfetto and chrome://tracing open: complete events, and names of lanes as names
  // of threads ("Trace Event Format", Google). Times count from the first begin. Replaces a file
  // that is there. Errors: kInvalidArgument where the file cannot be written.
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

// Where the transfers of this process write what they do, or null: lanes "lane N sends" and "lane N
// receives" for sockets, "GPU N D2H", "GPU N H2D" and "GPU N copies" for copies. Any thread. A
// trace that was set lives until the end of every operation that was begun meanwhile.
Trace* ActiveTrace() noexcept;
void SetActiveTrace(Trace* trace) noexcept;

}  // namespace ferry
