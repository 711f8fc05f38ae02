// Derives the secrets of connections from agents' metadata.
#include "bindings/nixl/identity.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <string_view>

#include "ferry/core/check.h"

namespace ferry::nixl {
namespace {

// Separates this secret from others that are derived from the same text.
constexpr std::string_view kSecretPurpose = "tensorferry nixl 1";

// OpenSSL uses unsigned char.
const unsigned char* ForOpenSsl(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

std::array<std::byte, 32> HmacOf(std::span<const std::byte> key,
                                 std::span<const std::byte> message) {
  std::array<std::byte, 32> mac{};
  const auto* done =
      ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), ForOpenSsl(message),
             message.size(), reinterpret_cast<unsigned char*>(mac.data()), nullptr);
  FERRY_CHECK(done != nullptr);
  return mac;
}

SecretText ConnectionSecret(const SecretText& settings, const Uuid& metadata) {
  std::array<std::byte, kSecretPurpose.size() + sizeof(Uuid)> message{};
  const auto purpose = std::as_bytes(std::span(kSecretPurpose));
  const auto end = std::copy(purpose.begin(), purpose.end(), message.begin());
  std::copy(metadata.bytes.begin(), metadata.bytes.end(), end);
  const std::span<const std::byte> random(metadata.bytes);
  auto mac = HmacOf(settings.empty() ? random : std::as_bytes(std::span(settings.view())), message);
  SecretText secret(std::string_view(reinterpret_cast<const char*>(mac.data()), mac.size()));
  ::OPENSSL_cleanse(mac.data(), mac.size());
  return secret;
}

}  // namespace ferry::nixl
