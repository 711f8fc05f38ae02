// Hash functions whose collisions a peer cannot construct.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ferry {

// For tables whose keys a peer chooses: the seed is random and fixed for the process, so a peer
// cannot choose keys that share a bucket.
class SeededHash {
 public:
  std::size_t operator()(std::uint64_t key) const noexcept {
    std::uint64_t mixed = key ^ Seed();
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBU;
    return static_cast<std::size_t>(mixed ^ (mixed >> 31));
  }

 private:
  static std::uint64_t Seed() noexcept;
};

// For tables with consecutive keys: eight consecutive keys get adjacent places, for cache locality.
class SeededHashOfRuns {
 public:
  std::size_t operator()(std::uint64_t key) const noexcept {
    return 8 * SeededHash()(key / 8) + key % 8;
  }
};

}  // namespace ferry
