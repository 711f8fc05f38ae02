// The shared secret of two endpoints, and the proofs made with it.
#pragma once
#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {

// An HMAC-SHA-256 (RFC 2104, FIPS 198-1).
using Mac = std::array<std::byte, 32>;

// The secret that both sides of a connection share. It is never sent; each side proves that it
// knows it by an HMAC over the handshake frames, which include a challenge of each side.
class Secret {
 public:
  // nullopt if the config names no secret. Errors: kInvalidArgument for a file that cannot be read,
  // a secret of a length that is not allowed, or a config that names both a file and a secret.
  static Result<std::optional<Secret>> FromConfig(const Config& config);

  // A secret that is not the config's. `text`: not empty.
  explicit Secret(SecretText text) : text_(std::move(text)) {}

  // HMAC over `role` and the parts with their lengths. `role` separates the statements that the two
  // sides may sign.
  Mac Sign(std::string_view role, std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  SecretText text_;  // shared with copies of this object
};

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

// Compares in constant time: the time depends on the sizes but not on where the bytes differ.
bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

}  // namespace ferry::transfer
