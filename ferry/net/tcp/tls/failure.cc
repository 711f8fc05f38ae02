// Explains failed TLS handshakes.
#include "ferry/net/tcp/tls/failure.h"

#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/tls1.h>
#include <openssl/x509_vfy.h>

#include <cstring>
#include <string>

#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/tcp/tls/context.h"

namespace ferry::net::tcp {
namespace {

using Failure = ByteStream::Failure;

constexpr const char* kSameMode = "set FERRY_TLS to the same, off, psk or cert, on both sides";
constexpr const char* kSameSecret = "set FERRY_SECRET_FILE to the same on both sides";

Failure Refused(std::string text) { return {Code::kRefused, std::move(text)}; }

// The most common mistake is one side with TLS and one without, so the first bytes are looked at.
Failure NotTls(std::span<const std::byte> first) {
  const char* const what =
      LooksLikeFrame(first) ? "it is a Tensorferry endpoint without TLS" : "it does not speak TLS";
  return {Code::kCorrupt, fmt::format("{}; {}", what, kSameMode)};
}

// The peer's certificate failed this side's verification.
Failure BadCertificate(long verdict, bool is_psk) {
  if (is_psk) {
    return Refused(
        fmt::format("it shows a certificate in place of knowing the secret; {}", kSameMode));
  }
  const char* next =
      "check that FERRY_TLS_CA here holds the authority that FERRY_TLS_CERT there comes from";
  if (verdict == X509_V_ERR_CERT_HAS_EXPIRED || verdict == X509_V_ERR_CERT_NOT_YET_VALID) {
    next = "renew FERRY_TLS_CERT there, or set the clock of this machine";
  } else if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    next = "set FERRY_TLS_NAME here to a name that FERRY_TLS_CERT there is for, or to nothing";
  } else if (verdict == X509_V_ERR_INVALID_PURPOSE) {
    next = "let FERRY_TLS_CERT there be for clients and servers alike";
  }
  return Refused(fmt::format("its certificate is not accepted here: {}; {}",
                             ::X509_verify_cert_error_string(verdict), next));
}

// The alert with which the peer refused us (RFC 8446, 6.2).
Failure DescribeAlert(int alert, bool is_psk) {
  const char* const words = ::SSL_alert_desc_string_long(alert);
  switch (alert) {
    case SSL3_AD_BAD_RECORD_MAC:
      return {Code::kCorrupt,
              "it got bytes that were changed on the way (bad record MAC); reconnect, and mistrust "
              "the network"};
    case SSL3_AD_ILLEGAL_PARAMETER:
    case TLS1_AD_DECRYPT_ERROR:
    case TLS1_AD_UNKNOWN_PSK_IDENTITY:
      if (!is_psk) break;
      return Refused(fmt::format("the two sides have different secrets; {}", kSameSecret));
    case SSL3_AD_HANDSHAKE_FAILURE:
      return Refused(
          fmt::format("it knows no way to authenticate that this side has; {}", kSameMode));
    case TLS1_AD_PROTOCOL_VERSION:
      return Refused("it does not speak TLS 1.3; use a Tensorferry endpoint there");
    case TLS13_AD_CERTIFICATE_REQUIRED:
      return Refused(
          "it asks for a certificate and got none; set FERRY_TLS_CERT and FERRY_TLS_KEY here");
    case SSL3_AD_CERTIFICATE_EXPIRED:
      return Refused(
          "it says that this side's certificate has expired; renew FERRY_TLS_CERT here, or set the "
          "clock there");
    case TLS1_AD_UNKNOWN_CA:
      return Refused(
          "it does not know the authority of this side's certificate (unknown CA); check that "
          "FERRY_TLS_CA there holds the one that FERRY_TLS_CERT here comes from");
    case SSL3_AD_BAD_CERTIFICATE:
    case SSL3_AD_UNSUPPORTED_CERTIFICATE:
    case SSL3_AD_CERTIFICATE_REVOKED:
    case SSL3_AD_CERTIFICATE_UNKNOWN:
      return Refused(
          fmt::format("it does not accept this side's certificate ({}); check FERRY_TLS_CERT here "
                      "against FERRY_TLS_CA and FERRY_TLS_NAME there",
                      words));
    default: break;
  }
  return Refused(fmt::format("it ended TLS by the alert \"{}\"; look into its log", words));
}

}  // namespace

ByteStream::Failure DescribeTlsFailure(SSL* ssl, bool is_psk, std::span<const std::byte> first) {
  const unsigned long error = ::ERR_peek_error();
  const std::string reason = TakeOpenSslReason();
  const int number = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
  // OpenSSL reports an alert of the peer as this reason plus the alert's number.
  if (number > SSL_AD_REASON_OFFSET) return DescribeAlert(number - SSL_AD_REASON_OFFSET, is_psk);
  switch (number) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return BadCertificate(::SSL_get_verify_result(ssl), is_psk);
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return Refused("it shows no certificate; set FERRY_TLS_CERT and FERRY_TLS_KEY there");
    case SSL_R_BINDER_DOES_NOT_VERIFY:
      return Refused(fmt::format("the two sides have different secrets; {}", kSameSecret));
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SUITABLE_KEY_SHARE:
      return Refused(fmt::format("it knows no way to authenticate that this side has ({}); {}",
                                 reason, kSameMode));
    case SSL_R_UNSUPPORTED_PROTOCOL:
      return Refused("it does not speak TLS 1.3; use a Tensorferry endpoint there");
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
      return {Code::kCorrupt,
              "its bytes were changed on the way (bad record MAC); reconnect, and mistrust the "
              "network"};
    default: break;
  }
  if (!first.empty() && !LooksLikeTls(first)) return NotTls(first);
  return {Code::kCorrupt,
          fmt::format("it breaks the rules of TLS ({}); use a Tensorferry endpoint there", reason)};
}

ByteStream::Failure TruncatedTls(bool in_handshake) {
  if (in_handshake) {
    return {
        Code::kPeerLost,
        fmt::format("it closed the connection before the handshake was over; see its log, and {}",
                    kSameMode)};
  }
  return {Code::kPeerLost,
          "the connection ended without the end of the TLS stream, so the peer died or something "
          "on the way cut it; reconnect when the peer is back"};
}

bool LooksLikeFrame(std::span<const std::byte> bytes) noexcept {
  const FramePrefix prefix;
  return bytes.size() >= sizeof prefix.magic &&
         std::memcmp(bytes.data(), &prefix.magic, sizeof prefix.magic) == 0;
}

// The content type, and the major version of the record layer (RFC 8446, 5.1).
bool LooksLikeTls(std::span<const std::byte> bytes) noexcept {
  constexpr std::byte kAlert{21};
  constexpr std::byte kHandshake{22};
  return bytes.size() >= 2 && (bytes[0] == kAlert || bytes[0] == kHandshake) &&
         bytes[1] == std::byte{3};
}

}  // namespace ferry::net::tcp
