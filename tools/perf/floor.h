// The floor that transfers are compared with: the simplest fast copy between the same two
// processes, over as many sockets as the connection has bulk lanes, with the same socket options.
// It has one thread per socket and side; each moves its contiguous share of the buffer with
// blocking calls, directly between the two buffers. It does not scatter, fail over, check or
// cancel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"

namespace ferry::tools {

// A sequence of transfers of the whole buffer.
struct FloorRun {
  // How the two sides keep in step, by one byte per transfer and socket: the receiver acknowledges,
  // as it does for a write, or asks, as for a read.
  bool asked_for = false;
  std::uint64_t count = 1;
  std::uint64_t depth = 1;  // transfers by which the sender may be ahead
  std::uint64_t chunk = 0;  // bytes per system call
};

// One side's connected sockets. All calls block, and fail after a long time without progress.
// Errors: kPeerLost, kTimedOut.
class FloorSockets {
 public:
  // `config` gives buffer sizes and congestion control. Connects; the other side accepts.
  static Result<FloorSockets> Connect(const Config& config, const net::Address& address,
                                      const Uuid& token, std::size_t count, Deadline deadline);

  Status Produce(std::span<const std::byte> buffer, const FloorRun& run);
  Status Consume(std::span<std::byte> buffer, const FloorRun& run);

  // Exchanges messages of 8 bytes on the first socket. `spin`: polls instead of sleeping.
  struct Pings {
    std::uint64_t count = 1;
    bool spin = false;
  };
  // Appends half of each round trip, in seconds.
  Status Ping(const Pings& pings, std::vector<double>* half_round_trips);
  Status Pong(const Pings& pings);

 private:
  friend class FloorListener;
  explicit FloorSockets(std::size_t count) : sockets_(count) {}
  // Small transfers are cheapest whole, on one socket.
  std::span<const UniqueFd> SocketsFor(std::size_t bytes) const;
  // The status, where it is about the peer with its address.
  Status Named(const Status& status) const;
  static constexpr std::size_t kMinShare = 64 * 1024;

  std::string peer_;
  std::vector<UniqueFd> sockets_;
};

// Listens for the other side's sockets on a separate port.
class FloorListener {
 public:
  // Errors: kUnavailable (ports taken).
  static Result<FloorListener> Open(const Config& config, const std::string& host);

  std::uint16_t port() const noexcept { return port_; }
  // The token by which an accepted socket is recognised as the other side's.
  const Uuid& token() const noexcept { return token_; }
  Result<FloorSockets> Accept(const Config& config, std::size_t count, Deadline deadline);

 private:
  FloorListener(UniqueFd fd, std::uint16_t port)
      : fd_(std::move(fd)), port_(port), token_(Uuid::Random()) {}
  Result<UniqueFd> AcceptOne(const Config& config, Deadline deadline);

  UniqueFd fd_;
  std::uint16_t port_;
  Uuid token_;
};

}  // namespace ferry::tools
