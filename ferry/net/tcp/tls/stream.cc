// The byte stream inside TLS.
#include "ferry/net/tcp/tls/stream.h"

#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "ferry/core/fd.h"
#include "ferry/core/unordered_access.h"
#include "ferry/net/tcp/tls/failure.h"

namespace ferry::net::tcp {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// Bytes encrypted and sent at once, and read ahead: 128 KiB to 1 MiB measured alike on loopback.
constexpr std::size_t kTlsSendBytes = 128 * 1024;
constexpr std::size_t kTlsReadAhead = 128 * 1024;
constexpr std::size_t kDiscardPieces = 64;
// Key updates, and other handshake messages after the handshake, cost much more than their bytes. A
// peer may send a few, and one more for so many records; a Tensorferry peer sends one for each
// kRecordsPerKey.
constexpr std::uint64_t kFreeMessages = 64;
constexpr std::uint64_t kRecordsPerMessage = 256;
// The alert protocol_version (RFC 8446, 6).
constexpr std::array<std::byte, 7> kNeedsTls = {std::byte{21}, std::byte{3}, std::byte{3},
                                                std::byte{0},  std::byte{2}, std::byte{2},
                                                std::byte{70}};

// The common name of the peer's certificate, or its whole subject; control characters are escaped.
std::string SubjectOf(X509* certificate) {
  X509_NAME* const subject = ::X509_get_subject_name(certificate);
  std::array<char, 256> name{};
  const bool has_name = ::X509_NAME_get_text_by_NID(subject, NID_commonName, name.data(),
                                                    static_cast<int>(name.size())) > 0;
  if (!has_name) (void)::X509_NAME_oneline(subject, name.data(), static_cast<int>(name.size()));
  std::string text = has_name ? fmt::format("CN={}", name.data()) : name.data();
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

Result<std::unique_ptr<TlsStream>> TlsStream::Create(std::shared_ptr<const TlsContext> context,
                                                     int fd, Role role, std::string remote,
                                                     std::uint64_t records_per_key) {
  std::unique_ptr<TlsStream> stream(
      new TlsStream(std::move(context), fd, std::move(remote), records_per_key));
  FERRY_TRY(stream->Open(role));
  return stream;
}

TlsStream::TlsStream(std::shared_ptr<const TlsContext> context, int fd, std::string remote,
                     std::uint64_t records_per_key)
    : context_(std::move(context)),
      remote_(std::move(remote)),
      records_per_key_(records_per_key),
      socket_(fd) {}

Status TlsStream::Open(Role role) {
  ::ERR_clear_error();
  ssl_ = UniqueHandle<SslTraits>(::SSL_new(context_->get()));
  BIO* const bio = socket_.MakeBio();
  if (!ssl_ || bio == nullptr) {
    ::BIO_free(bio);
    return Error(Code::kUnavailable, fmt::format("OpenSSL has no room for a connection to {}: {}; "
                                                 "free memory, or open fewer lanes",
                                                 remote_, TakeOpenSslReason()));
  }
  ::SSL_set_bio(ssl_.get(), bio, bio);
  if (role == Role::kConnects) {
    ::SSL_set_connect_state(ssl_.get());
  } else {
    ::SSL_set_accept_state(ssl_.get());
  }
  return Ok();
}

// ---- handshake ----------------------------------------------------------------------------------

// Loops until the socket is drained, because it is watched edge-triggered: what is left would not
// be reported again.
Result<TlsStream::Progress> TlsStream::Handshake() {
  for (;;) {
    FERRY_TRY_ASSIGN(const bool heard_all, StepHandshake());
    if (heard_all) break;
    if (socket_.drained()) return Progress::kWaiting;
  }
  // The peer needs our last message; the socket reports when there is room for it.
  if (socket_.unsent() > 0) return Progress::kWaiting;
  FERRY_TRY(CheckPeer());
  handshake_done_ = true;
  socket_.SetReadAhead(kTlsReadAhead);
  ::SSL_set_msg_callback(ssl_.get(), OnMessage);
  SSL_set_msg_callback_arg(ssl_.get(), this);
  return Progress::kDone;
}

bool TlsStream::has_heard_hello() const {
  const OSSL_HANDSHAKE_STATE state = ::SSL_get_state(ssl_.get());
  return state != TLS_ST_BEFORE && state != TLS_ST_SR_CLNT_HELLO;
}

// Advances as far as one read of the socket allows; returns true when the peer's part is complete.
Result<bool> TlsStream::StepHandshake() {
  ::ERR_clear_error();
  socket_.AllowRead();
  const int result = ::SSL_do_handshake(ssl_.get());
  if (result != 1 && ::SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_READ) {
    NoteFailure();
    // OpenSSL has no answer to bytes that are not TLS; a Tensorferry peer without TLS understands
    // this alert.
    if (LooksLikeFrame(socket_.first())) socket_.Queue(kNeedsTls);
    (void)socket_.Flush();  // the alert
    return HandshakeError(socket_.error());
  }
  if (!socket_.Flush() && errno != EAGAIN) return HandshakeError(errno);
  return result == 1;
}

// OpenSSL has verified the peer already; this check guards against a mistake in its configuration.
Status TlsStream::CheckPeer() {
  SSL* const ssl = ssl_.get();
  X509* const certificate = ::SSL_get0_peer_certificate(ssl);
  const bool proven = context_->is_psk()
                          ? ::SSL_session_reused(ssl) == 1
                          : certificate != nullptr && ::SSL_get_verify_result(ssl) == X509_V_OK;
  if (!proven) {
    return Error(Code::kRefused,
                 fmt::format("the TLS handshake with {} ended without its proof of who it is; use "
                             "another build of OpenSSL",
                             remote_));
  }
  // RFC 9266: this label and an empty context.
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  if (::SSL_export_keying_material(ssl, reinterpret_cast<unsigned char*>(channel_binding_.data()),
                                   channel_binding_.size(), kLabel.data(), kLabel.size(), nullptr,
                                   0, /*use_context=*/0) != 1) {
    return Error(Code::kUnavailable,
                 fmt::format("OpenSSL gave no channel binding for the TLS connection with {}: {}; "
                             "free memory, or use another build of OpenSSL",
                             remote_, TakeOpenSslReason()));
  }
  security_ =
      fmt::format("{} {}, {}", ::SSL_get_version(ssl), ::SSL_get_cipher_name(ssl),
                  context_->is_psk() ? "pre-shared key" : "certificate " + SubjectOf(certificate));
  return Ok();
}

Error TlsStream::HandshakeError(int error_number) {
  if (failure_) {
    return Error(failure_->code,
                 fmt::format("the TLS handshake with {} failed: {}", remote_, failure_->text));
  }
  const Error plain =
      ErrnoError(fmt::format("the TLS handshake with {} failed", remote_), error_number);
  const bool reset = error_number == ECONNRESET || error_number == EPIPE;
  return Error(reset ? Code::kUnavailable : Code::kPeerLost,
               plain.message() + "; see its log, and set FERRY_TLS to the same on both sides");
}

// NOLINTNEXTLINE(readability-function-size): the signature is OpenSSL's
void TlsStream::OnMessage(int is_sent, int /*version*/, int type, const void* bytes,
                          std::size_t /*size*/, SSL* /*ssl*/, void* stream) {
  auto* const self = static_cast<TlsStream*>(stream);
  if (is_sent != 0) return;
  if (type == SSL3_RT_INNER_CONTENT_TYPE) {
    ++self->records_read_;
    // A message may come in many records, whose bytes OpenSSL collects.
    if (*static_cast<const unsigned char*>(bytes) == SSL3_RT_APPLICATION_DATA) return;
    ++self->records_without_data_;
  } else if (type == SSL3_RT_HANDSHAKE) {
    ++self->messages_read_;
  } else {
    return;
  }
  const std::uint64_t with_data = self->records_read_ - self->records_without_data_;
  const std::uint64_t allowed = kFreeMessages + with_data / kRecordsPerMessage;
  // OpenSSL reads on until it finds data, so only its input can stop it.
  if (std::max(self->messages_read_, self->records_without_data_) > allowed) self->socket_.Stop();
}

// Call after a fatal failure. The system's error stays in socket_.error().
void TlsStream::NoteFailure() {
  if (failure_ || socket_.error() != 0) return;
  if (socket_.stopped()) {
    failure_ = Failure{Code::kCorrupt,
                       fmt::format("it changes to new keys, or sends other TLS messages without "
                                   "data, again and again ({} for {} records); the connection was "
                                   "closed, reconnect with the same release on both sides",
                                   std::max(messages_read_, records_without_data_), records_read_)};
    return;
  }
  if (socket_.at_end() && ::ERR_peek_error() != 0 &&
      ERR_GET_REASON(::ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    ::ERR_clear_error();
    failure_ = TruncatedTls(!handshake_done_);
    return;
  }
  failure_ = DescribeTlsFailure(ssl_.get(), context_->is_psk(), socket_.first());
}

// ---- reading ------------------------------------------------------------------------------------

// Behaves as readv(2) on a socket without TLS, so that the lane need not know the difference:
// EAGAIN when nothing is left, 0 at an orderly end, EPROTO once TLS has failed, for good.
ssize_t TlsStream::Readv(std::span<const iovec> pieces, std::size_t /*bytes*/) {
  const UnorderedAccess placing;
  drained_ = false;
  ::ERR_clear_error();
  if (failure_) {
    errno = EPROTO;
    return -1;
  }
  socket_.AllowRead();
  std::size_t total = 0;
  for (const iovec& piece : pieces) {
    ssize_t end = 0;
    const std::size_t filled = Fill(piece, /*to_the_end=*/total == 0, &end);
    total += filled;
    if (filled == piece.iov_len) continue;
    // Return data that arrived before the end; the next read finds the end again.
    if (total == 0) return end;
    break;
  }
  return static_cast<ssize_t>(total);
}

// Returns the bytes available for the piece; if fewer than its size, `end` is the result that
// read(2) would give next. With `to_the_end` the socket is read until there is a byte or it is
// drained.
std::size_t TlsStream::Fill(const iovec& piece, bool to_the_end, ssize_t* end) {
  std::size_t filled = 0;
  while (filled < piece.iov_len) {
    std::size_t got = 0;
    const int result = ::SSL_read_ex(ssl_.get(), static_cast<std::byte*>(piece.iov_base) + filled,
                                     piece.iov_len - filled, &got);
    filled += got;
    if (result == 1) continue;
    *end = EndOfRead(result);
    const bool nothing_now = *end < 0 && errno == EAGAIN;
    if (nothing_now) drained_ = socket_.drained();
    if (!nothing_now || drained_ || !to_the_end || filled > 0) break;
    socket_.AllowRead();  // it returned the beginning of a record and has more
  }
  return filled;
}

ssize_t TlsStream::EndOfRead(int result) {
  const int why = ::SSL_get_error(ssl_.get(), result);
  if (why == SSL_ERROR_WANT_READ && !failure_) {
    errno = EAGAIN;
    return -1;
  }
  // The peer said close_notify; without it an end counts as a cut (TruncatedTls()).
  if (why == SSL_ERROR_ZERO_RETURN) return 0;
  NoteFailure();
  // Sends the alert to the peer, if that is still possible.
  (void)socket_.Flush();
  errno = failure_ ? EPROTO : socket_.error();
  return -1;
}

// All pieces are the same scratch memory: the bytes must be decrypted, but nobody looks at them.
ssize_t TlsStream::Discard(std::size_t bytes) {
  if (!scratch_) scratch_.reset(new std::byte[kRecordBytes]);
  std::array<iovec, kDiscardPieces> pieces;
  std::size_t used = 0;
  std::size_t asked = 0;
  for (; used < pieces.size() && asked < bytes; ++used) {
    pieces[used] = {scratch_.get(), std::min(bytes - asked, kRecordBytes)};
    asked += pieces[used].iov_len;
  }
  return Readv(std::span(pieces.data(), used), asked);
}

// A peer that refuses our certificate sends an alert and closes. Data that we sent meanwhile turns
// that into a reset, which the kernel reports before the alert.
void TlsStream::FindReason() {
  if (failure_) return;
  while (Discard(kDiscardPieces * kRecordBytes) > 0) {
  }
  // Only an alert tells more than the reset that the caller has seen.
  if (failure_ && failure_->code == Code::kPeerLost) failure_.reset();
}

// A record costs as much as a full one, or more, however short it is.
std::size_t TlsStream::TakeWork() noexcept {
  const std::uint64_t records = records_read_ - std::exchange(records_charged_, records_read_);
  return records * kRecordBytes;
}

bool TlsStream::HoldsInput() const {
  return socket_.held() > 0 || ::SSL_has_pending(ssl_.get()) == 1;
}

// ---- writing ------------------------------------------------------------------------------------

ssize_t TlsStream::Writev(std::span<const iovec> pieces) {
  if (failure_) {
    errno = EPROTO;
    return -1;
  }
  // A record that is encrypted must be sent, so bytes count as written only when all their records
  // have left. Until then the caller repeats the same pieces, which are not encrypted again.
  if (accepted_ == 0) accepted_ = Encrypt(pieces);
  if (accepted_ == 0) {
    errno = EPROTO;
    return -1;
  }
  if (!socket_.Flush()) return -1;
  return static_cast<ssize_t>(std::exchange(accepted_, 0));
}

std::size_t TlsStream::Encrypt(std::span<const iovec> pieces) {
  const UnorderedAccess fetching;
  ::ERR_clear_error();
  IoCursor cursor(pieces);
  std::size_t total = 0;
  while (!cursor.at_end() && socket_.unsent() + kRecordBytes <= kTlsSendBytes) {
    const std::size_t bytes = EncryptRecord(&cursor);
    if (bytes == 0) return 0;
    total += bytes;
  }
  return total;
}

// A whole record from one piece is encrypted in place; smaller pieces are gathered.
std::span<const std::byte> TlsStream::NextRecord(IoCursor* cursor) {
  if (!record_) record_.reset(new std::byte[kRecordBytes]);
  std::size_t gathered = 0;
  while (gathered < kRecordBytes && !cursor->at_end()) {
    iovec piece{};
    std::size_t used = 0;
    const std::size_t bytes = cursor->Collect({&piece, 1}, &used, kRecordBytes);
    const auto* from = static_cast<const std::byte*>(piece.iov_base);
    if (bytes == kRecordBytes) {
      if (gathered > 0) break;
      cursor->Advance(bytes);
      return {from, bytes};
    }
    const std::size_t taken = std::min(bytes, kRecordBytes - gathered);
    std::memcpy(record_.get() + gathered, from, taken);
    cursor->Advance(taken);
    gathered += taken;
  }
  return {record_.get(), gathered};
}

// Returns the record's bytes; 0 after a failure.
std::size_t TlsStream::EncryptRecord(IoCursor* cursor) {
  // AES-GCM must not encrypt too much under one key (RFC 8446, 5.5).
  if (records_++ == records_per_key_) {
    records_ = 1;
    (void)::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  const std::span<const std::byte> record = NextRecord(cursor);
  std::size_t written = 0;
  const int result = ::SSL_write_ex(ssl_.get(), record.data(), record.size(), &written);
  if (result == 1 && written == record.size()) return written;
  NoteFailure();
  return 0;
}

void TlsStream::SayEnd() {
  // Behind a part of a record close_notify would be garbage to the peer.
  if (!handshake_done_ || failure_ || accepted_ > 0) return;
  ::ERR_clear_error();
  (void)::SSL_shutdown(ssl_.get());
  ::ERR_clear_error();
  (void)socket_.Flush();
}

void TlsStream::Describe(LaneInfo* info) const {
  info->authenticated = true;
  info->security = security_;
  info->channel_binding = channel_binding_;
}

}  // namespace ferry::net::tcp
