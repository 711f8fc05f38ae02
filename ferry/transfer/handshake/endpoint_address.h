// Where an endpoint can be reached, as bytes that a user passes on.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"

namespace ferry::transfer {

// Where an endpoint can be reached and which one it is; opaque bytes for the user to pass on.
struct EndpointAddress {
  Uuid endpoint;  // none(): whichever listens there
  std::vector<net::Address> at;

  static constexpr std::size_t kMaxAddresses = 64;

  std::vector<std::byte> Serialize() const;
  // Errors: kInvalidArgument for bytes that are no address of this version.
  static Result<EndpointAddress> Parse(std::span<const std::byte> bytes);
};

}  // namespace ferry::transfer
