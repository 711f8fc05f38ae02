// Points on the steady clock by which a wait must end.
#pragma once
#include <chrono>
#include <cstdint>
#include <limits>

namespace ferry {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A point on the steady clock, or never. Passed down a call chain so that one value bounds a chain
// of waits.
class Deadline {
 public:
  static Deadline Never() noexcept { return Deadline(Clock::time_point::max()); }
  static Deadline At(Clock::time_point when) noexcept { return Deadline(when); }
  template <class Rep, class Period>
  static Deadline After(std::chrono::duration<Rep, Period> wait) noexcept {
    // A wait beyond the range of the clock never ends.
    using Seconds = std::chrono::duration<double>;
    const auto now = Clock::now();
    if (Seconds(wait) >= Seconds(Clock::time_point::max() - now)) return Never();
    return Deadline(now + std::chrono::duration_cast<Clock::duration>(wait));
  }

  bool never() const noexcept { return when_ == Clock::time_point::max(); }
  bool expired() const noexcept { return !never() && Clock::now() >= when_; }
  Clock::time_point when() const noexcept { return when_; }
  Deadline Sooner(Deadline other) const noexcept { return when_ < other.when_ ? *this : other; }

  // Milliseconds left, rounded up, for poll() and epoll_wait(): -1 for never, 0 when expired.
  int PollMillis() const noexcept {
    if (never()) return -1;
    const auto left = when_ - Clock::now();
    if (left <= Clock::duration::zero()) return 0;
    const auto ms = std::chrono::ceil<milliseconds>(left).count();
    return ms > std::numeric_limits<int>::max() ? std::numeric_limits<int>::max()
                                                : static_cast<int>(ms);
  }

 private:
  explicit Deadline(Clock::time_point when) noexcept : when_(when) {}
  Clock::time_point when_;
};

inline double Seconds(Clock::duration duration) noexcept {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace ferry
