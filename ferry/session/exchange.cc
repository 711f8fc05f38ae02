// What the proofs of a handshake cover.
#include "ferry/session/exchange.h"

namespace ferry::session {

Mac Exchange::Transcript(const Secret& secret) const {
  return secret.Sign("transcript",
                     {wire::BytesOf(role), wire::BytesOf(first), opening, server, client, binding});
}

// The first words differ, so that one side's proof cannot be sent back as the other's. The
// transcript has both nonces and the role, so that no proof is valid again, or for another role.
Mac Exchange::ClientProof(const Secret& secret) const {
  return secret.Sign("client", {Transcript(secret), identity});
}

Mac Exchange::ServerProof(const Secret& secret) const {
  return secret.Sign("server", {Transcript(secret), identity, answer});
}

Mac Exchange::ConfirmProof(const Secret& secret, std::span<const std::byte> body) const {
  return secret.Sign("confirm", {Transcript(secret), identity, answer, body});
}

}  // namespace ferry::session
