// The random seed of the process's hash tables.
#include "ferry/core/seeded_hash.h"

#include "ferry/core/random.h"

namespace ferry {

std::uint64_t SeededHash::Seed() noexcept {
  // Random, so that a peer cannot choose keys that all fall into one bucket.
  static const std::uint64_t seed = RandomU64();
  return seed;
}

}  // namespace ferry
