// Accounting and limits of memory that peers make an endpoint hold.
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

// Memory that peers make an endpoint hold, in bytes: per connection and in total.
//
// There are two kinds. Mandatory memory is bounded by its owner (by the data that an honest peer
// can have in flight) and is only counted. Optional memory must be requested first, and is refused
// to a connection that has used its share, or if the pool is exhausted. Each connection may always
// hold kGuaranteed of it, regardless of the others.
//
// Optional memory leaves room for the mandatory memory that may follow, so an honest peer stays
// within the limits. A peer that passes one by a tenth does not acknowledge what it is sent.
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
  bool Fits(std::uint64_t more) const noexcept { return held() + more < most_; }

  const std::uint64_t most_;
  const std::uint64_t most_each_;
  std::atomic<std::uint64_t> held_{0};
  std::atomic<std::uint64_t> guaranteed_{0};  // to all connections
};

// The share of one connection. Any thread. The destructor returns to the pool whatever is still
// held.
class HeldMemory {
 public:
  // Guaranteed to each connection: 256 MiB for 1024 connections, the default limit.
  static constexpr std::uint64_t kGuaranteed = 256 * 1024;
  // Charged for an answer that is not sent before earlier ones are acknowledged.
  static constexpr std::uint64_t kLateAnswerBytes = 24;
  // A limit that was passed by a tenth.
  struct Excess {
    std::uint64_t held;
    std::uint64_t limit;
    const char* setting;
  };

  HeldMemory() = default;
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  ~HeldMemory();

  // Call before anything is held. Without a pool nothing is refused. `reserve`: mandatory memory
  // that an honest peer may need; the limit is never less than that and kGuaranteed.
  void SetPool(std::shared_ptr<HeldMemoryPool> pool, std::uint64_t reserve = 0) noexcept;

  // Counts mandatory memory; never refuses.
  void Add(std::uint64_t bytes) noexcept;
  void Remove(std::uint64_t bytes) noexcept;
  // The same for buffers that every lane has. They do not count in the pool, or the idle lanes of
  // many connections would exhaust it.
  void AddBuffers(std::uint64_t bytes) noexcept { buffers_.fetch_add(bytes, kRelaxed); }
  void RemoveBuffers(std::uint64_t bytes) noexcept { buffers_.fetch_sub(bytes, kRelaxed); }
  // The same for answers of kLateAnswerBytes each.
  void AddLateAnswer() noexcept;
  void RemoveLateAnswers(std::uint64_t count) noexcept;
  std::uint64_t late_answers() const noexcept { return late_answers_.load(kRelaxed); }
  // Takes optional memory; returns false, and takes nothing, if there is no room.
  bool TryAdd(std::uint64_t bytes) noexcept;
  // The two steps of TryAdd, for memory that is needed later: the check and the addition.
  bool HasRoom(std::uint64_t bytes) const noexcept;
  void AddTried(std::uint64_t bytes) noexcept;
  void RemoveTried(std::uint64_t bytes) noexcept;
  // Whether there is no room beyond the guarantee.
  bool full() const noexcept { return !Fits(0) || !PoolFits(0); }
  // The limit that is passed by a tenth, for which the connection must end; for the pool, by what
  // is guaranteed as well. `answers`: bytes of this connection that its peer has not acknowledged;
  // without many of them it is not ended for the pool.
  std::optional<Excess> FindExcess(std::uint64_t answers) const noexcept;
  // Whether FindExcess() may find one; reads only this connection's counts.
  bool MayExceed(std::uint64_t answers) const noexcept {
    return held() > limit_ || answers > kGuaranteed;
  }
  // What the connection holds, with its buffers.
  std::uint64_t held() const noexcept { return held_.load(kRelaxed) + buffers_.load(kRelaxed); }
  // Limit of the connection, in bytes.
  std::uint64_t limit() const noexcept { return limit_; }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;

  bool Fits(std::uint64_t more) const noexcept;
  bool PoolFits(std::uint64_t more) const noexcept { return !pool_ || pool_->Fits(more); }

  std::shared_ptr<HeldMemoryPool> pool_;  // shared with the endpoint, which handles may outlive
  std::uint64_t limit_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t reserve_ = 0;
  std::atomic<std::uint64_t> held_{0};     // both kinds, without buffers
  std::atomic<std::uint64_t> tried_{0};    // optional only
  std::atomic<std::uint64_t> buffers_{0};  // of lanes
  std::atomic<std::uint64_t> late_answers_{0};
};

}  // namespace ferry::transfer
