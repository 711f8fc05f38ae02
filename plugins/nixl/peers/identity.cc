// Derives the secrets of connections, and signs and verifies identities.
#include "plugins/nixl/peers/identity.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "ferry/core/secret.h"

namespace ferry::nixl {
namespace {

// Separates this secret from others that are derived from the same text.
constexpr std::string_view kSecretPurpose = "tensorferry nixl 1";
constexpr std::string_view kIdentityPurpose = "tensorferry nixl identity 1";

// OpenSSL uses unsigned char.
const unsigned char* ForOpenSsl(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
// The same for what it writes.
unsigned char* IntoFromOpenSsl(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

struct EvpContextTraits {
  using Handle = EVP_MD_CTX*;
  static constexpr Handle kInvalid = nullptr;
  static void Destroy(Handle context) noexcept { ::EVP_MD_CTX_free(context); }
};

UniqueHandle<EvpContextTraits> NewContext() {
  UniqueHandle<EvpContextTraits> context(::EVP_MD_CTX_new());
  if (!context) throw std::bad_alloc();
  return context;
}

// The sender's name is preceded by its length, so that no other two names give the same bytes.
std::vector<std::byte> StatementOf(std::string_view agent, std::string_view receiver,
                                   std::span<const std::byte> transcript) {
  const std::uint64_t length = agent.size();
  std::vector<std::byte> statement;
  for (const std::span<const std::byte> part :
       {std::as_bytes(std::span(kIdentityPurpose)), transcript,
        std::as_bytes(std::span(&length, 1)), std::as_bytes(std::span(agent)),
        std::as_bytes(std::span(receiver))}) {
    statement.insert(statement.end(), part.begin(), part.end());
  }
  return statement;
}

bool IsSigned(const Identity& identity, std::string_view receiver,
              std::span<const std::byte> transcript) {
  const std::vector<std::byte> statement = StatementOf(identity.agent, receiver, transcript);
  const UniqueHandle<EvpKeyTraits> key(::EVP_PKEY_new_raw_public_key(
      EVP_PKEY_ED25519, nullptr, ForOpenSsl(identity.key), identity.key.size()));
  const auto context = NewContext();
  const bool is_signed =
      key && ::EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
      ::EVP_DigestVerify(context.get(), ForOpenSsl(identity.signature), identity.signature.size(),
                         ForOpenSsl(statement), statement.size()) == 1;
  ::ERR_clear_error();  // of this thread
  return is_signed;
}

}  // namespace

SecretText ConnectionSecret(const SecretText& settings, const Uuid& metadata) {
  std::array<std::byte, kSecretPurpose.size() + sizeof(Uuid)> message{};
  const auto purpose = std::as_bytes(std::span(kSecretPurpose));
  const auto end = std::copy(purpose.begin(), purpose.end(), message.begin());
  std::copy(metadata.bytes.begin(), metadata.bytes.end(), end);
  const std::span<const std::byte> random(metadata.bytes);
  Mac mac = Hmac(settings.empty() ? random : std::as_bytes(std::span(settings.view())), message);
  // A secret is text, of any bytes.
  SecretText secret(std::string_view(reinterpret_cast<const char*>(mac.data()), mac.size()));
  ::OPENSSL_cleanse(mac.data(), mac.size());
  return secret;
}

Result<SigningKey> SigningKey::Random() {
  std::array<std::byte, 32> seed{};
  FillRandom(seed);
  UniqueHandle<EvpKeyTraits> key(
      ::EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, ForOpenSsl(seed), seed.size()));
  ::OPENSSL_cleanse(seed.data(), seed.size());
  PublicKey half{};
  std::size_t bytes = half.size();
  if (!key || ::EVP_PKEY_get_raw_public_key(key.get(), IntoFromOpenSsl(half), &bytes) != 1) {
    ::ERR_clear_error();
    return Error(Code::kUnsupported,
                 "this OpenSSL has no Ed25519, but agents sign their names with it; enable it in "
                 "OpenSSL's configuration");
  }
  return SigningKey(std::move(key), half);
}

Identity SigningKey::Identify(std::string agent, std::string_view receiver,
                              std::span<const std::byte> transcript) const {
  const std::vector<std::byte> statement = StatementOf(agent, receiver, transcript);
  Identity identity{.key = public_key_, .signature = {}, .agent = std::move(agent)};
  std::size_t bytes = identity.signature.size();
  const auto context = NewContext();
  const bool signs =
      ::EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_.get()) == 1 &&
      ::EVP_DigestSign(context.get(), IntoFromOpenSsl(identity.signature), &bytes,
                       ForOpenSsl(statement), statement.size()) == 1;
  if (!signs) throw std::bad_alloc();  // nothing else can fail
  return identity;
}

transfer::CheckIdentity CheckOfIdentities(std::string receiver) {
  return [receiver = std::move(receiver)](std::span<const std::byte> bytes,
                                          std::span<const std::byte> transcript) -> Status {
    FERRY_TRY_ASSIGN(const Identity identity, Identity::Parse(bytes));
    if (IsSigned(identity, receiver, transcript)) return Ok();
    return Error(Code::kRefused,
                 fmt::format("agent '{}' is not proved to be '{}'; load the metadata of each agent "
                             "under its own name",
                             receiver, identity.agent));
  };
}

}  // namespace ferry::nixl
