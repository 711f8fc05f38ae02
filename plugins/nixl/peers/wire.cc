// Packs and parses metadata and the frames of notifications.
#include "plugins/nixl/peers/wire.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ferry::nixl {
namespace {

enum class Kind : std::uint16_t { kConnection = 1, kMemory = 2, kIdentity = 3, kPiece = 4 };

constexpr std::uint32_t kMagic = 0x4e595246;  // "FRYN"

struct Prefix {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kWireVersion;
  Kind kind{};
};
static_assert(sizeof(Prefix) == 8);
static_assert(sizeof(Prefix) + sizeof(PublicKey) + sizeof(Signature) + kMaxNameBytes <=
              transfer::kMaxIdentityBytes);
static_assert(sizeof(Prefix) + sizeof(PieceHeader) == kPieceHeaderBytes);

template <class Bytes>
class Writer {
 public:
  explicit Writer(Kind kind) { Put(Prefix{.kind = kind}); }

  template <class T>
  void Put(const T& value) {
    Append(&value, sizeof(value));
  }
  void Append(const void* data, std::size_t bytes) {
    // Bytes of plain values go into strings and frames alike.
    const auto* const first = static_cast<const typename Bytes::value_type*>(data);
    bytes_.insert(bytes_.end(), first, first + bytes);
  }
  Bytes Take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  template <class T>
  bool Get(T* value) {
    if (left_.size() < sizeof(T)) return false;
    std::memcpy(value, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
    return true;
  }
  std::string_view rest() const { return left_; }

  // Errors: kCorrupt where the bytes are not of this kind and version.
  Status Begin(Kind kind, std::string_view what) {
    Prefix prefix;
    // The version comes last: only of our own bytes it says something.
    if (!Get(&prefix) || prefix.magic != kMagic || prefix.kind != kind) {
      return Error(Code::kCorrupt, fmt::format("the {} is not one of this back end, or was cut "
                                               "short or changed on its way",
                                               what));
    }
    if (prefix.version != kWireVersion) {
      return Error(Code::kCorrupt,
                   fmt::format("the {} has version {}, this plug-in has version {}; install the "
                               "same plug-in on both sides",
                               what, prefix.version, kWireVersion));
    }
    return Ok();
  }

 private:
  std::string_view left_;
};

// Views of the same bytes as characters.
std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> Raw(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Error Inside(std::string_view what, const Error& error) {
  return {Code::kCorrupt, fmt::format("the {} is damaged: {}", what, error.message())};
}

}  // namespace

std::string ConnectionInfo::Serialize() const {
  Writer<std::string> writer(Kind::kConnection);
  writer.Put(secret);
  writer.Put(key);
  const std::vector<std::byte> packed = address.Serialize();
  writer.Append(packed.data(), packed.size());
  return writer.Take();
}

Result<ConnectionInfo> ConnectionInfo::Parse(std::string_view bytes) {
  constexpr std::string_view kWhat = "peer's connection information";
  Reader reader(bytes);
  FERRY_TRY(reader.Begin(Kind::kConnection, kWhat));
  ConnectionInfo info;
  if (!reader.Get(&info.secret) || !reader.Get(&info.key))
    return Error(Code::kCorrupt, fmt::format("the {} was cut short", kWhat));
  auto address = transfer::EndpointAddress::Parse(Raw(reader.rest()));
  if (!address) return Inside(kWhat, address.error());
  info.address = *std::move(address);
  return info;
}

std::string MemoryInfo::Serialize() const {
  Writer<std::string> writer(Kind::kMemory);
  const std::vector<std::byte> key = region.Serialize();
  writer.Append(key.data(), key.size());
  return writer.Take();
}

Result<MemoryInfo> MemoryInfo::Parse(std::string_view bytes) {
  constexpr std::string_view kWhat = "metadata of the peer's memory";
  Reader reader(bytes);
  FERRY_TRY(reader.Begin(Kind::kMemory, kWhat));
  auto region = transfer::RemoteRegion::Parse(Raw(reader.rest()));
  if (!region) return Inside(kWhat, region.error());
  return MemoryInfo{*std::move(region)};
}

std::vector<std::byte> Identity::Serialize() const {
  Writer<std::vector<std::byte>> writer(Kind::kIdentity);
  writer.Put(key);
  writer.Put(signature);
  writer.Append(agent.data(), agent.size());
  return writer.Take();
}

Result<Identity> Identity::Parse(std::span<const std::byte> bytes) {
  Reader reader(Text(bytes));
  FERRY_TRY(reader.Begin(Kind::kIdentity, "identity of the peer"));
  Identity identity;
  if (!reader.Get(&identity.key) || !reader.Get(&identity.signature) ||
      reader.rest().size() > kMaxNameBytes) {
    return Error(Code::kCorrupt, "the identity of the peer is malformed");
  }
  identity.agent = reader.rest();
  return identity;
}

std::vector<std::byte> PieceFrame(const PieceHeader& header, std::string_view piece) {
  Writer<std::vector<std::byte>> writer(Kind::kPiece);
  writer.Put(header);
  writer.Append(piece.data(), piece.size());
  return writer.Take();
}

Result<Piece> ParsePiece(std::span<const std::byte> frame) {
  Reader reader(Text(frame));
  FERRY_TRY(reader.Begin(Kind::kPiece, "notification"));
  Piece piece;
  if (!reader.Get(&piece.header)) return Error(Code::kCorrupt, "a notification was cut short");
  piece.bytes = reader.rest();
  const PieceHeader& header = piece.header;
  // All pieces but the last are as long as may be, and only an empty message has an empty one.
  const std::uint64_t left = header.total - header.offset;
  if (header.offset > header.total || (left == 0 && header.total != 0) ||
      piece.bytes.size() != std::min<std::uint64_t>(left, kMaxPieceBytes)) {
    return Error(Code::kCorrupt, fmt::format("a notification has a piece of {} bytes at {} of {}",
                                             piece.bytes.size(), header.offset, header.total));
  }
  return piece;
}

Result<std::optional<std::string>> Joiner::Add(const Piece& piece) {
  const PieceHeader& header = piece.header;
  if (!IsNext(header) || header.total > kMaxMessageBytes || header.offset != bytes_.size() ||
      (header.offset != 0 && header.total != total_)) {
    return Error(
        Code::kCorrupt,
        fmt::format("piece {} of a notification begins at {} of {} bytes, where piece {} at "
                    "{} of {} was to come; at most {} are accepted",
                    header.sequence, header.offset, header.total, next_, bytes_.size(), total_,
                    kMaxMessageBytes));
  }
  ++next_;
  total_ = header.total;
  // Memory that no piece has come for is not touched.
  if (header.offset == 0) bytes_.reserve(total_);
  bytes_ += piece.bytes;
  if (bytes_.size() < total_) return std::optional<std::string>();
  return std::optional(std::exchange(bytes_, {}));
}

}  // namespace ferry::nixl
