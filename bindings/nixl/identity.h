// Proofs between agents: that a peer has our metadata, and which agent it is.
#pragma once
#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/nixl/wire.h"
#include "ferry/core/config.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_handle.h"

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
  // The hello of this agent to the one that it calls `receiver`, valid on that connection only: it
  // signs both names and Connection::session().
  Hello SayHello(std::string agent, std::string_view receiver, const Uuid& session) const;

 private:
  SigningKey(UniqueHandle<EvpKeyTraits> key, const PublicKey& public_key)
      : key_(std::move(key)), public_key_(public_key) {}

  UniqueHandle<EvpKeyTraits> key_;
  PublicKey public_key_;
};

// Verifies that hello.key signed this hello for `receiver` and this connection.
bool IsSigned(const Hello& hello, std::string_view receiver, const Uuid& session);

}  // namespace ferry::nixl
