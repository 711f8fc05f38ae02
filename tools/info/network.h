// The network sections of `ferry info`, as JSON and as text.
#pragma once
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "tools/support/json.h"

namespace ferry::tools {

// Every IP address of this machine, and every interface without one: its interface, state, MTU
// (bytes) and speed (Mbit/s; null where unknown), and whether peers are told of it and why not.
Json InterfaceInfo(const Config& config);
void PrintInterfaces(const Json& interfaces);

struct PeerReport {
  Json info;
  Status reached;  // whether an endpoint has answered; its error is the member "error" of info, too
};

// The routes to "host[:port]" and, where an endpoint answers there, a connection to it and what
// each of its lanes has become. Takes until lanes stop moving, 500 ms at most, beyond connecting.
// Errors: kInvalidArgument (host).
Result<PeerReport> PeerInfo(const Config& config, const std::string& peer);
void PrintPeer(const Json& peer);

}  // namespace ferry::tools
