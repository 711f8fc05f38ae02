// Adds, finds and revokes region keys of single peers.
#include "ferry/transfer/memory/grant_table.h"

namespace ferry::transfer {

bool GrantTable::Add(const RegionGrant& grant) {
  if (!by_token_.emplace(grant.token, grant).second) return false;
  tokens_[grant.peer].push_back(grant.token);
  return true;
}

const RegionGrant* GrantTable::Find(std::uint64_t token) const {
  const auto it = by_token_.find(token);
  return it == by_token_.end() ? nullptr : &it->second;
}

void GrantTable::Withdraw(const Uuid& peer) {
  const auto tokens = tokens_.find(peer);
  if (tokens == tokens_.end()) return;
  for (const std::uint64_t token : tokens->second) by_token_.erase(token);
  tokens_.erase(tokens);
}

}  // namespace ferry::transfer
