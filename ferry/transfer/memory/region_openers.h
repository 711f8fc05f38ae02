// Records which lanes have opened a region.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

// Records which lanes have opened a region, so that deregistering asks only these lanes to release
// it.
namespace ferry::transfer {

// Not the number of a connection. Numbers of closed connections are reused, so a record may name
// lanes of an earlier connection; asking those in vain costs one task each.
inline constexpr std::uint32_t kNoConnection = ~std::uint32_t{0};

struct RegionOpener {
  std::uint32_t connection = kNoConnection;
  bool shares = false;      // may have shared the region's GPU memory with its peer
  std::uint64_t lanes = 0;  // one bit for each lane that has opened it
};

// The records of one region, at most one per connection number. Any thread.
class RegionOpeners {
 public:
  void AddLane(std::uint32_t connection, std::uint32_t lane);
  void AddSharer(std::uint32_t connection);
  std::vector<RegionOpener> All() const;
  // One bit for each lane of the connection that has opened the region.
  std::uint64_t LanesOf(std::uint32_t connection) const;

 private:
  RegionOpener& PlaceLocked(std::uint32_t connection);

  mutable std::mutex mutex_;
  std::vector<RegionOpener> openers_;  // under mutex_; ordered by number
};

// A lane's cache of the regions whose records name it, so that most accesses take no lock. An entry
// may be evicted; then the lane adds itself again. Lives on the lane's loop.
class OpenedRegions {
 public:
  // Returns true if the region is in the cache already. A pair of region and generation is never
  // reused.
  bool Add(std::uint32_t region, std::uint32_t generation) noexcept {
    Entry& entry = entries_[region % entries_.size()];
    if (entry.region == region && entry.generation == generation) return true;
    entry = {region, generation};
    return false;
  }

 private:
  struct Entry {
    std::uint32_t region = 0;
    std::uint32_t generation = 0;  // 0: none
  };
  std::array<Entry, 16> entries_{};
};

}  // namespace ferry::transfer
