// Records of lanes that have opened a region.
#include "ferry/transfer/memory/region_openers.h"

#include <algorithm>

namespace ferry::transfer {

// Sorted by connection; a region has few openers, and a vector is compact.
RegionOpener& RegionOpeners::PlaceLocked(std::uint32_t connection) {
  auto it = std::lower_bound(
      openers_.begin(), openers_.end(), connection,
      [](const RegionOpener& opener, std::uint32_t number) { return opener.connection < number; });
  if (it == openers_.end() || it->connection != connection) {
    it = openers_.insert(it, RegionOpener{.connection = connection});
  }
  return *it;
}

void RegionOpeners::AddLane(std::uint32_t connection, std::uint32_t lane) {
  const std::lock_guard lock(mutex_);
  PlaceLocked(connection).lanes |= std::uint64_t{1} << lane;
}

void RegionOpeners::AddSharer(std::uint32_t connection) {
  const std::lock_guard lock(mutex_);
  PlaceLocked(connection).shares = true;
}

std::vector<RegionOpener> RegionOpeners::All() const {
  const std::lock_guard lock(mutex_);
  return openers_;
}

std::uint64_t RegionOpeners::LanesOf(std::uint32_t connection) const {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(openers_.begin(), openers_.end(), [&](const RegionOpener& opener) {
    return opener.connection == connection;
  });
  return it == openers_.end() ? 0 : it->lanes;
}

}  // namespace ferry::transfer
