// Cuts messages into fragments and injects faulty rows.

#include "standin/memory/fragments.h"

#include <algorithm>

#include "standin/memory/pool.h"

namespace ferry::standin {
namespace {

constexpr std::uint32_t kMaxRandom = 9000;  // a jumbo frame
constexpr std::uint32_t kMaxMergedPages = 16;
constexpr std::uint32_t kMaxTiny = 15;

std::uint32_t WantedBytes(const Settings& settings, std::mt19937_64& random) {
  switch (settings.cut) {
    case Cut::kFixed: return settings.fragment;
    case Cut::kRandom: return static_cast<std::uint32_t>(1 + random() % kMaxRandom);
    case Cut::kTiny: return 4096;
    case Cut::kMerged: break;
  }
  return static_cast<std::uint32_t>(4096 * (1 + random() % kMaxMergedPages));
}

void AddOversize(std::uint64_t posted, Row* row) {
  const std::uint64_t beyond = posted - row->total + 64;
  row->fragments.push_back({0, static_cast<std::uint32_t>(beyond), row->total});
  row->total += beyond;
}

void MakeOverlap(std::vector<tcpx::Fragment>* fragments) {
  auto by_dst = [](const auto& a, const auto& b) { return a.dst < b.dst; };
  auto last = std::max_element(fragments->begin(), fragments->end(), by_dst);
  if (last->dst > 0) {
    --last->dst;
    return;
  }
  // One only: two halves of it, at the same place.
  const std::uint32_t half = last->len / 2;
  last->len -= half;
  fragments->push_back({last->src, half, 0});
}

}  // namespace

std::vector<std::uint32_t> CutMessage(std::uint64_t total, const Settings& settings,
                                      std::mt19937_64& random) {
  std::uint64_t tail = 0;
  if (settings.cut == Cut::kTiny) tail = std::min<std::uint64_t>(total, 1 + random() % kMaxTiny);
  const std::size_t most = kMaxFragments - (tail > 0 ? 1 : 0);
  std::vector<std::uint32_t> lengths;
  for (std::uint64_t left = total - tail; left > 0;) {
    const std::uint64_t slots = most - lengths.size();
    // The least length with which the rest of the message fits into the entries that are left.
    const std::uint64_t needed = (left + slots - 1) / slots;
    const std::uint64_t bytes = std::min<std::uint64_t>(
        left, std::max<std::uint64_t>(needed, WantedBytes(settings, random)));
    lengths.push_back(static_cast<std::uint32_t>(bytes));
    left -= bytes;
  }
  if (tail > 0) lengths.push_back(static_cast<std::uint32_t>(tail));
  return lengths;
}

// Changes what the host sees and nothing else: the landing, by which pages become free, stays
// correct.
void Spoil(Fault fault, Bounds bounds, Row* row) {
  auto& first = row->fragments.front();
  auto by_len = [](const auto& a, const auto& b) { return a.len < b.len; };
  switch (fault) {
    case Fault::kOversize: AddOversize(bounds.posted, row); break;
    case Fault::kShort:
      --std::max_element(row->fragments.begin(), row->fragments.end(), by_len)->len;
      break;
    case Fault::kOverlap: MakeOverlap(&row->fragments); break;
    case Fault::kOutOfPool:
      first.src = static_cast<std::uint32_t>(bounds.pool - first.len + 1);
      break;
    case Fault::kWrap: first.src = 0U - std::max(1U, first.len / 2); break;
    case Fault::kZeroLength: row->fragments.push_back({0, 0, 0}); break;
    default: break;
  }
}

}  // namespace ferry::standin
