// Measures how the CPU cost of a step grows with the size of a table.
#pragma once
#include <algorithm>
#include <cstddef>
#include <ctime>

#include "ferry/core/check.h"

namespace ferry::transfer {

// CPU time of this thread so far, in seconds; other load on the machine changes it little.
inline double ThreadCpuSeconds() {
  timespec now{};
  FERRY_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Least CPU time of one call of `step`, in seconds: the minimum over several tries, each the mean
// of several calls.
template <class Step>
double LeastCost(Step&& step) {
  constexpr int kTries = 7;
  constexpr int kSteps = 100;
  double least = 1e9;
  for (int i = 0; i < kTries; ++i) {
    const double before = ThreadCpuSeconds();
    for (int k = 0; k < kSteps; ++k) step();
    least = std::min(least, (ThreadCpuSeconds() - before) / kSteps);
  }
  return least;
}

// Ratio of the cost of a step in a table of 60,000 entries to one of 1,000. `make(n)` returns a
// step in a table of n. A linear search yields 60, caches yield a small number.
template <class Make>
double CostGrowth(Make&& make) {
  auto few = make(std::size_t{1'000});
  const double cost_of_few = LeastCost(few);
  auto many = make(std::size_t{60'000});
  return LeastCost(many) / cost_of_few;
}

// Well below the ratio of a linear search, and far above that of caches.
inline constexpr double kMaxGrowth = 20;

}  // namespace ferry::transfer
