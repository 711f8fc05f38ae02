// Implements the measurement of scheduling delay.

#include "tests/links/load_meter.h"

#include <atomic>
#include <cstdint>
#include <thread>

namespace ferry::tests {
namespace {

constexpr milliseconds kSleep{10};
constexpr int kWork = 200'000;  // steps, of which a core does a million in a few milliseconds

// Never destroyed: the thread outlives the end of main().
std::atomic<std::int64_t> worst_lateness{0};  // ms
std::atomic<std::uint64_t> worked{0};
std::atomic<bool> running{false};

[[noreturn]] void MeasureForEver() {
  running = true;
  running.notify_all();
  for (;;) {
    const auto begun = Clock::now();
    // Time is what is measured here; nothing is waited for.
    std::this_thread::sleep_for(kSleep);
    std::uint64_t sum = worked.load(std::memory_order_relaxed);
    for (int i = 0; i < kWork; ++i) sum = sum * 6364136223846793005ull + 1442695040888963407ull;
    worked.store(sum, std::memory_order_relaxed);
    const auto late = std::chrono::duration_cast<milliseconds>(Clock::now() - begun - kSleep);
    std::int64_t worst = worst_lateness.load(std::memory_order_relaxed);
    while (late.count() > worst && !worst_lateness.compare_exchange_weak(worst, late.count())) {
    }
  }
}

}  // namespace

void RestartLoadMeter() {
  static const bool started = [] {
    std::thread(MeasureForEver).detach();
    // A test may fork next: while a thread begins, the C library and the sanitizers hold locks that
    // a child would then never get.
    running.wait(false);
    return true;
  }();
  (void)started;
  worst_lateness = 0;
}

milliseconds WorstLateness() { return milliseconds(worst_lateness.load()); }

}  // namespace ferry::tests
