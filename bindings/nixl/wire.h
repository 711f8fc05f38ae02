// The bytes that agents of ours exchange: metadata by NIXL's ways, frames in notifications.
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

inline constexpr std::uint16_t kWireVersion = 3;
// The largest notification of a connection.
inline constexpr std::size_t kMaxFrameBytes = 64 << 10;
inline constexpr std::size_t kMaxNameBytes = 4096;
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

// The first notification of every connection: who speaks (identity.h has what is signed).
struct Hello {
  PublicKey key{};
  Signature signature{};
  std::string agent;
};
std::vector<std::byte> HelloFrame(const Hello& hello);
Result<Hello> ParseHello(std::span<const std::byte> frame);

// A piece of a message: [offset, offset + its bytes) of `total`. Pieces follow each other; one
// whose sequence number is not the next is dropped, and comes again.
struct PieceHeader {
  std::uint64_t sequence = 0;  // counts the pieces of a connection
  std::uint64_t offset = 0;
  std::uint64_t total = 0;
  // 1: the receiver answers by an empty message when it has taken the piece.
  std::uint64_t asks = 0;
};
inline constexpr std::size_t kPieceHeaderBytes = 40;
// The tag of that answer; never 0, on which Peer listens.
constexpr std::uint64_t AnswerTag(std::uint64_t sequence) { return sequence + 1; }
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
