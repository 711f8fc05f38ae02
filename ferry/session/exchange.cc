// What the proofs of a handshake cover.
#include "ferry/session/exchange.h"

namespace ferry::session {

// The roles differ, so that one side's proof cannot be sent back as the other's. Both nonces are in
// it, so that neither can be used again.
Mac Exchange::ClientProof(const Secret& secret) const {
  return secret.Sign("client", {wire::BytesOf(first), opening, server, client, binding});
}

Mac Exchange::ServerProof(const Secret& secret) const {
  return secret.Sign("server", {wire::BytesOf(first), opening, server, client, binding, answer});
}

Mac Exchange::ConfirmProof(const Secret& secret, std::span<const std::byte> body) const {
  return secret.Sign("confirm",
                     {wire::BytesOf(first), opening, server, client, binding, answer, body});
}

}  // namespace ferry::session
