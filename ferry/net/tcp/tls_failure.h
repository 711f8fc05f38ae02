// Explanations of failed TLS handshakes.
#pragma once
#include <openssl/ssl.h>

#include <span>

#include "ferry/net/tcp/byte_stream.h"

namespace ferry::net::tcp {

// What an SSL call has failed on, from this thread's OpenSSL errors, which it takes, the result of
// checking the peer's certificate, and the first bytes that the peer sent: in words that name the
// next step. `is_psk`: this side's mode.
ByteStream::Failure DescribeTlsFailure(SSL* ssl, bool is_psk, std::span<const std::byte> first);

// The peer's end of the connection came before its end of the stream.
ByteStream::Failure TruncatedTls(bool in_handshake);

// Whether these are the first bytes of a frame, from a Tensorferry endpoint without TLS.
bool LooksLikeFrame(std::span<const std::byte> bytes) noexcept;
// Whether these are the first bytes of a TLS record that opens a connection, or refuses one
// (RFC 8446, 5.1).
bool LooksLikeTls(std::span<const std::byte> bytes) noexcept;

}  // namespace ferry::net::tcp
