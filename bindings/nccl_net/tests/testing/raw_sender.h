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

#include "bindings/nccl_net/tests/testing/nccl_host.h"
#include "bindings/nccl_net/wire.h"
#include "ferry/core/fd.h"
#include "ferry/net/tcp/frame_prefix.h"

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
    hello.key = address_.key;
    hello.comm = Uuid::Random();
    hello.rank = address_.rank;
    return hello;
  }
  void Go() { socket_.reset(); }
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
  const ListenAddress address_;
  UniqueFd socket_;
};

}  // namespace ferry::nccl_net::testing
