// The proofs of a handshake, made with the shared secret of two endpoints.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "ferry/core/secret.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {

// The handshake frames of one lane that the proofs cover.
struct Exchange {
  wire::Type first{};             // type of the client's first frame
  std::vector<std::byte> said;    // its body
  net::ChannelBinding binding{};  // of the lane, as seen by the side that proves itself
  wire::Nonce server{};
  wire::Nonce client{};

  Mac ClientProof(const Secret& secret) const;
  // `answer`: body of the frame with which the server accepts the client.
  Mac ServerProof(const Secret& secret, std::span<const std::byte> answer) const;
};

}  // namespace ferry::transfer
