// Whom a side trusts, with a secret and without.
#pragma once
#include <string>

#include "ferry/core/result.h"
#include "ferry/net/machine/socket_owner.h"
#include "ferry/net/provider.h"
#include "ferry/session/handshake.h"

namespace ferry::session {

// What settings say about peers of a lane.
struct Trust {
  bool has_secret = false;   // the peer has to prove one
  bool is_insecure = false;  // without one, peers of other machines are trusted, too

  // Whether something else than its process authenticates the peer, or nothing has to.
  bool NeedsNoProcess(const net::LaneInfo& lane) const noexcept {
    return has_secret || lane.authenticated || is_insecure;
  }
  // Whether a lane to this peer may be used at all. Errors: kRefused.
  Status CheckReach(const net::LaneInfo& lane, const std::string& peer_name) const;
  // Whether the peer may be trusted: where nothing else authenticates it, it must be `process`, as
  // it says itself, of our user on this machine. Asks the kernel only then. On the lane's loop;
  // does not block. Errors: kRefused; kUnavailable without a descriptor to ask with.
  Status CheckPeerOnLoop(Handshake* handshake, const net::ProcessHint& process) const;
};

}  // namespace ferry::session
