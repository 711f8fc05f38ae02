// Accounting and limits of memory that peers make an endpoint hold.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

// Memory that peers make an endpoint hold, in bytes: per connection and in total.
//
// There are two kinds. Mandatory memory is bounded by its owner (by the data that an honest peer
// can have in flight) and is only counted. Optional memory must be requested first, and is refused
// to a connection that has used its share, or if the pool is exhausted. Each connection may always
// hold kGuaranteed of it, regardless of the others.
namespace ferry::transfer {

class HeldMemory;

// The total over all connections of an endpoint. Any thread.
class HeldMemoryPool {
 public:
  // `most`: limit over all connections. `most_each`: limit per connection. In bytes.
  HeldMemoryPool(std::uint64_t most, std::uint64_t most_each)
      : most_(most), most_each_(most_each) {}

  std::uint64_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

 private:
  friend class HeldMemory;
  const std::uint64_t most_;
  const std::uint64_t most_each_;
  std::atomic<std::uint64_t> held_{0};
};

// The share of one connection. Any thread. The destructor returns to the pool whatever is still
// held.
class HeldMemory {
 public:
  // Guaranteed to each connection: 256 MiB for 1024 connections, the default limit.
  static constexpr std::uint64_t kGuaranteed = 256 * 1024;

  HeldMemory() = default;
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  ~HeldMemory();

  // Call before anything is held. Without a pool nothing is refused.
  void SetPool(std::shared_ptr<HeldMemoryPool> pool) noexcept { pool_ = std::move(pool); }

  // Counts mandatory memory; never refuses.
  void Add(std::uint64_t bytes) noexcept;
  void Remove(std::uint64_t bytes) noexcept;
  // Takes optional memory; returns false, and takes nothing, if there is no room.
  bool TryAdd(std::uint64_t bytes) noexcept;
  // The two steps of TryAdd, for memory that is needed later: the check and the addition.
  bool HasRoom(std::uint64_t bytes) const noexcept;
  void AddTried(std::uint64_t bytes) noexcept;
  void RemoveTried(std::uint64_t bytes) noexcept;
  // Whether there is no room beyond the guarantee.
  bool full() const noexcept { return !Fits(0); }
  // Whether twice a limit is reached; only a peer that does not acknowledge causes that.
  bool overfull() const noexcept {
    return pool_ != nullptr &&
           (held() >= 2 * pool_->most_each_ || pool_->held() >= 2 * pool_->most_);
  }
  std::uint64_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

 private:
  bool Fits(std::uint64_t more) const noexcept;

  std::shared_ptr<HeldMemoryPool> pool_;  // shared with the endpoint, which handles may outlive
  std::atomic<std::uint64_t> held_{0};    // both kinds
  std::atomic<std::uint64_t> tried_{0};   // optional only
};

}  // namespace ferry::transfer
