// Region keys granted to single peers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ferry/core/random.h"

namespace ferry::transfer {

enum class Rights : std::uint8_t;

// A key that only one peer may use, with the rights it grants.
struct RegionGrant {
  std::uint64_t token = 0;
  Uuid peer;
  Rights rights{};
};

// The keys of one region that were granted to single peers. Add and Find take constant time;
// Withdraw takes time per key of that peer. Not thread-safe.
class GrantTable {
 public:
  // Returns false if `grant.token` already exists.
  bool Add(const RegionGrant& grant);
  // Null if there is none. Valid until the next change.
  const RegionGrant* Find(std::uint64_t token) const;
  // Revokes all keys of the peer.
  void Withdraw(const Uuid& peer);
  std::size_t size() const noexcept { return by_token_.size(); }

 private:
  std::unordered_map<std::uint64_t, RegionGrant> by_token_;      // tokens are random
  std::unordered_map<Uuid, std::vector<std::uint64_t>> tokens_;  // by peer
};

}  // namespace ferry::transfer
