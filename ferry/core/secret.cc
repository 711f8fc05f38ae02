// Reads and keeps the shared secret, checks who may read its file, and computes its HMACs.
#include "ferry/core/secret.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "ferry/core/log.h"
#include "ferry/core/mapping.h"

namespace ferry {
namespace {

// One byte more than a secret and its line end, so that a longer file is noticed without reading
// all. Overwritten afterwards.
struct FileText {
  std::array<char, kMaxSecretBytes + 2> bytes{};
  FileText() = default;
  FileText(const FileText&) = delete;
  FileText& operator=(const FileText&) = delete;
  ~FileText() { ::explicit_bzero(bytes.data(), bytes.size()); }
};

// Reads until the buffer is full or the file ends, and returns the number of bytes. Not a stream,
// whose own buffer would keep the text.
Result<std::size_t> ReadInto(FileText* to, const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoError("open", errno);
  std::size_t size = 0;
  while (size < to->bytes.size()) {
    const ssize_t got = ::read(file.get(), to->bytes.data() + size, to->bytes.size() - size);
    if (got == 0) break;
    if (got > 0) {
      size += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      return ErrnoError("read", errno);
    }
  }
  return size;
}

Result<SecretText> ReadSecretFile(const std::string& path) {
  FileText file;
  const auto size = ReadInto(&file, path);
  if (!size) {
    return Error(Code::kInvalidArgument,
                 fmt::format("secret_file {} cannot be read: {}; give this user the right to read "
                             "it, or name another file",
                             path, size.error().message()));
  }
  std::string_view text(file.bytes.data(), *size);
  // Editors and `openssl rand` end the file with a line end; only one is taken off.
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (text.size() < kMinSecretBytes || text.size() > kMaxSecretBytes) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("secret_file {} holds {}{} bytes, {} to {} are allowed; make one by "
                    "\"openssl rand -hex 32\"",
                    path, text.size() > kMaxSecretBytes ? "more than " : "",
                    std::min(text.size(), kMaxSecretBytes), kMinSecretBytes, kMaxSecretBytes));
  }
  return SecretText(text);
}

// Each part behind its length, so that no two lists of parts sign the same bytes.
void AppendPart(std::vector<std::byte>* to, std::span<const std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  const auto length = std::as_bytes(std::span(&size, 1));
  to->insert(to->end(), length.begin(), length.end());
  to->insert(to->end(), bytes.begin(), bytes.end());
}

}  // namespace

struct SecretText::Pages {
  explicit Pages(UniqueMapping its_mapping) : mapping(std::move(its_mapping)) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::explicit_bzero(mapping.get().at, mapping.get().bytes); }

  const UniqueMapping mapping;
};

std::shared_ptr<const SecretText::Pages> SecretText::Keep(std::string_view text) {
  if (text.empty()) return nullptr;
  void* const at =
      ::mmap(nullptr, text.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  auto pages = std::make_shared<const Pages>(UniqueMapping(Mapping{at, text.size()}));
  (void)::madvise(at, text.size(), MADV_DONTDUMP);  // cannot fail for a mapping of this kind
  std::memcpy(at, text.data(), text.size());
  return pages;
}

std::string_view SecretText::view() const noexcept {
  if (empty()) return {};
  const Mapping mapping = pages_->mapping.get();
  return {static_cast<const char*>(mapping.at), mapping.bytes};
}

Result<SecretText> LoadSecret(const Config& config) {
  if (!config.secret.empty() && !config.secret_file.empty()) {
    return Error(Code::kInvalidArgument,
                 "both secret (FERRY_SECRET) and secret_file (FERRY_SECRET_FILE) are set; give one "
                 "of them");
  }
  if (config.secret_file.empty()) return config.secret;
  return ReadSecretFile(config.secret_file);
}

void WarnIfOthersMayRead(std::string_view setting, const std::string& path) {
  struct stat about {};
  if (path.empty() || ::stat(path.c_str(), &about) != 0) return;
  if ((about.st_mode & (S_IRGRP | S_IROTH)) == 0) return;
  Log(LogLevel::kWarn, "config", "{} {} may be read by others; chmod 600 it", setting, path);
}

Result<std::optional<Secret>> Secret::FromConfig(const Config& config) {
  FERRY_TRY_ASSIGN(SecretText text, LoadSecret(config));
  WarnIfOthersMayRead("secret_file", config.secret_file);
  if (text.empty()) return std::optional<Secret>();
  return std::optional<Secret>(Secret(std::move(text)));
}

Mac Hmac(std::span<const std::byte> key, std::span<const std::byte> message) {
  Mac mac;
  unsigned int length = 0;
  // OpenSSL uses unsigned char.
  const auto* done = ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                            reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                            reinterpret_cast<unsigned char*>(mac.data()), &length);
  FERRY_CHECK(done != nullptr && length == mac.size(), length);
  return mac;
}

Mac Secret::Sign(std::string_view role,
                 std::initializer_list<std::span<const std::byte>> parts) const {
  std::vector<std::byte> said;
  AppendPart(&said, std::as_bytes(std::span(role)));
  for (const auto part : parts) AppendPart(&said, part);
  return Hmac(std::as_bytes(std::span(text_.view())), said);
}

bool EqualInConstantTime(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ferry
