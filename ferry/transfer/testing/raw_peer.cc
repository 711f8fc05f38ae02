// Implements the scripted peer with plain sockets.
#include "ferry/transfer/testing/raw_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ferry/net/tcp/frame_prefix.h"

namespace ferry::transfer {
namespace {

using net::tcp::FramePrefix;

constexpr int kRawTimeoutMs = 30000;

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

const sockaddr* Generic(const sockaddr_in* address) {
  return static_cast<const sockaddr*>(static_cast<const void*>(address));
}

UniqueFd NewSocket() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  FERRY_CHECK(static_cast<bool>(fd), errno);
  return fd;
}

UniqueFd ConnectTo(std::uint16_t port) {
  UniqueFd fd = NewSocket();
  const sockaddr_in address = Loopback(port);
  FERRY_CHECK(::connect(fd.get(), Generic(&address), sizeof address) == 0, errno);
  const int on = 1;
  (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

bool IsSequenced(wire::Type type) {
  switch (type) {
    case wire::Type::kWrite:
    case wire::Type::kReadData:
    case wire::Type::kSend:
    case wire::Type::kRts:
    case wire::Type::kCts:
    case wire::Type::kFin:
    case wire::Type::kDeclined:
    case wire::Type::kCopy:
    case wire::Type::kShare:
    case wire::Type::kShared:
    case wire::Type::kUnshare:
    case wire::Type::kUnshared:
    case wire::Type::kNotify: return true;
    default: return false;
  }
}

bool WaitFor(int fd, short events, int timeout_ms) {
  pollfd wanted{fd, events, 0};
  int ready = 0;
  do {
    ready = ::poll(&wanted, 1, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace

std::vector<std::byte> Joined(std::vector<std::byte> first, std::span<const std::byte> second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// ---- RawLane ------------------------------------------------------------------------------------

RawLane::RawLane(std::uint16_t port) : fd_(ConnectTo(port)) {}

std::vector<std::byte> RawLane::Encode(const Saying& saying) const {
  wire::MessageHeader header;
  header.type = saying.type;
  header.ack = saying.ack.value_or(last_acked_);
  header.operation = saying.operation;
  FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(sizeof header + saying.body.size());
  prefix.payload_bytes = saying.payload.size();
  std::vector<std::byte> bytes = Pod(prefix);
  wire::Append(&bytes, header);
  return Joined(Joined(std::move(bytes), saying.body), saying.payload);
}

bool RawLane::SendBytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    FERRY_CHECK(WaitFor(fd_.get(), POLLOUT, kRawTimeoutMs), bytes.size());
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

std::uint64_t RawLane::Flood(std::span<const std::byte> bytes, std::uint64_t most, int timeout_ms) {
  std::vector<std::byte> many;
  while (many.size() < 64 * 1024) many.insert(many.end(), bytes.begin(), bytes.end());
  std::uint64_t total = 0;
  std::size_t at = 0;
  while (total < most && WaitFor(fd_.get(), POLLOUT, timeout_ms)) {
    const ssize_t sent =
        ::send(fd_.get(), many.data() + at, many.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) break;
    total += static_cast<std::uint64_t>(std::max<ssize_t>(sent, 0));
    at = (at + static_cast<std::size_t>(std::max<ssize_t>(sent, 0))) % many.size();
  }
  return total;
}

bool RawLane::ReadExactly(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    FERRY_CHECK(WaitFor(fd_.get(), POLLIN, kRawTimeoutMs), bytes.size());
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

std::optional<RawFrame> RawLane::ReceiveAny() {
  FramePrefix prefix;
  if (!ReadExactly(std::as_writable_bytes(std::span(&prefix, 1)))) return std::nullopt;
  FERRY_CHECK(prefix.magic == FramePrefix::kMagic, prefix.magic);
  RawFrame frame;
  FERRY_CHECK(prefix.meta_bytes >= sizeof frame.header, prefix.meta_bytes);
  frame.rest.resize(prefix.meta_bytes - sizeof frame.header);
  frame.payload.resize(prefix.payload_bytes);
  if (!ReadExactly(std::as_writable_bytes(std::span(&frame.header, 1))) ||
      !ReadExactly(frame.rest) || !ReadExactly(frame.payload)) {
    return std::nullopt;
  }
  acked_ = std::max(acked_, frame.header.ack);
  if (IsSequenced(frame.header.type)) ++sequenced_;
  return frame;
}

std::optional<RawFrame> RawLane::Receive() {
  if (!kept_.empty()) {
    RawFrame frame = std::move(kept_.front());
    kept_.pop_front();
    return frame;
  }
  for (;;) {
    auto frame = ReceiveAny();
    if (!frame) return std::nullopt;
    const wire::Type type = frame->header.type;
    if (type != wire::Type::kPing && type != wire::Type::kAck) return frame;
  }
}

std::optional<RawFrame> RawLane::ReceiveReady() {
  while (kept_.empty() && WaitFor(fd_.get(), POLLIN, 0)) {
    auto frame = ReceiveAny();
    if (!frame) return std::nullopt;
    const wire::Type type = frame->header.type;
    if (type != wire::Type::kPing && type != wire::Type::kAck) return frame;
  }
  return kept_.empty() ? std::nullopt : Receive();
}

RawFrame RawLane::Expect(wire::Type type) {
  auto frame = Receive();
  FERRY_CHECK(frame.has_value(), wire::TypeName(type));
  FERRY_CHECK(frame->header.type == type, wire::TypeName(frame->header.type), wire::TypeName(type));
  return *std::move(frame);
}

bool RawLane::WaitAcked(std::uint32_t frames) {
  while (acked_ < frames) {
    auto frame = ReceiveAny();
    if (!frame) return false;
    const wire::Type type = frame->header.type;
    if (type != wire::Type::kPing && type != wire::Type::kAck) kept_.push_back(*std::move(frame));
  }
  return true;
}

void RawLane::AwaitInput(int bytes) {
  for (const int enough : {bytes, 1}) {
    FERRY_CHECK(::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof enough) == 0,
                errno);
    if (enough > 1) FERRY_CHECK(WaitFor(fd_.get(), POLLIN, kRawTimeoutMs), bytes);
  }
}

void RawLane::EndSending() { FERRY_CHECK(::shutdown(fd_.get(), SHUT_WR) == 0, errno); }

void RawLane::WaitClosed() {
  while (ReceiveAny()) {
  }
}

bool RawLane::WaitClosedFor(milliseconds timeout) {
  const Deadline deadline = Deadline::After(timeout);
  std::array<std::byte, 64 * 1024> dropped;
  while (WaitFor(fd_.get(), POLLIN, deadline.PollMillis())) {
    const ssize_t got = ::recv(fd_.get(), dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
  }
  return false;
}

std::optional<std::vector<RawFrame>> RawLane::UntilPong() {
  if (!Say({.type = wire::Type::kPing})) return std::nullopt;
  std::vector<RawFrame> said;
  for (;;) {
    auto frame = Receive();
    if (!frame) return std::nullopt;
    if (frame->header.type == wire::Type::kPong) return said;
    said.push_back(*std::move(frame));
  }
}

bool RawLane::IsQuiet() {
  const auto said = UntilPong();
  return said && said->empty();
}

bool RawLane::AckAll() {
  last_acked_ = sequenced_;
  return Say({.type = wire::Type::kAck});
}

// ---- handshake ----------------------------------------------------------------------------------

wire::HelloBody Hello(const Uuid& id, std::uint16_t lanes, std::uint64_t window_bytes) {
  wire::HelloBody hello;
  hello.lanes = lanes;
  hello.window_bytes = window_bytes;
  std::memcpy(hello.endpoint, id.bytes.data(), sizeof hello.endpoint);
  return hello;
}

RawPeer::RawPeer(std::uint16_t port, std::uint16_t lanes, std::uint64_t window_bytes, bool proved) {
  lanes_.emplace_back(port);
  wire::HelloBody hello = Hello(id_, lanes, window_bytes);
  if (proved) {
    lane().List();
    hello.process = net::ThisProcess();
  }
  FERRY_CHECK(lane().Say({.type = wire::Type::kHello, .body = Pod(hello)}));
  welcome_ = lane().Expect(wire::Type::kWelcome).Body<wire::WelcomeBody>();
  for (std::uint16_t i = 1; i < welcome_.lanes; ++i) {
    lanes_.emplace_back(port);
    if (proved) lane(i).List();
    wire::JoinBody join;
    join.lane = i;
    join.connection = welcome_.connection;
    std::memcpy(join.token, welcome_.token, sizeof join.token);
    FERRY_CHECK(lane(i).Say({.type = wire::Type::kJoin, .body = Pod(join)}));
    (void)lane(i).Expect(wire::Type::kJoined);
  }
}

RawListener::RawListener() : fd_(NewSocket()) {
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof address;
  FERRY_CHECK(::bind(fd_.get(), Generic(&address), sizeof address) == 0, errno);
  FERRY_CHECK(::listen(fd_.get(), 16) == 0, errno);
  FERRY_CHECK(::getsockname(fd_.get(), const_cast<sockaddr*>(Generic(&address)), &length) == 0,
              errno);
  port_ = ntohs(address.sin_port);
}

RawLane RawListener::Accept() {
  FERRY_CHECK(WaitFor(fd_.get(), POLLIN, kRawTimeoutMs));
  UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  FERRY_CHECK(static_cast<bool>(fd), errno);
  return RawLane(std::move(fd));
}

}  // namespace ferry::transfer
