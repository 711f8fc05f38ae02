#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

// The lanes that have opened a region: only these are asked to let go of one that is taken back.
namespace ferry::transfer {

// A connection's number in its endpoint. Numbers of closed connections are used again, so a record
// may name lanes of an earlier connection: asking those in vain costs a task each.
inline constexpr std::uint32_t kNoConnection = ~std::uint32_t{0};

struct RegionOpener {
  std::uint32_t connection = kNoConnection;
  bool shares = false;      // the connection may have shared the region's GPU memory with its peer
  std::uint64_t lanes = 0;  // a bit for each lane that has opened the region
};

// One region's records, at most one for each number. Any thread.
class RegionOpeners {
 public:
  void AddLane(std::uint32_t connection, std::uint32_t lane);
  void AddSharer(std::uint32_t connection);
  std::vector<RegionOpener> All() const;
  // A bit for each lane of the connection that has opened the region.
  std::uint64_t LanesOf(std::uint32_t connection) const;

 private:
  RegionOpener& PlaceLocked(std::uint32_t connection);

  mutable std::mutex mutex_;
  std::vector<RegionOpener> openers_;  // under mutex_; by number
};

// A lane's memory of the regions whose records name it, so that most accesses take no lock. It may
// forget; then the lane adds itself again. Belongs to the lane's loop.
class OpenedRegions {
 public:
  // True when the region was added before. Region and generation are never used again together.
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
