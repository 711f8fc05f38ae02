#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ferry/core/random.h"

namespace ferry::transfer {

enum class Rights : std::uint8_t;

// A key that only one peer may use, and for what.
struct RegionGrant {
  std::uint64_t token = 0;
  Uuid peer;
  Rights rights{};
};

// The keys of one region that were granted to single peers. Each call takes constant time, however
// many there are; Withdraw, for each key of that peer.
class GrantTable {
 public:
  // `grant.token` must be new: false where it is not.
  bool Add(const RegionGrant& grant);
  // Null where there is none. Valid until the next change.
  const RegionGrant* Find(std::uint64_t token) const;
  // Takes all keys of the peer back.
  void Withdraw(const Uuid& peer);
  std::size_t size() const noexcept { return by_token_.size(); }

 private:
  std::unordered_map<std::uint64_t, RegionGrant> by_token_;      // tokens are random
  std::unordered_map<Uuid, std::vector<std::uint64_t>> tokens_;  // of each peer
};

}  // namespace ferry::transfer
