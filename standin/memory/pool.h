// The pool of bounce buffers of a device.
#pragma once
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "standin/memory/memory.h"
#include "standin/original_layout.h"

namespace ferry::standin {

// Maximum number of fragments in a row: one less than its capacity, as in the original.
inline constexpr std::size_t kMaxFragments = tcpx::kRowFragments - 1;

// The pages of a message until it is consumed.
struct Landing {
  struct Run {
    std::uint32_t page = 0;
    std::uint32_t pages = 0;
  };
  std::vector<tcpx::Fragment> fragments;  // in the order of `dst`, without gaps
  std::vector<Run> runs;
};

// The bounce buffers of one device, for all comms. Pages of 4 KiB are given out at random. Any
// thread.
class Pool {
 public:
  struct Shape {
    std::uint64_t bytes = 0;     // rounded down to pages; at most 4 GiB
    std::uint32_t together = 1;  // so many whole pages of a message are taken as one run
    std::uint32_t spread = 1;    // each of them begins so many pages after the one before
  };
  Pool(Memory& memory, int device, const Shape& shape, std::uint64_t seed);

  // Null if memory could not be allocated.
  std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return std::uint64_t{kPageBytes} * used_.size(); }

  // Room for fragments of these lengths, each at a random place in its first page; one that finds
  // no pages in a row is cut into smaller ones. All or nothing, so that a message that has begun
  // can always be finished: nothing while pages are short.
  std::optional<Landing> Take(std::span<const std::uint32_t> lengths);
  // Poisons the pages before they are free again.
  void Give(const Landing& landing);

  // Blocks until all poisoning has ended.
  unsigned long pages_in_use();

 private:
  static constexpr std::uint32_t kPageBytes = 4096;

  // As many of the first of these as have their pages together now; 0: none.
  std::size_t TakeTogether(std::span<const std::uint32_t> lengths, Landing* landing);
  bool TakeFragment(std::uint32_t bytes, Landing* landing);
  bool TakePieces(std::uint32_t bytes, Landing* landing);
  void Append(std::uint32_t src, std::uint32_t bytes, Landing* landing);
  std::optional<std::uint32_t> FindRun(std::uint32_t pages, std::uint32_t step = 1);
  bool IsFree(std::uint32_t page, std::uint32_t pages) const;
  std::uint32_t Below(std::uint64_t limit);
  void MarkFree(const Landing& landing);
  // The pages that have been poisoned.
  void Reclaim();

  Memory& memory_;
  const int device_;
  const std::uint32_t together_;
  const std::uint32_t spread_;
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  struct Poisoning {
    void* poisoning = nullptr;
    Landing landing;
  };
  std::deque<Poisoning> poisoned_;
  std::vector<bool> used_;
  unsigned long in_use_ = 0;
  std::mt19937_64 random_;
};

}  // namespace ferry::standin
