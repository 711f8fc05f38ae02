// TLS keys and certificates of an endpoint.
#pragma once
#include <openssl/ssl.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_handle.h"

namespace ferry::net::tcp {

struct SslContextTraits {
  using Handle = SSL_CTX*;
  static constexpr Handle kInvalid = nullptr;
  static void Destroy(Handle context) noexcept { ::SSL_CTX_free(context); }
};

// The credentials with which an endpoint authenticates itself to its peers and verifies them, by
// TLS 1.3 (RFC 8446). Serves both ends of a connection. Any thread.
//
// "psk": a key derived from the secret by HKDF-SHA-256 (RFC 5869), always with an ephemeral key
// exchange, so that recorded traffic stays confidential if the secret leaks. "cert": both sides
// present a certificate that chains to tls_ca; revocation lists are not consulted.
class TlsContext {
 public:
  using Key = std::array<unsigned char, 32>;

  // Null where the config says "off". Reads the files. Errors: kInvalidArgument naming the setting
  // and the file.
  static Result<std::shared_ptr<const TlsContext>> Create(const Config& config);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

  SSL_CTX* get() const noexcept { return context_.get(); }
  bool is_psk() const noexcept { return is_psk_; }
  // A session that represents the shared key; null when there is no memory. The caller owns it.
  SSL_SESSION* MakeSession(SSL* ssl) const;

 private:
  explicit TlsContext(bool is_psk) : is_psk_(is_psk) {}
  Status Open();
  Status UseKey(const Config& config);
  Status UseCertificates(const Config& config);

  const bool is_psk_;
  UniqueHandle<SslContextTraits> context_;
  Key key_{};
};

// What identifies the contents of a file.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t size = -1;  // -1: there is no such file
  std::int64_t modified_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// Caches the context of the last config. Certificate files are read again when they have changed;
// if the new ones cannot be used, the context remains, with one warning. Any thread. Used through a
// shared_ptr, since its threads keep it alive.
class TlsContextCache : public std::enable_shared_from_this<TlsContextCache> {
 public:
  using Now = std::function<Clock::time_point()>;
  static constexpr std::chrono::seconds kBetweenLooks{1};

  // `timeout`: how long Get() waits for files that it has read before.
  explicit TlsContextCache(
      Clock::duration timeout = milliseconds(100), Now now = [] { return Clock::now(); })
      : timeout_(timeout), now_(std::move(now)) {}

  // Reads the files of another config than the last, and blocks until it has. Otherwise looks
  // whether they have changed, once in kBetweenLooks, by a thread of its own: a file system that
  // does not answer stops one call for the length of `timeout`, and no further call until it
  // answers. Errors: those of TlsContext::Create().
  Result<std::shared_ptr<const TlsContext>> Get(const Config& config);

 private:
  using Stamps = std::array<FileStamp, 3>;
  static Stamps StampsOf(const Config& config);

  Result<std::shared_ptr<const TlsContext>> Read(const Config& config);
  void Look(const Config& config);

  const Clock::duration timeout_;
  const Now now_;
  std::mutex mutex_;  // guards the rest; held for no access to a file
  std::optional<SecuritySettings> settings_;
  Stamps stamps_;                              // of the files when they were last read
  std::shared_ptr<const TlsContext> context_;  // shared with the streams that use it
  Clock::time_point next_look_;
  bool looking_ = false;  // a thread is in Look()
  std::condition_variable looked_;
};

// Clears this thread's OpenSSL error queue; returns the reason of the first error in words.
std::string TakeOpenSslReason();

}  // namespace ferry::net::tcp
