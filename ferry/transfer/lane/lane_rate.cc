// Averages a lane's throughput over short periods.
#include "ferry/transfer/lane/lane_rate.h"

#include <chrono>

namespace ferry::transfer {

void LaneRate::Restart(Clock::time_point now) {
  bytes_ = 0;
  since_ = now;
}

void LaneRate::Add(std::uint64_t bytes, Clock::time_point now) {
  constexpr auto kMin = milliseconds(20);
  bytes_ += bytes;
  const auto passed = now - since_;
  if (passed < kMin) return;
  const double present =
      static_cast<double>(bytes_) / std::chrono::duration<double>(passed).count();
  const auto before = static_cast<double>(rate());
  const double next = before == 0 ? present : (before + present) / 2;
  rate_.store(static_cast<std::uint64_t>(next) + 1, std::memory_order_relaxed);
  Restart(now);
}

// `ahead` bytes were sent while the slice was in flight, so their rate is a lower bound of the
// lane's rate. A lane without a queue may be much faster, so only slices that took long lower the
// limit; if none did, there is no limit.
void LaneRate::AddSlice(std::uint64_t ahead, Clock::time_point since, Clock::time_point now) {
  const std::chrono::duration<double> took =
      std::max<Clock::duration>(now - since, microseconds(1));
  const double bytes = std::min(static_cast<double>(ahead) * (grace_ / took), 1e18);
  const auto drains = static_cast<std::uint64_t>(bytes);
  drainable_ = took > grace_ / 4 ? drains : std::max(drainable_, drains);
}

}  // namespace ferry::transfer
