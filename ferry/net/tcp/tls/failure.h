// Explanations of failed TLS handshakes.
#pragma once
#include <openssl/ssl.h>

#include <span>

#include "ferry/net/tcp/byte_stream.h"

namespace ferry::net::tcp {

// Explains why an SSL call failed and how to fix it. Uses, and clears, this thread's OpenSSL
// errors; also the result of verifying the peer's certificate and the first bytes that the peer
// sent. `is_psk`: this side's mode.
ByteStream::Failure DescribeTlsFailure(SSL* ssl, bool is_psk, std::span<const std::byte> first);

// The failure for a connection that ended before the end of its TLS stream.
ByteStream::Failure TruncatedTls(bool in_handshake);

// Whether these are the first bytes of a frame, sent by a Tensorferry endpoint without TLS.
bool LooksLikeFrame(std::span<const std::byte> bytes) noexcept;
// Whether these are the first bytes of a TLS record that opens or refuses a connection (RFC 8446,
// 5.1).
bool LooksLikeTls(std::span<const std::byte> bytes) noexcept;

}  // namespace ferry::net::tcp
