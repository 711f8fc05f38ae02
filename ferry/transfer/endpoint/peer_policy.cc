// Which peers an endpoint trusts, over which lanes, and the record of those that it refuses.
#include "ferry/transfer/endpoint/peer_policy.h"

#include <fmt/core.h>

#include "ferry/core/log.h"

namespace ferry::transfer {

Status PeerPolicy::Load(const SecretText& secret) {
  if (secret.empty()) {
    FERRY_TRY_ASSIGN(secret_, Secret::FromConfig(config_));
  } else {
    secret_.emplace(secret);
  }
  return Ok();
}

// The route to the peer decides which interface the lane uses; the config decides whether that is
// allowed.
Status PeerPolicy::CheckLane(const net::LaneInfo& lane, const std::string& peer_name,
                             bool has_secret) const {
  FERRY_TRY(TrustIn(has_secret).CheckReach(lane, peer_name));
  const std::string& allowed = config_.interfaces;
  if (lane.same_machine || net::InterfaceAllowed(allowed, lane.interface)) return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("the route to {} leaves by {}, which FERRY_INTERFACES={} does not "
                           "allow; connect to another address of the peer, or allow it",
                           peer_name, lane.interface, allowed));
}

void PeerPolicy::OnRefused(const std::string& peer_name, const std::string& sentence) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  log_.Write(LogLevel::kWarn, "transfer", net::HostOf(peer_name), {{"peer", peer_name}}, sentence);
}

}  // namespace ferry::transfer
