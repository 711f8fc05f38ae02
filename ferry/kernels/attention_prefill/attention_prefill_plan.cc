// Plans of prefill attention: which queries a thread block has, and parts of the keys.

#include <algorithm>
#include <cstdint>

#include "ferry/kernels/attention_prefill/attention_prefill.h"

namespace ferry::kernels {
namespace {

std::int64_t TilesFor(std::int64_t count, std::int64_t of_tile) {
  return (count + of_tile - 1) / of_tile;
}

}  // namespace

int PrefillTileHeads(std::int64_t max_seqlen_q, int group) noexcept {
  // Sequences that fill their tiles read K and V no less often in groups.
  if (group < 2 || group > kWgmmaSm90Rows || max_seqlen_q > kWgmmaSm90Rows) return 1;
  return TilesFor(max_seqlen_q, kWgmmaSm90Rows / group) < group ? group : 1;
}

std::int64_t PrefillWorkspace(const PrefillWork& work, int splits) noexcept {
  if (splits <= 1) return 0;
  // For each part of each head of each query: head_size floats of output, and its base and sum.
  constexpr std::int64_t kOfSum = 2;  // float2
  return work.queries * work.heads * splits * (work.head_size + kOfSum);
}

// As PlanDecode(), with one thread block at a time on a multiprocessor, which its tiles fill.
int PlanPrefill(const PrefillWork& work, const cuda::DeviceFacts& facts) noexcept {
  constexpr int kHopper = 9;
  const bool empty = work.batch < 1 || work.kv_heads < 1 || work.heads < work.kv_heads;
  if (facts.compute_major != kHopper || empty || work.max_seqlen_q < 1) return 1;
  const int heads =
      PrefillTileHeads(work.max_seqlen_q, static_cast<int>(work.heads / work.kv_heads));
  const std::int64_t blocks =
      work.batch * (work.heads / heads) * TilesFor(work.max_seqlen_q, kWgmmaSm90Rows / heads);
  const std::int64_t slots = std::max(facts.multiprocessors, 1);
  // With more, parts gain less than the merge costs.
  if (blocks >= 2 * slots) return 1;
  const std::int64_t steps =
      TilesFor(work.most_keys, WgmmaSm90TilesOf(static_cast<int>(work.head_size)).keys);
  // Time, in tiles of keys: of each wave, what its parts take, and what they take to begin and to
  // end.
  constexpr std::int64_t kAround = 2;
  const auto time = [&](std::int64_t splits) {
    const std::int64_t waves = TilesFor(blocks * splits, slots);
    return static_cast<double>(waves * (TilesFor(steps, splits) + kAround));
  };
  const std::int64_t most = std::clamp<std::int64_t>(steps, 1, kMaxPrefillSplits);
  double best = time(1);
  for (std::int64_t splits = 2; splits <= most; ++splits) best = std::min(best, time(splits));
  constexpr double kNearly = 1.05;
  int splits = 1;
  while (time(splits) > kNearly * best) ++splits;
  return splits;
}

}  // namespace ferry::kernels
