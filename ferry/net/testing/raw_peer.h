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

// A plain TCP socket for tests that say exactly which bytes cross. Calls block, at most for a
// minute; a socket that cannot be made aborts.
class RawPeer {
 public:
  explicit RawPeer(UniqueFd fd);
  static RawPeer ConnectTo(const Address& address);

  // False when the connection is lost.
  bool Write(std::span<const std::byte> bytes);
  // So many bytes, or fewer when the stream ends.
  std::vector<std::byte> Read(std::size_t bytes);
  // Reads on to the end: 0 when the peer closed, or the error, ECONNRESET say.
  int ReadToEnd();
  void EndWriting();
  // A reset, whatever is unsent or unread.
  void Reset();
  void Close() { fd_.reset(); }
  int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// A listening port of 127.0.0.1.
class RawListener {
 public:
  RawListener();
  const Address& address() const noexcept { return address_; }
  // The accepted socket, in blocking mode.
  UniqueFd Accept();

 private:
  UniqueFd fd_;
  Address address_;
};

}  // namespace ferry::net
