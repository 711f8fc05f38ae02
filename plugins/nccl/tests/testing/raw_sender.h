// A sender that speaks the NCCL plugin's wire protocol over plain sockets.
#pragma once
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/session/exchange.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net::testing {

// One lane, byte by byte.
class RawSender {
 public:
  explicit RawSender(const Handle& handle)
      : address_(*ReadHandle(handle.data())),
        socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto raw = net::ToRaw(address_.at[0]);
    if (!raw || ::connect(socket_.get(), raw->get(), raw->length) != 0) {
      throw std::runtime_error("cannot connect to " + address_.at[0].ToString() + ": " +
                               std::strerror(errno));
    }
  }

  template <class Wire>
  void Say(const Wire& wire, std::size_t payload_bytes = 0) {
    const std::vector<std::byte> bytes = BytesOf(wire, payload_bytes);
    SayBytes(bytes);
  }
  template <class Wire>
  static std::vector<std::byte> BytesOf(const Wire& wire, std::size_t payload_bytes) {
    std::vector<std::byte> meta;
    StoreWire(wire, &meta);
    net::tcp::FramePrefix prefix;
    prefix.meta_bytes = static_cast<std::uint32_t>(meta.size());
    prefix.payload_bytes = payload_bytes;
    std::vector<std::byte> bytes(sizeof prefix + meta.size() + payload_bytes, std::byte{0x66});
    std::memcpy(bytes.data(), &prefix, sizeof prefix);
    std::memcpy(bytes.data() + sizeof prefix, meta.data(), meta.size());
    return bytes;
  }
  void SayBytes(std::span<const std::byte> bytes) {
    (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  HelloWire Hello() const {
    HelloWire hello;
    hello.lanes = 1;
    hello.listen = address_.listen;
    hello.comm = Uuid::Random();
    hello.rank = address_.rank;
    return hello;
  }
  // The bytes of the session's hello frame.
  template <class Wire>
  static std::vector<std::byte> HelloBytes(const Wire& hello) {
    return Encode(session::wire::Type::kHello, session::wire::BytesOf(hello));
  }
  // Says hello and proves the key, or another one. Returns the type of the answer; kHello: none.
  template <class Wire>
  session::wire::Type Enter(const Wire& hello) {
    return Enter(hello, address_.key);
  }
  template <class Wire>
  session::wire::Type Enter(const Wire& hello, const Key& key) {
    session::Exchange exchange;
    exchange.role = session::wire::Role::kNccl;
    exchange.first = session::wire::Type::kHello;
    const auto said = session::wire::BytesOf(hello);
    exchange.opening.assign(said.begin(), said.end());
    SayBytes(HelloBytes(hello));
    const auto challenge = Hear();
    if (challenge.size() != sizeof(session::wire::Header) + exchange.server.size()) {
      return session::wire::Type::kHello;
    }
    std::memcpy(exchange.server.data(), &challenge[sizeof(session::wire::Header)],
                exchange.server.size());
    session::wire::ProofBody proof;
    proof.mac = exchange.ClientProof(SecretOf(key));
    SayBytes(Encode(session::wire::Type::kProof, session::wire::BytesOf(proof)));
    const auto answer = Hear();
    return answer.empty() ? session::wire::Type::kHello
                          : static_cast<session::wire::Type>(answer.front());
  }
  void Go() { socket_.reset(); }
  // The metadata of the next frame; empty where the lane has ended.
  std::vector<std::byte> Hear() {
    net::tcp::FramePrefix prefix;
    if (!Read(std::as_writable_bytes(std::span(&prefix, 1)))) return {};
    std::vector<std::byte> meta(prefix.meta_bytes);
    return Read(meta) ? meta : std::vector<std::byte>();
  }
  // The metadata of a frame that has come, if one has.
  std::vector<std::byte> TryHear() {
    net::tcp::FramePrefix prefix;
    if (::recv(socket_.get(), &prefix, sizeof prefix, MSG_PEEK | MSG_DONTWAIT) != sizeof prefix) {
      return {};
    }
    std::vector<std::byte> frame(sizeof prefix + prefix.meta_bytes);
    if (::recv(socket_.get(), frame.data(), frame.size(), MSG_WAITALL) !=
        static_cast<ssize_t>(frame.size())) {
      throw std::runtime_error("the receiver has gone");
    }
    frame.erase(frame.begin(), frame.begin() + sizeof prefix);
    return frame;
  }
  // How the lane ends: "closed" by the other side, or what else became of it.
  std::string End() {
    char byte = 0;
    const timeval limit{60, 0};
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t got = 0;
    do {
      got = ::recv(socket_.get(), &byte, 1, 0);
    } while (got > 0 || (got < 0 && errno == EINTR));
    return got == 0 || errno == ECONNRESET ? "closed" : std::strerror(errno);
  }

 private:
  static std::vector<std::byte> Encode(session::wire::Type type, std::span<const std::byte> body) {
    std::vector<std::byte> bytes;
    session::wire::Append(&bytes,
                          session::wire::Header{.type = type, .role = session::wire::Role::kNccl});
    bytes.insert(bytes.end(), body.begin(), body.end());
    net::tcp::FramePrefix prefix;
    prefix.meta_bytes = static_cast<std::uint32_t>(bytes.size());
    std::vector<std::byte> frame;
    session::wire::Append(&frame, prefix);
    frame.insert(frame.end(), bytes.begin(), bytes.end());
    return frame;
  }
  // Blocks for at most a minute.
  bool Read(std::span<std::byte> bytes) {
    const timeval limit{60, 0};
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL) ==
           static_cast<ssize_t>(bytes.size());
  }

  const ListenAddress address_;
  UniqueFd socket_;
};

}  // namespace ferry::nccl_net::testing
