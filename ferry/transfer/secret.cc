#include "ferry/transfer/secret.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "ferry/core/log.h"

namespace ferry::transfer {
namespace {

void Append(std::vector<std::byte>* to, std::span<const std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  const auto length = std::as_bytes(std::span(&size, 1));
  to->insert(to->end(), length.begin(), length.end());
  to->insert(to->end(), bytes.begin(), bytes.end());
}

Result<std::string> ReadSecretFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxSecretBytes + 2, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("secret_file {} cannot be read: {}; give this user the right to read "
                             "it, or name another file",
                             path, ErrnoError("open", errno).message()));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() < kMinSecretBytes || text.size() > kMaxSecretBytes) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("secret_file {} holds {}{} bytes, {} to {} are allowed; make one by "
                    "\"openssl rand -hex 32\"",
                    path, text.size() > kMaxSecretBytes ? "more than " : "",
                    std::min(text.size(), kMaxSecretBytes), kMinSecretBytes, kMaxSecretBytes));
  }
  struct stat about {};
  if (::stat(path.c_str(), &about) == 0 && (about.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    Log(LogLevel::kWarn, "transfer", "secret_file {} may be read by others; chmod 600 it", path);
  }
  return text;
}

}  // namespace

Result<std::optional<Secret>> Secret::FromConfig(const Config& config) {
  if (!config.secret.empty() && !config.secret_file.empty()) {
    return Error(Code::kInvalidArgument,
                 "both secret (FERRY_SECRET) and secret_file (FERRY_SECRET_FILE) are set; give one "
                 "of them");
  }
  std::string text = config.secret;
  if (!config.secret_file.empty()) {
    FERRY_TRY_ASSIGN(text, ReadSecretFile(config.secret_file));
  }
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
  // OpenSSL's bytes are unsigned char.
  const auto* done = ::HMAC(::EVP_sha256(), text_.data(), static_cast<int>(text_.size()),
                            reinterpret_cast<const unsigned char*>(said.data()), said.size(),
                            reinterpret_cast<unsigned char*>(mac.data()), &length);
  FERRY_CHECK(done != nullptr && length == mac.size(), length);
  return mac;
}

Mac Exchange::ClientProof(const Secret& secret) const {
  return secret.Sign("client", {std::as_bytes(std::span(&first, 1)), said, server, client});
}

Mac Exchange::ServerProof(const Secret& secret, std::span<const std::byte> answer) const {
  return secret.Sign("server", {std::as_bytes(std::span(&first, 1)), said, server, client, answer});
}

bool SameMac(const Mac& a, const Mac& b) noexcept {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ferry::transfer
