// The random seed of the process's hash tables.
#include "ferry/core/seeded_hash.h"

#include "ferry/core/random.h"

namespace ferry {

std::uint64_t SeededHash::Seed() noexcept {
  static const std::uint64_t seed = RandomU64();
  return seed;
}

}  // namespace ferry
