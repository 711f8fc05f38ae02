// The byte stream inside TLS.
#pragma once
#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ferry/core/unique_handle.h"
#include "ferry/net/io_cursor.h"
#include "ferry/net/tcp/byte_stream.h"
#include "ferry/net/tcp/tls/context.h"
#include "ferry/net/tcp/tls/socket.h"

namespace ferry::net::tcp {

struct SslTraits {
  using Handle = SSL*;
  static constexpr Handle kInvalid = nullptr;
  static void Destroy(Handle ssl) noexcept { ::SSL_free(ssl); }
};

// TLS 1.3 on a connected socket. Data reaches the caller's memory only after its record was
// authenticated.
class TlsStream final : public ByteStream {
 public:
  enum class Role { kConnects, kAccepts };
  enum class Progress { kWaiting, kDone };
  // The key is updated after this many records: AES-GCM may encrypt 2^24.5 with one (RFC 8446,
  // 5.5).
  static constexpr std::uint64_t kRecordsPerKey = 1 << 23;

  // `remote` is for messages. Errors: kUnavailable (no memory).
  static Result<std::unique_ptr<TlsStream>> Create(std::shared_ptr<const TlsContext> context,
                                                   int fd, Role role, std::string remote,
                                                   std::uint64_t records_per_key = kRecordsPerKey);

  // Advances the handshake as far as the socket allows; call again at its next event. No other call
  // is allowed before kDone. Errors: kRefused (either side rejects the other), kCorrupt (the peer
  // does not speak TLS), kPeerLost, kUnavailable (reset during the handshake).
  Result<Progress> Handshake();
  // On the accepting side: whether the peer's first message is complete and valid.
  bool has_heard_hello() const;

  ssize_t Readv(std::span<const iovec> pieces, std::size_t bytes) override;
  ssize_t Discard(std::size_t bytes) override;
  ssize_t Writev(std::span<const iovec> pieces) override;
  void SayEnd() override;
  std::size_t TakeWork() noexcept override;
  bool HoldsInput() const override;
  bool is_plain() const noexcept override { return false; }
  const Failure* failure() const noexcept override { return failure_ ? &*failure_ : nullptr; }
  void FindReason() override;
  void Describe(LaneInfo* info) const override;

 private:
  TlsStream(std::shared_ptr<const TlsContext> context, int fd, std::string remote,
            std::uint64_t records_per_key);
  Status Open(Role role);
  Result<bool> StepHandshake();
  Status CheckPeer();
  // SSL_set_msg_callback(3).
  static void OnMessage(int is_sent, int version, int type, const void* bytes, std::size_t size,
                        SSL* ssl, void* stream);
  Error HandshakeError(int error_number);
  void NoteFailure();
  std::size_t Fill(const iovec& piece, bool to_the_end, ssize_t* end);
  // Returns 0, or -1 with errno, which is EAGAIN when no data is available.
  ssize_t EndOfRead(int result);
  std::size_t Encrypt(std::span<const iovec> pieces);
  std::span<const std::byte> NextRecord(IoCursor* cursor);
  std::size_t EncryptRecord(IoCursor* cursor);

  const std::shared_ptr<const TlsContext> context_;  // shared with the provider and other streams
  const std::string remote_;
  const std::uint64_t records_per_key_;
  TlsSocket socket_;
  UniqueHandle<SslTraits> ssl_;
  bool handshake_done_ = false;  // the handshake is over
  std::optional<Failure> failure_;
  std::string security_;
  ChannelBinding channel_binding_{};

  std::uint64_t records_read_ = 0;     // since the handshake
  std::uint64_t records_charged_ = 0;  // of them, returned by TakeWork()
  std::uint64_t records_without_data_ = 0;
  std::uint64_t messages_read_ = 0;       // handshake messages since the handshake
  std::size_t accepted_ = 0;              // encrypted and not completely sent
  std::uint64_t records_ = 0;             // with the current key
  std::unique_ptr<std::byte[]> record_;   // gathers small pieces
  std::unique_ptr<std::byte[]> scratch_;  // of Discard
};

}  // namespace ferry::net::tcp
