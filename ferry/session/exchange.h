// The proofs of a handshake, made with a secret that both sides share.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "ferry/core/secret.h"
#include "ferry/net/provider.h"
#include "ferry/session/wire.h"

namespace ferry::session {

// The handshake frames of one lane that the proofs cover.
struct Exchange {
  wire::Role role{};
  wire::Type first{};              // type of the dialing side's first frame
  std::vector<std::byte> opening;  // its body
  net::ChannelBinding binding{};   // of the lane, as seen by the side that proves itself
  wire::Nonce server{};
  wire::Nonce client{};
  std::vector<std::byte> identity;  // what the dialing side's proof carries
  std::vector<std::byte> answer;    // body of the frame with which the accepting side accepts

  // Names this handshake, with both nonces: what an identity has to be signed over.
  Mac Transcript(const Secret& secret) const;
  Mac ClientProof(const Secret& secret) const;
  Mac ServerProof(const Secret& secret) const;
  // For a kConfirm frame with this body.
  Mac ConfirmProof(const Secret& secret, std::span<const std::byte> body) const;
};

}  // namespace ferry::session
