// The address of an endpoint as text and as bytes.
#include "ferry/transfer/handshake/endpoint_address.h"

#include <fmt/core.h>

#include <cstring>
#include <string>
#include <utility>

#include "ferry/core/bytes.h"
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {
namespace {

constexpr std::uint32_t kAddressMagic = 0x52444146;  // the bytes "FADR"

Error NoAddress(std::size_t size) {
  return Error(Code::kInvalidArgument,
               fmt::format("these {} bytes are not an endpoint address; pass on "
                           "Endpoint::address().Serialize() unchanged",
                           size));
}

}  // namespace

std::vector<std::byte> EndpointAddress::Serialize() const {
  // At most: magic, version, count and id, then port, length and up to 255 letters for each
  // address.
  std::vector<std::byte> bytes(26 + at.size() * 260);
  ByteWriter writer(bytes);
  writer.U32(kAddressMagic);
  writer.U16(wire::kVersion);
  writer.U16(static_cast<std::uint16_t>(at.size()));
  writer.Bytes(endpoint.bytes);
  for (const net::Address& address : at) {
    const std::string host = address.host.substr(0, 255);
    writer.U16(address.port);
    writer.U8(static_cast<std::uint8_t>(host.size()));
    writer.Bytes(std::as_bytes(std::span(host)));
  }
  bytes.resize(writer.written().size());
  return bytes;
}

Result<EndpointAddress> EndpointAddress::Parse(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  EndpointAddress address;
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  std::uint16_t count = 0;
  reader.U32(magic);
  reader.U16(version);
  reader.U16(count);
  reader.Copy(address.endpoint.bytes);
  if (!reader.ok() || magic != kAddressMagic || count > kMaxAddresses) {
    return NoAddress(bytes.size());
  }
  if (version != wire::kVersion) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("the endpoint address has version {}, this build reads version {}; use "
                    "the same release on both sides",
                    version, wire::kVersion));
  }
  for (std::uint16_t i = 0; i < count; ++i) {
    net::Address one;
    std::uint8_t length = 0;
    std::span<const std::byte> host;
    reader.U16(one.port);
    reader.U8(length);
    reader.View(length, host);
    one.host.resize(host.size());
    if (!host.empty()) std::memcpy(one.host.data(), host.data(), host.size());
    address.at.push_back(std::move(one));
  }
  // The reader turns bad once and stays so, so it is asked at the end.
  if (!reader.ok() || reader.left() != 0) return NoAddress(bytes.size());
  return address;
}

}  // namespace ferry::transfer
