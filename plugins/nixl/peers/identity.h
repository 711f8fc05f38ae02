// Proofs between agents: that a peer has our metadata, and which agent it is.
#pragma once
#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ferry/core/config.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_handle.h"
#include "ferry/transfer/options.h"
#include "plugins/nixl/peers/wire.h"

namespace ferry::nixl {

// The secret that both sides of a connection to an agent prove. `metadata`: the random secret in
// that agent's metadata; `settings`: the text that the settings give to all agents, or empty.
SecretText ConnectionSecret(const SecretText& settings, const Uuid& metadata);

struct EvpKeyTraits {
  using Handle = EVP_PKEY*;
  static constexpr Handle kInvalid = nullptr;
  static void Destroy(Handle key) noexcept { ::EVP_PKEY_free(key); }
};

// An agent's key pair (Ed25519), with which it proves its name. Any thread.
class SigningKey {
 public:
  // Errors: kUnsupported where OpenSSL has no Ed25519.
  static Result<SigningKey> Random();

  const PublicKey& public_key() const noexcept { return public_key_; }
  // The identity of this agent for the one that it calls `receiver`, valid in one handshake only:
  // it signs both names and the transcript.
  Identity Identify(std::string agent, std::string_view receiver,
                    std::span<const std::byte> transcript) const;

 private:
  SigningKey(UniqueHandle<EvpKeyTraits> key, const PublicKey& public_key)
      : key_(std::move(key)), public_key_(public_key) {}

  UniqueHandle<EvpKeyTraits> key_;
  PublicKey public_key_;
};

// The check of the endpoint of agent `receiver`: whether an identity is signed by the key in it,
// for that agent and this handshake. Whether the name belongs to the key, the inbox decides.
transfer::CheckIdentity CheckOfIdentities(std::string receiver);

}  // namespace ferry::nixl
