// The bytes that agents of ours exchange: metadata by NIXL's ways, identities in handshakes, and
// frames in notifications.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/transfer/endpoint.h"
#include "ferry/transfer/region.h"

namespace ferry::nixl {

inline constexpr std::uint16_t kWireVersion = 4;
// The largest notification of a connection.
inline constexpr std::size_t kMaxFrameBytes = 64 << 10;
inline constexpr std::size_t kMaxNameBytes = 512;
inline constexpr std::uint64_t kMaxMessageBytes = 16 << 20;

// They are those of Ed25519 (RFC 8032).
using PublicKey = std::array<std::byte, 32>;
using Signature = std::array<std::byte, 64>;

// What an agent tells its peers of its endpoint, in its metadata.
struct ConnectionInfo {
  transfer::EndpointAddress address;
  Uuid secret;      // both sides of a connection prove by it that they have the metadata
  PublicKey key{};  // the agent proves its name by the other half

  std::string Serialize() const;
  // Errors: kCorrupt for bytes of another origin or version.
  static Result<ConnectionInfo> Parse(std::string_view bytes);
};

// What an agent tells its peers of registered memory, in its metadata.
struct MemoryInfo {
  transfer::RemoteRegion region;

  std::string Serialize() const;
  // Errors: kCorrupt for bytes of another origin or version.
  static Result<MemoryInfo> Parse(std::string_view bytes);
};

// How an agent identifies itself in the handshake of a connection that it dials (identity.h has
// what is signed).
struct Identity {
  PublicKey key{};
  Signature signature{};
  std::string agent;

  std::vector<std::byte> Serialize() const;
  // Errors: kCorrupt for bytes of another origin or version, or a name that is too long.
  static Result<Identity> Parse(std::span<const std::byte> bytes);
};

// A piece of a message: [offset, offset + its bytes) of `total`. Pieces follow each other; one
// whose sequence number is not the next is dropped, and comes again.
struct PieceHeader {
  std::uint64_t sequence = 0;  // counts the pieces of a connection
  std::uint64_t offset = 0;
  std::uint64_t total = 0;
  // 1: when the receiver has taken the piece, it answers by an empty message, whose tag is the
  // sequence number.
  std::uint64_t asks = 0;
};
inline constexpr std::size_t kPieceHeaderBytes = 40;
inline constexpr std::size_t kMaxPieceBytes = kMaxFrameBytes - kPieceHeaderBytes;

std::vector<std::byte> PieceFrame(const PieceHeader& header, std::string_view piece);
// The piece refers to `frame`.
struct Piece {
  PieceHeader header;
  std::string_view bytes;
};
Result<Piece> ParsePiece(std::span<const std::byte> frame);

// Joins the pieces of one connection to messages.
class Joiner {
 public:
  // The message that the piece completes. Errors: kCorrupt for a piece that does not continue what
  // came before it, and for a message that is too long.
  Result<std::optional<std::string>> Add(const Piece& piece);
  // Whether the piece is the next.
  bool IsNext(const PieceHeader& header) const noexcept { return header.sequence == next_; }
  // Bytes of a message of which pieces are missing.
  std::uint64_t size() const noexcept { return bytes_.size(); }

 private:
  std::uint64_t next_ = 0;
  std::uint64_t total_ = 0;
  std::string bytes_;
};

}  // namespace ferry::nixl
