// The bytes that agents of ours exchange: metadata by NIXL's ways, frames in notifications.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/transfer/endpoint.h"
#include "ferry/transfer/region.h"

namespace ferry::nixl {

inline constexpr std::uint16_t kWireVersion = 1;
// The largest notification of a connection.
inline constexpr std::size_t kMaxFrameBytes = 64 << 10;
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 30;

// What an agent tells its peers of its endpoint, in its metadata.
struct ConnectionInfo {
  transfer::EndpointAddress address;
  Uuid secret;  // whoever connects proves by it that it has the metadata

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

// The first notification of every connection: who speaks, and that it may.
struct Hello {
  Uuid secret;  // the receiver's, from its metadata
  std::string agent;
};
std::vector<std::byte> HelloFrame(const Hello& hello);
Result<Hello> ParseHello(std::span<const std::byte> frame);

// A piece of a message: [offset, offset + its bytes) of `total`.
struct PieceHeader {
  std::uint64_t message = 0;  // unique on a connection
  std::uint64_t offset = 0;
  std::uint64_t total = 0;
};
inline constexpr std::size_t kPieceHeaderBytes = 32;
inline constexpr std::size_t kMaxPieceBytes = kMaxFrameBytes - kPieceHeaderBytes;

std::vector<std::byte> PieceFrame(const PieceHeader& header, std::string_view piece);
// The piece refers to `frame`.
struct Piece {
  PieceHeader header;
  std::string_view bytes;
};
Result<Piece> ParsePiece(std::span<const std::byte> frame);

}  // namespace ferry::nixl
