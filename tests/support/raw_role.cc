// Implements a peer that speaks the wire protocol without the engine.

#include "tests/support/raw_role.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/region.h"

namespace ferry::tests {
namespace {

namespace wire = transfer::wire;
using net::tcp::FramePrefix;

class RawPeer {
 public:
  Result<std::string> Do(const std::string& line);

 private:
  Status Connect(std::uint16_t port);
  Status Handshake();
  Status SendAll(std::span<const std::byte> bytes);
  Status SendFrameHead(const std::vector<std::byte>& meta, std::uint64_t payload_bytes);
  Status ReceiveAll(std::span<std::byte> bytes);
  Result<std::string> HalfWrite(std::istringstream& words);

  UniqueFd socket_;
};

std::vector<std::byte> MetaOf(wire::Type type, const auto& body) {
  std::vector<std::byte> meta;
  wire::MessageHeader header;
  header.type = type;
  wire::Append(&meta, header);
  wire::Append(&meta, body);
  return meta;
}

Status RawPeer::Connect(std::uint16_t port) {
  socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{kTimeout.count(), 0};
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoError("connect", errno);
  }
  return Ok();
}

Status RawPeer::SendAll(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return ErrnoError("send", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return Ok();
}

Status RawPeer::ReceiveAll(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return ErrnoError("recv", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return Ok();
}

Status RawPeer::SendFrameHead(const std::vector<std::byte>& meta, std::uint64_t payload_bytes) {
  FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(meta.size());
  prefix.payload_bytes = payload_bytes;
  FERRY_TRY(SendAll(std::as_bytes(std::span(&prefix, 1))));
  return SendAll(meta);
}

Status RawPeer::Handshake() {
  wire::HelloBody hello;
  hello.lanes = 1;
  hello.window_bytes = 16 << 20;
  const Uuid id = Uuid::Random();
  std::memcpy(hello.endpoint, id.bytes.data(), sizeof hello.endpoint);
  FERRY_TRY(SendFrameHead(MetaOf(wire::Type::kHello, hello), 0));
  FramePrefix prefix;
  wire::MessageHeader header;
  wire::WelcomeBody welcome;
  FERRY_TRY(ReceiveAll(std::as_writable_bytes(std::span(&prefix, 1))));
  FERRY_TRY(ReceiveAll(std::as_writable_bytes(std::span(&header, 1))));
  FERRY_TRY(ReceiveAll(std::as_writable_bytes(std::span(&welcome, 1))));
  if (header.type != wire::Type::kWelcome) return Error(Code::kRefused, "not welcome");
  return Ok();
}

Result<std::string> RawPeer::HalfWrite(std::istringstream& words) {
  std::uint16_t port = 0;
  std::string key;
  std::uint64_t announced = 0;
  std::uint64_t sent = 0;
  words >> port >> key >> announced >> sent;
  FERRY_TRY(Connect(port));
  FERRY_TRY(Handshake());
  FERRY_TRY_ASSIGN(const auto region, transfer::RemoteRegion::Parse(FromHex(key)));
  wire::WriteBody body;
  body.key = region.key;
  body.blocks = 1;
  std::vector<std::byte> meta = MetaOf(wire::Type::kWrite, body);
  wire::Append(&meta, wire::BlockOnWire{0, announced});
  FERRY_TRY(SendFrameHead(meta, announced));
  FERRY_TRY(SendAll(std::vector<std::byte>(sent, std::byte{0x5A})));
  return std::string();
}

Result<std::string> RawPeer::Do(const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "half_write") return HalfWrite(words);
  if (command == "reset") {
    const linger now{1, 0};
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  if (command != "silence") socket_.reset();
  return std::string();
}

}  // namespace

int RunRawPeer(LinePipe& parent) {
  RawPeer peer;
  return Obey(parent, [&](const std::string& line) { return peer.Do(line); });
}

}  // namespace ferry::tests
