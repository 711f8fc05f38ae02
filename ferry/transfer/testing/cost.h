#pragma once
#include <algorithm>
#include <cstddef>
#include <ctime>

#include "ferry/core/check.h"

namespace ferry::transfer {

// What this thread has spent so far: how busy the machine is changes it little.
inline double ThreadCpuSeconds() {
  timespec now{};
  FERRY_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The least that one call of `step` took, as the mean of several, of several tries.
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

// How many times as long a step takes in a table of 60,000 as in one of 1,000. `make(n)` gives a
// step in a table of n. A search through the table makes it 60, and caches a small number.
template <class Make>
double CostGrowth(Make&& make) {
  auto few = make(std::size_t{1'000});
  const double cost_of_few = LeastCost(few);
  auto many = make(std::size_t{60'000});
  return LeastCost(many) / cost_of_few;
}

// Well below what a search makes of it, and far above what caches do.
inline constexpr double kMostGrowth = 20;

}  // namespace ferry::transfer
