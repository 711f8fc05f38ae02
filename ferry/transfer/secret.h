#pragma once
#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

// An HMAC-SHA-256 (RFC 2104, FIPS 198-1).
using Mac = std::array<std::byte, 32>;

// What both sides of a connection know. It never goes over the wire; each side shows that it knows
// it by a code over what was said, challenges of both sides included.
class Secret {
 public:
  // None where the config names none. Errors: kInvalidArgument for a file that cannot be read or
  // holds no secret of a length that is allowed, and for a config that names both.
  static Result<std::optional<Secret>> FromConfig(const Config& config);

  // The code over `role`, which tells apart what either side may say, and the parts with their
  // lengths.
  Mac Sign(std::string_view role, std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  explicit Secret(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

// What the two sides of a lane have said to know each other, and what each proves itself with.
struct Exchange {
  wire::Type first{};             // of the client's first frame
  std::vector<std::byte> said;    // its body
  net::ChannelBinding binding{};  // of the lane, as the side that proves itself sees it
  wire::Nonce server{};
  wire::Nonce client{};

  Mac ClientProof(const Secret& secret) const;
  // `answer` is the body of the frame that the server lets the client in with.
  Mac ServerProof(const Secret& secret, std::span<const std::byte> answer) const;
};

// In a time that does not tell where they differ, only whether their sizes do.
bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

}  // namespace ferry::transfer
