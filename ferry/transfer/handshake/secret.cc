// Reads the shared secret and computes its HMACs.
#include "ferry/transfer/handshake/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdint>

#include "ferry/core/check.h"
#include "ferry/core/secret.h"

namespace ferry::transfer {
namespace {

// Each part behind its length, so that no two lists of parts sign the same bytes.
void Append(std::vector<std::byte>* to, std::span<const std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  const auto length = std::as_bytes(std::span(&size, 1));
  to->insert(to->end(), length.begin(), length.end());
  to->insert(to->end(), bytes.begin(), bytes.end());
}

}  // namespace

Result<std::optional<Secret>> Secret::FromConfig(const Config& config) {
  FERRY_TRY_ASSIGN(SecretText text, LoadSecret(config));
  WarnIfOthersMayRead("secret_file", config.secret_file);
  if (text.empty()) return std::optional<Secret>();
  return std::optional<Secret>(Secret(std::move(text)));
}

Mac Secret::Sign(std::string_view role,
                 std::initializer_list<std::span<const std::byte>> parts) const {
  std::vector<std::byte> said;
  Append(&said, std::as_bytes(std::span(role)));
  for (const auto part : parts) Append(&said, part);
  Mac mac;
  unsigned int length = 0;
  const std::string_view key = text_.view();
  // OpenSSL uses unsigned char.
  const auto* done = ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                            reinterpret_cast<const unsigned char*>(said.data()), said.size(),
                            reinterpret_cast<unsigned char*>(mac.data()), &length);
  FERRY_CHECK(done != nullptr && length == mac.size(), length);
  return mac;
}

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

bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ferry::transfer
