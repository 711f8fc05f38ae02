// What an agent proves to its peers by the metadata that they have of it.
#pragma once
#include <array>
#include <cstddef>
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/random.h"

namespace ferry::nixl {

// HMAC-SHA-256 (RFC 2104, FIPS 198-1). `key`: not empty.
std::array<std::byte, 32> HmacOf(std::span<const std::byte> key,
                                 std::span<const std::byte> message);

// The secret that both sides of a connection to an agent prove. `metadata`: the random secret in
// that agent's metadata; `settings`: the text that the settings give to all agents, or empty.
SecretText ConnectionSecret(const SecretText& settings, const Uuid& metadata);

}  // namespace ferry::nixl
