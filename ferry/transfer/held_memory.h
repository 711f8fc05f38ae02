#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

// Memory that peers make an endpoint hold, in bytes: for each connection, and for all together.
//
// There are two kinds. Mandatory memory is bounded by its owner (by what an honest peer can have in
// flight), and is only counted. Optional memory is asked for first, and refused to a connection
// that has its share, or where all shares are used up; but each connection may always hold
// kGuaranteed of it, whatever the others hold.
namespace ferry::transfer {

class HeldMemory;

// All connections of an endpoint. Any thread.
class HeldMemoryPool {
 public:
  // `most` of all connections, `most_each` of one.
  HeldMemoryPool(std::uint64_t most, std::uint64_t most_each)
      : most_(most), most_each_(most_each) {}

  std::uint64_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

 private:
  friend class HeldMemory;
  const std::uint64_t most_;
  const std::uint64_t most_each_;
  std::atomic<std::uint64_t> held_{0};
};

// One connection's part. Any thread. Gives back what is still held when it is destroyed.
class HeldMemory {
 public:
  // Guaranteed to each connection; 256 MiB for 1024 connections, the most by default.
  static constexpr std::uint64_t kGuaranteed = 256 * 1024;

  HeldMemory() = default;
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  ~HeldMemory();

  // Before anything is held. Without a pool nothing is refused.
  void SetPool(std::shared_ptr<HeldMemoryPool> pool) noexcept { pool_ = std::move(pool); }

  // Mandatory memory.
  void Add(std::uint64_t bytes) noexcept;
  void Remove(std::uint64_t bytes) noexcept;
  // Optional memory: adds nothing where it returns false.
  bool TryAdd(std::uint64_t bytes) noexcept;
  // The same in two steps, for memory that is needed later: the check, and the addition.
  bool HasRoom(std::uint64_t bytes) const noexcept;
  void AddTried(std::uint64_t bytes) noexcept;
  void RemoveTried(std::uint64_t bytes) noexcept;
  // Whether there is no room beyond the guarantee.
  bool full() const noexcept { return !Fits(0); }
  // Whether twice the limits are reached, which only a peer that does not acknowledge brings about.
  bool overfull() const noexcept {
    return pool_ != nullptr &&
           (held() >= 2 * pool_->most_each_ || pool_->held() >= 2 * pool_->most_);
  }
  std::uint64_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

 private:
  bool Fits(std::uint64_t more) const noexcept;

  std::shared_ptr<HeldMemoryPool> pool_;  // with the endpoint, which handles may outlive
  std::atomic<std::uint64_t> held_{0};    // of both kinds
  std::atomic<std::uint64_t> tried_{0};   // optional memory
};

}  // namespace ferry::transfer
