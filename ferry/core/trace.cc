// Collects spans and writes them as JSON.
#include "ferry/core/trace.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "ferry/core/fd.h"

namespace ferry {
namespace {

using Json = nlohmann::ordered_json;

std::atomic<Trace*> active_trace{nullptr};

constexpr mode_t kTraceMode = 0666;  // before the umask

// The format is that of Chrome's trace viewer, which Perfetto reads: times in microseconds, a
// "thread" for each lane.
double Micros(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// One event of the list, on a line of its own. Names may contain any bytes.
std::string EventLine(const Json& event) {
  return event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json Metadata(const char* what, long pid, std::size_t tid, Json arguments) {
  return Json{
      {"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}};
}

Error CannotWrite(const std::string& path, int error_number) {
  const Error cause = ErrnoError(fmt::format("writing the trace to {}", path), error_number);
  return Error(Code::kInvalidArgument,
               cause.message() + "; name a file in a folder where this user may write");
}

Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return CannotWrite(path, errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return Ok();
}

template <class Intervals>
Clock::duration LengthOf(const Intervals& intervals) {
  Clock::duration length{};
  for (const auto& [begin, end] : intervals) length += end - begin;
  return length;
}

}  // namespace

void Trace::Add(std::string_view lane, std::string_view name, Clock::time_point begin,
                Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  AddLocked(LaneLocked(lane), name, begin, end);
}

void Trace::AddInTurn(std::string_view lane, std::string_view name, Clock::time_point begin,
                      Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t index = LaneLocked(lane);
  AddLocked(index, name, std::max(begin, last_ends_[index]), end);
}

void Trace::AddLocked(std::uint32_t lane, std::string_view name, Clock::time_point begin,
                      Clock::time_point end) {
  // Never of negative length, also where the two times come from different clocks.
  spans_.push_back({lane, std::string(name), begin, std::max(begin, end)});
  last_ends_[lane] = std::max(last_ends_[lane], spans_.back().end);
}

std::vector<std::string> Trace::LanesLike(std::string_view prefix) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> like;
  for (const std::string& lane : lanes_) {
    if (std::string_view(lane).substr(0, prefix.size()) == prefix) like.push_back(lane);
  }
  return like;
}

void Trace::Append(const Trace& other) {
  std::vector<std::string> lanes;
  std::vector<Span> spans;
  {
    // One mutex at a time, so that two traces can be appended to each other.
    const std::lock_guard lock(other.mutex_);
    lanes = other.lanes_;
    spans = other.spans_;
  }
  const std::lock_guard lock(mutex_);
  for (const Span& span : spans) {
    AddLocked(LaneLocked(lanes[span.lane]), span.name, span.begin, span.end);
  }
}

std::uint32_t Trace::LaneLocked(std::string_view name) {
  const auto found = std::find(lanes_.begin(), lanes_.end(), name);
  const auto index = static_cast<std::uint32_t>(found - lanes_.begin());
  if (found == lanes_.end()) {
    lanes_.emplace_back(name);
    last_ends_.emplace_back();
  }
  return index;
}

// ---- what it tells ------------------------------------------------------------------------------

std::size_t Trace::Count(std::string_view lane) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      spans_.begin(), spans_.end(), [&](const Span& span) { return lanes_[span.lane] == lane; }));
}

// Sorted and disjoint.
std::vector<Trace::Interval> Trace::BusyLocked(const std::vector<std::string>& lanes) const {
  std::vector<Interval> all;
  for (const Span& span : spans_) {
    if (std::find(lanes.begin(), lanes.end(), lanes_[span.lane]) == lanes.end()) continue;
    all.emplace_back(span.begin, span.end);
  }
  std::sort(all.begin(), all.end());
  std::vector<Interval> busy;
  for (const Interval& each : all) {
    // Sorted by their beginnings, so each joins the last interval or opens a new one.
    if (busy.empty() || each.first > busy.back().second) {
      busy.push_back(each);
    } else {
      busy.back().second = std::max(busy.back().second, each.second);
    }
  }
  return busy;
}

double Trace::Overlap(const std::vector<std::string>& a, const std::vector<std::string>& b) const {
  std::vector<Interval> left;
  std::vector<Interval> right;
  {
    const std::lock_guard lock(mutex_);
    left = BusyLocked(a);
    right = BusyLocked(b);
  }
  const Clock::duration shorter = std::min(LengthOf(left), LengthOf(right));
  if (shorter <= Clock::duration::zero()) return 0;
  // Two sorted, disjoint lists are walked together.
  Clock::duration both{};
  for (std::size_t i = 0, k = 0; i < left.size() && k < right.size();) {
    const auto begin = std::max(left[i].first, right[k].first);
    const auto end = std::min(left[i].second, right[k].second);
    if (begin < end) both += end - begin;
    // The interval that ends first cannot overlap any later one.
    if (left[i].second < right[k].second) {
      ++i;
    } else {
      ++k;
    }
  }
  return Seconds(both) / Seconds(shorter);
}

// ---- the file -----------------------------------------------------------------------------------

std::string Trace::ToJson() const {
  const std::lock_guard lock(mutex_);
  const long pid = ::getpid();
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  text += EventLine(Metadata("process_name", pid, 0, Json{{"name", "ferry"}}));
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    text += ",\n" + EventLine(Metadata("thread_name", pid, i + 1, Json{{"name", lanes_[i]}}));
    text += ",\n" + EventLine(Metadata("thread_sort_index", pid, i + 1, Json{{"sort_index", i}}));
  }
  // The trace begins at 0 with its first span; other origins are hard to read in a viewer.
  const auto first = std::min_element(
      spans_.begin(), spans_.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (const Span& span : spans_) {
    text += ",\n" + EventLine(Json{{"name", span.name},
                                   {"ph", "X"},
                                   {"pid", pid},
                                   {"tid", span.lane + 1},
                                   {"ts", Micros(span.begin - first->begin)},
                                   {"dur", Micros(span.end - span.begin)}});
  }
  return text + "\n]}\n";
}

Status Trace::Write(const std::string& path) const {
  const std::string text = ToJson();
  UniqueFd file = ClosedInChildren(
      UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kTraceMode)));
  if (!file) return CannotWrite(path, errno);
  FERRY_TRY(WriteAll(file.get(), text, path));
  // On some file systems a full disk shows only on close(2).
  if (::close(file.release()) != 0) return CannotWrite(path, errno);
  return Ok();
}

Trace* ActiveTrace() noexcept { return active_trace.load(std::memory_order_acquire); }
void SetActiveTrace(Trace* trace) noexcept { active_trace.store(trace, std::memory_order_release); }

}  // namespace ferry
