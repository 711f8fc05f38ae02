// What the proofs of a handshake cover.
#include "ferry/transfer/handshake/secret.h"

namespace ferry::transfer {

// The roles differ, so that one side's proof cannot be sent back as the other's. Both nonces are in
// it, so that neither can be used again.
Mac Exchange::ClientProof(const Secret& secret) const {
  return secret.Sign("client",
                     {std::as_bytes(std::span(&first, 1)), said, server, client, binding});
}

Mac Exchange::ServerProof(const Secret& secret, std::span<const std::byte> answer) const {
  return secret.Sign("server",
                     {std::as_bytes(std::span(&first, 1)), said, server, client, binding, answer});
}

}  // namespace ferry::transfer
