// The user who owns the other end of a TCP connection within this machine.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/transfer/connection.h"

namespace ferry::tools {

// The owner of the socket at `remote` that is connected to `local`, both "host:port" as seen from
// here. Nothing where this network namespace has no such socket, or no process holds it any more.
std::optional<uid_t> UserOfPeer(const std::string& local, const std::string& remote);

// Whether a peer may use a server. An endpoint without a secret admits each process of its machine;
// a server of the tools acts for its user, so it also requires that the process is that user's.
// Errors: kRefused.
Status CheckUser(const transfer::ConnectionInfo& info, const Config& config);

}  // namespace ferry::tools
