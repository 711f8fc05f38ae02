// Blocking TCP sockets for tests that send exact bytes.
#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/address.h"

namespace ferry::net {

// A blocking TCP socket for tests that send exact bytes. A call blocks for at most a minute; aborts
// if the socket cannot be created.
class RawPeer {
 public:
  explicit RawPeer(UniqueFd fd);
  static RawPeer ConnectTo(const Address& address);

  // Returns false when the connection is lost.
  bool Write(std::span<const std::byte> bytes);
  // Reads `bytes` bytes, or fewer when the stream ends.
  std::vector<std::byte> Read(std::size_t bytes);
  // Reads to the end: returns 0 when the peer closed, else the errno, for example ECONNRESET.
  int ReadToEnd();
  void EndWriting();
  // Resets the connection, whatever is unsent or unread.
  void Reset();
  void Close() { fd_.reset(); }
  int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// A listening port of a local address. Port 0: a free one. Aborts if the port is taken.
class RawListener {
 public:
  explicit RawListener(const Address& at = {"127.0.0.1", 0});
  const Address& address() const noexcept { return address_; }
  // The accepted socket, in blocking mode.
  UniqueFd Accept();

 private:
  UniqueFd fd_;
  Address address_;
};

}  // namespace ferry::net
