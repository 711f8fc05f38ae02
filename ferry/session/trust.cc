// Whom a side trusts, with a secret and without.
#include "ferry/session/trust.h"

#include <fmt/core.h>

namespace ferry::session {

Status Trust::CheckReach(const net::LaneInfo& lane, const std::string& peer_name) const {
  if (lane.same_machine || NeedsNoProcess(lane)) return Ok();
  return Error(
      Code::kRefused,
      fmt::format("{} is on another machine and there is no secret to authenticate it; set "
                  "FERRY_SECRET_FILE on both sides, or FERRY_INSECURE=on in a network you "
                  "trust",
                  peer_name));
}

Status Trust::CheckPeerOnLoop(Handshake* handshake, const net::ProcessHint& process) const {
  if (NeedsNoProcess(handshake->info())) return Ok();
  if (handshake->is_local()) return handshake->RequireProofOnLoop(process);
  return Error(Code::kRefused,
               "this endpoint has no secret to authenticate peers on other machines; set "
               "FERRY_SECRET_FILE on both sides, or FERRY_INSECURE=on in a network you trust");
}

}  // namespace ferry::session
