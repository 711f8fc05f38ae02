// TLS keys and certificates of an endpoint.
#include "ferry/net/tcp/tls/context.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "ferry/core/log.h"
#include "ferry/core/loop/thread.h"
#include "ferry/core/secret.h"

namespace ferry::net::tcp {
namespace {

// Identifies the key derivation; change it whenever the derivation changes.
constexpr std::string_view kIdentity = "tensorferry psk 1";
// Separates this key from others derived from the same secret.
constexpr std::string_view kSalt = "tensorferry tls";

// TLS_AES_128_GCM_SHA256: TLS requires the cipher's hash to be that of the key (RFC 8446, 4.2.11).
constexpr std::array<unsigned char, 2> kKeyCipher = {0x13, 0x01};
constexpr const char* kKeyCiphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

const TlsContext& ContextOf(SSL* ssl) {
  return *static_cast<const TlsContext*>(SSL_CTX_get_app_data(::SSL_get_SSL_CTX(ssl)));
}

// OpenSSL's bytes are unsigned char.
const unsigned char* Raw(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// SSL_psk_use_session_cb_func: the key that the connecting side presents.
int OfferKey(SSL* ssl, const EVP_MD* hash, const unsigned char** identity,
             std::size_t* identity_bytes, SSL_SESSION** session) {
  *identity = Raw(kIdentity);
  *identity_bytes = kIdentity.size();
  // Once a hash is negotiated, a key with another one is useless.
  const bool fits = hash == nullptr || ::EVP_MD_is_a(hash, "SHA256") == 1;
  *session = fits ? ContextOf(ssl).MakeSession(ssl) : nullptr;
  return 1;
}

// SSL_psk_find_session_cb_func: the accepting side looks up the presented key.
int FindKey(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
            SSL_SESSION** session) {
  const bool known = identity_bytes == kIdentity.size() &&
                     std::memcmp(identity, kIdentity.data(), identity_bytes) == 0;
  *session = known ? ContextOf(ssl).MakeSession(ssl) : nullptr;
  return 1;
}

// A key with a password is an error; OpenSSL must not stop the process to ask for it on the
// terminal.
int RefusePassword(char* /*to*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

// HKDF with SHA-256 (RFC 5869): TLS gets a key that is derived from the secret, never the secret.
Status MakeKey(std::string_view secret, TlsContext::Key* key) {
  EVP_KDF* const kdf = ::EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* const context = ::EVP_KDF_CTX_new(kdf);
  ::EVP_KDF_free(kdf);
  std::string hash = "SHA256";
  // OpenSSL does not write to the parameters.
  const auto octets = [](const char* name, std::string_view text) {
    return ::OSSL_PARAM_construct_octet_string(name, const_cast<char*>(text.data()), text.size());
  };
  const std::array<OSSL_PARAM, 5> parameters = {
      ::OSSL_PARAM_construct_utf8_string("digest", hash.data(), 0), octets("key", secret),
      octets("salt", kSalt), octets("info", kIdentity), ::OSSL_PARAM_construct_end()};
  const bool made = context != nullptr &&
                    ::EVP_KDF_derive(context, key->data(), key->size(), parameters.data()) == 1;
  ::EVP_KDF_CTX_free(context);
  if (made) return Ok();
  return Error(Code::kUnsupported,
               fmt::format("this OpenSSL cannot make a TLS key by HKDF: {}; set FERRY_TLS=cert",
                           TakeOpenSslReason()));
}

Error Unusable(const char* setting, const std::string& file, const char* remedy) {
  return Error(Code::kInvalidArgument, fmt::format("{} {} cannot be used: {}; {}", setting, file,
                                                   TakeOpenSslReason(), remedy));
}

Error NoContext() {
  return Error(Code::kUnavailable,
               fmt::format("OpenSSL cannot begin to speak TLS 1.3: {}; free memory, or check its "
                           "configuration",
                           TakeOpenSslReason()));
}

Status CheckFilesAreNamed(const Config& config) {
  for (const auto& [name, file] :
       {std::pair("tls_cert", &config.tls_cert), std::pair("tls_key", &config.tls_key),
        std::pair("tls_ca", &config.tls_ca)}) {
    if (!file->empty()) continue;
    return Error(Code::kInvalidArgument,
                 fmt::format("tls is cert and {} names no file; set tls_cert, tls_key and tls_ca "
                             "(FERRY_TLS_CERT, FERRY_TLS_KEY, FERRY_TLS_CA)",
                             name));
  }
  return Ok();
}

}  // namespace

std::string TakeOpenSslReason() {
  const unsigned long error = ::ERR_peek_error();
  ::ERR_clear_error();
  // The first error of the queue is the cause; those after it are consequences. The queue belongs
  // to the thread, so it is emptied here and before each call whose outcome is looked at.
  if (error == 0) return "no reason given";
  if (ERR_SYSTEM_ERROR(error)) return std::strerror(ERR_GET_REASON(error));
  const char* const reason = ::ERR_reason_error_string(error);
  return reason != nullptr ? reason : fmt::format("error {:x}", error);
}

// ---- TlsContext ---------------------------------------------------------------------------------

Result<std::shared_ptr<const TlsContext>> TlsContext::Create(const Config& config) {
  if (config.tls == TlsMode::kOff) return std::shared_ptr<const TlsContext>();
  const bool is_psk = config.tls == TlsMode::kPsk;
  // Shared with every stream that uses it.
  std::shared_ptr<TlsContext> context(new TlsContext(is_psk));
  FERRY_TRY(context->Open());
  FERRY_TRY(is_psk ? context->UseKey(config) : context->UseCertificates(config));
  return std::shared_ptr<const TlsContext>(std::move(context));
}

TlsContext::~TlsContext() { ::OPENSSL_cleanse(key_.data(), key_.size()); }

Status TlsContext::Open() {
  ::ERR_clear_error();
  context_ = UniqueHandle<SslContextTraits>(::SSL_CTX_new(::TLS_method()));
  SSL_CTX* const context = context_.get();
  if (context == nullptr || ::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1) {
    return NoContext();
  }
  // Every lane makes a full handshake: no tickets, no early data (off by default), no session
  // cache. Kernel TLS (SSL_OP_ENABLE_KTLS) would need the socket itself as the stream's BIO.
  ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  (void)::SSL_CTX_set_num_tickets(context, 0);
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // OpenSSL treats a shared key as a session, and both sides refuse a session of another context.
  (void)::SSL_CTX_set_session_id_context(context, Raw(kIdentity), kIdentity.size());
  // In both modes: with a key there is no authority, so a certificate presented instead is refused.
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return Ok();
}

Status TlsContext::UseKey(const Config& config) {
  FERRY_TRY_ASSIGN(const SecretText secret, LoadSecret(config));
  if (secret.empty()) {
    return Error(Code::kInvalidArgument,
                 "tls is psk and there is no secret to make a key from; set secret_file "
                 "(FERRY_SECRET_FILE)");
  }
  FERRY_TRY(MakeKey(secret.view(), &key_));
  SSL_CTX* const context = context_.get();
  if (::SSL_CTX_set_ciphersuites(context, kKeyCiphers) != 1) return NoContext();
  SSL_CTX_set_app_data(context, this);
  ::SSL_CTX_set_psk_use_session_callback(context, OfferKey);
  ::SSL_CTX_set_psk_find_session_callback(context, FindKey);
  return Ok();
}

Status TlsContext::UseCertificates(const Config& config) {
  FERRY_TRY(CheckFilesAreNamed(config));
  SSL_CTX* const context = context_.get();
  ::SSL_CTX_set_default_passwd_cb(context, RefusePassword);
  if (::SSL_CTX_use_certificate_chain_file(context, config.tls_cert.c_str()) != 1) {
    return Unusable("tls_cert", config.tls_cert, "name a readable PEM file with a certificate");
  }
  if (::SSL_CTX_use_PrivateKey_file(context, config.tls_key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Unusable("tls_key", config.tls_key,
                    "name a readable PEM file with the key of tls_cert, without a password");
  }
  if (::SSL_CTX_load_verify_file(context, config.tls_ca.c_str()) != 1) {
    return Unusable("tls_ca", config.tls_ca, "name a readable PEM file with certificates");
  }
  WarnIfOthersMayRead("tls_key", config.tls_key);
  if (config.tls_name.empty()) return Ok();
  X509_VERIFY_PARAM* const check = ::SSL_CTX_get0_param(context);
  // OpenSSL compares addresses and names with different fields of a certificate.
  if (::X509_VERIFY_PARAM_set1_ip_asc(check, config.tls_name.c_str()) == 1 ||
      ::X509_VERIFY_PARAM_set1_host(check, config.tls_name.c_str(), 0) == 1) {
    ::ERR_clear_error();
    return Ok();
  }
  return Error(Code::kInvalidArgument,
               fmt::format("tls_name {} cannot be looked for in certificates: {}; give a host name "
                           "or an address",
                           config.tls_name, TakeOpenSslReason()));
}

// A new one for each handshake: OpenSSL takes it over and frees it.
SSL_SESSION* TlsContext::MakeSession(SSL* ssl) const {
  SSL_SESSION* const session = ::SSL_SESSION_new();
  const SSL_CIPHER* const cipher = ::SSL_CIPHER_find(ssl, kKeyCipher.data());
  if (session != nullptr && cipher != nullptr &&
      ::SSL_SESSION_set1_master_key(session, key_.data(), key_.size()) == 1 &&
      ::SSL_SESSION_set_cipher(session, cipher) == 1 &&
      ::SSL_SESSION_set1_id_context(session, Raw(kIdentity), kIdentity.size()) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  ::SSL_SESSION_free(session);
  return nullptr;
}

// ---- TlsContextCache ----------------------------------------------------------------------------

TlsContextCache::Stamps TlsContextCache::StampsOf(const Config& config) {
  Stamps stamps;
  if (config.tls != TlsMode::kCert) return stamps;
  const std::array<const std::string*, 3> files = {&config.tls_cert, &config.tls_key,
                                                   &config.tls_ca};
  for (std::size_t i = 0; i < files.size(); ++i) {
    struct stat about {};
    if (::stat(files[i]->c_str(), &about) != 0) continue;
    stamps[i] = {.device = about.st_dev,
                 .inode = about.st_ino,
                 .size = about.st_size,
                 .modified_ns = about.st_mtim.tv_sec * 1'000'000'000 + about.st_mtim.tv_nsec};
  }
  return stamps;
}

Result<std::shared_ptr<const TlsContext>> TlsContextCache::Get(const Config& config) {
  if (config.tls == TlsMode::kOff) return std::shared_ptr<const TlsContext>();
  std::unique_lock lock(mutex_);
  const SecuritySettings& settings = config;  // all that Create() reads
  if (settings_ != settings) {
    lock.unlock();
    return Read(config);
  }
  if (config.tls != TlsMode::kCert || looking_ || now_() < next_look_) return context_;
  next_look_ = now_() + kBetweenLooks;
  // Nobody joins the thread: nothing interrupts it where a file system does not answer.
  auto thread =
      StartThread("certificate files", [self = shared_from_this(), config] { self->Look(config); });
  if (!thread) return context_;
  thread->detach();
  looking_ = true;
  (void)looked_.wait_for(lock, timeout_, [this] { return !looking_; });
  return context_;
}

Result<std::shared_ptr<const TlsContext>> TlsContextCache::Read(const Config& config) {
  const Stamps stamps = StampsOf(config);  // as they were before
  FERRY_TRY_ASSIGN(auto fresh, TlsContext::Create(config));
  const std::lock_guard lock(mutex_);
  context_ = fresh;
  stamps_ = stamps;
  settings_ = config;
  next_look_ = now_() + kBetweenLooks;
  return fresh;
}

void TlsContextCache::Look(const Config& config) {
  const Stamps stamps = StampsOf(config);
  std::unique_lock lock(mutex_);
  const bool changed = stamps != stamps_;
  lock.unlock();
  auto fresh = changed ? TlsContext::Create(config) : std::shared_ptr<const TlsContext>();
  lock.lock();
  const SecuritySettings& settings = config;
  // Unless another config has been used meanwhile.
  if (changed && settings_ == settings) {
    stamps_ = stamps;
    if (fresh) {
      context_ = *std::move(fresh);
    } else {
      // Perhaps they are being written: the next change is looked at.
      Log(LogLevel::kWarn, "tcp",
          "certificate files have changed and cannot be used; new connections use those read "
          "before: {}",
          fresh.error().message());
    }
  }
  looking_ = false;
  looked_.notify_all();
}

}  // namespace ferry::net::tcp
