// Encodes handles and frame metadata.
#include "plugins/nccl/wire.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace ferry::nccl_net {
namespace {

constexpr std::uint32_t kHandleMagic = 0x6e797266;  // "fryn"

int FamilyOf(const std::string& host) {
  return host.find(':') == std::string::npos ? AF_INET : AF_INET6;
}

// The handle has no room for its 20 bytes in one place.
RankWire RankIn(const HandleWire& wire) {
  std::array<std::uint8_t, sizeof(RankWire)> bytes{};
  std::copy_n(wire.rank, sizeof wire.rank, bytes.begin());
  std::copy_n(wire.rank_end, sizeof wire.rank_end, bytes.begin() + sizeof wire.rank);
  RankWire rank;
  std::memcpy(&rank, bytes.data(), sizeof rank);
  return rank;
}

Error NoHandle(const std::string& why) {
  return Error(Code::kInvalidArgument,
               fmt::format("the handle given to connect {}; use the same libnccl-net-ferry.so on "
                           "all nodes",
                           why));
}

}  // namespace

Status WriteHandle(const ListenAddress& address, void* handle) {
  HandleWire wire{};
  wire.magic = kHandleMagic;
  wire.version = kWireVersion;
  wire.listen = address.listen;
  wire.key = address.key;
  const auto* const rank = reinterpret_cast<const std::uint8_t*>(&address.rank);
  std::memcpy(wire.rank, rank, sizeof wire.rank);
  std::memcpy(wire.rank_end, rank + sizeof wire.rank, sizeof wire.rank_end);
  // NCCL's handle has a fixed size; addresses beyond it are left out. All have the port of the one
  // listener.
  const std::size_t count = std::min(address.at.size(), kMaxAddresses);
  wire.addresses = static_cast<std::uint8_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const net::Address& at = address.at[i];
    const int family = FamilyOf(at.host);
    if (::inet_pton(family, at.host.c_str(), wire.hosts[i]) != 1) {
      return Error(Code::kInvalidArgument,
                   fmt::format("{} is not a numeric listening address; set FERRY_LISTEN_HOST to "
                               "one, or leave it empty",
                               at.host));
    }
    wire.families[i] = family == AF_INET ? 4 : 6;
    wire.port = at.port;
  }
  std::memcpy(handle, &wire, sizeof wire);
  return Ok();
}

Result<ListenAddress> ReadHandle(const void* handle) {
  HandleWire wire;
  std::memcpy(&wire, handle, sizeof wire);
  if (wire.magic != kHandleMagic) return NoHandle("was not made by this plugin");
  if (wire.version < kFirstAlike)
    return NoHandle(
        fmt::format("is of version {} of the protocol, before {}; this side has version {}",
                    wire.version, kFirstAlike, kWireVersion));
  if (wire.addresses == 0 || wire.addresses > kMaxAddresses) return NoHandle("has no address");
  ListenAddress address;
  address.listen = wire.listen;
  address.key = wire.key;
  address.version = wire.version;
  // Only what precedes `rank` is laid out alike in all versions.
  if (wire.version == kWireVersion) address.rank = RankIn(wire);
  for (std::size_t i = 0; i < wire.addresses; ++i) {
    char text[INET6_ADDRSTRLEN] = {};
    const int family = wire.families[i] == 4 ? AF_INET : AF_INET6;
    if (::inet_ntop(family, wire.hosts[i], text, sizeof text) == nullptr) {
      return NoHandle("has an invalid address");
    }
    address.at.push_back({text, wire.port});
  }
  return address;
}

std::uint64_t AttemptOf(const void* handle) noexcept {
  HandleWire wire;
  std::memcpy(&wire, handle, sizeof wire);
  return wire.attempt;
}

void SetAttempt(void* handle, std::uint64_t attempt) noexcept {
  HandleWire wire;
  std::memcpy(&wire, handle, sizeof wire);
  wire.attempt = attempt;
  std::memcpy(handle, &wire, sizeof wire);
}

Secret SecretOf(const Key& key) {
  // A secret is text, of any bytes.
  return Secret(
      SecretText(std::string_view(reinterpret_cast<const char*>(key.data()), key.size())));
}

std::optional<HelloWire> LoadHelloHead(std::span<const std::byte> body) {
  // The part that every version has, so that the other side's version can be told in an error.
  constexpr std::size_t kHead = offsetof(HelloWire, comm);
  HelloWire hello;
  if (body.size() < kHead) return std::nullopt;
  std::memcpy(static_cast<void*>(&hello), body.data(), kHead);
  return hello;
}

void StorePadded(const DataWire& wire, std::uint64_t payload_bytes, std::vector<std::byte>* meta) {
  meta->assign(kMinFrame - std::min<std::uint64_t>(payload_bytes, kMinFrame - sizeof wire),
               std::byte{0});
  std::memcpy(meta->data(), &wire, sizeof wire);
}

std::optional<DataWire> LoadPadded(std::span<const std::byte> meta) {
  DataWire wire;
  if (meta.size() < sizeof wire || meta.size() > kMinFrame) return std::nullopt;
  std::memcpy(&wire, meta.data(), sizeof wire);
  return wire;
}

std::optional<std::vector<CountWire>> LoadCounts(FrameType type, std::span<const std::byte> meta) {
  CountsWire head;
  if (meta.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, meta.data(), sizeof head);
  const auto rest = meta.subspan(sizeof head);
  // In 64 bits: a product of the peer's number must not wrap to the right size. It is checked
  // before memory is allocated for it.
  if (head.type != type || rest.size() != std::uint64_t{head.entries} * sizeof(CountWire)) {
    return std::nullopt;
  }
  std::vector<CountWire> counts(head.entries);
  if (!rest.empty()) std::memcpy(counts.data(), rest.data(), rest.size());
  return counts;
}

void StoreCounts(FrameType type, std::span<const CountWire> counts, std::vector<std::byte>* meta) {
  CountsWire head;
  head.type = type;
  head.entries = static_cast<std::uint32_t>(counts.size());
  meta->resize(sizeof head + counts.size_bytes());
  std::memcpy(meta->data(), &head, sizeof head);
  if (!counts.empty()) {
    std::memcpy(meta->data() + sizeof head, counts.data(), counts.size_bytes());
  }
}

}  // namespace ferry::nccl_net
