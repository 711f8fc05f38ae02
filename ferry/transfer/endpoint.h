// The public handle of an endpoint: listener, registered memory and connections of a process.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/transfer/connection.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/handshake/endpoint_address.h"
#include "ferry/transfer/readiness.h"

namespace ferry::net {
class Provider;
}

namespace ferry::transfer {

// The process's place on the network: progress threads, a listening port, registered memory and
// connections. Move-only. The destructor closes every connection and blocks until nothing touches
// memory. All methods may be called from any thread.
//
// An endpoint and everything made from it belong to the process that created it. In a child forked
// later (fork(2)), calls that can fail return kInvalidArgument at once and other calls do nothing;
// destroying handles there has no effect. The parent is not affected. A child creates its own
// endpoint.
class Endpoint {
 public:
  // `secret`: what peers have to prove, in the place of config's secret, from which TLS keys are
  // still made and which peers still prove before a network plugin is called; empty: that one.
  // `check`: asked about each peer; null: peers that identify themselves are refused. Errors:
  // kInvalidArgument (config, config.interfaces selects no address, there is no such plugin, or a
  // check without a secret), kUnavailable (ports, file descriptors, a plugin that does not start),
  // kUnsupported (not a plugin).
  static Result<Endpoint> Create(const Config& config, const SecretText& secret = {},
                                 CheckIdentity check = nullptr);
  // Over `provider` instead of the one that config.provider names; null: over that one. For the
  // transports of this tree, because their interface (ferry/net/provider.h) is not installed.
  static Result<Endpoint> Create(const Config& config, std::unique_ptr<net::Provider> provider,
                                 const SecretText& secret = {}, CheckIdentity check = nullptr);
  Endpoint(Endpoint&&) = default;
  Endpoint& operator=(Endpoint&& other) noexcept;
  ~Endpoint();

  const Uuid& id() const noexcept;
  std::uint16_t port() const noexcept;
  // Counters so far (counters.h). Takes microseconds per open connection.
  EndpointCounters Counters() const;
  // Port at which metrics are served; 0 if config.metrics_address is empty or cannot be served.
  std::uint16_t metrics_port() const noexcept;
  // The addresses that a peer may try, the best first: those of the interfaces that
  // config.interfaces allows (docs/howto/two_machines.md), or of config.listen_host if that is set.
  // On a machine without a network, that of loopback. Reads the interfaces if they have changed.
  EndpointAddress address() const;

  // Registers memory for transfers. Host memory, or memory of one GPU (cudaMalloc); the kind is
  // detected from the pointer. The memory stays the caller's and must outlive the region. The first
  // GPU region blocks for tenths of a second. Errors: kInvalidArgument (empty, or GPU memory that
  // was freed or is shorter), kUnsupported (managed memory), kUnavailable (no memory for staging).
  // With `token`, a secret of the caller's, the key stays the same when memory is deregistered and
  // registered again with that token: whoever has the key may use the latest such region.
  Result<Region> Register(std::span<std::byte> memory, Rights rights,
                          std::optional<std::uint64_t> token = std::nullopt);

  // Connects and runs the client handshake; blocks until that is done or the deadline passes.
  // Errors: kInvalidArgument (unknown host), kPeerLost (nothing listens, or the peer closed),
  // kTimedOut, kCorrupt (not a Tensorferry endpoint), kUnsupported (version), kRefused (secrets or
  // settings differ, or another endpoint listens there), kUnavailable (the peer is at its
  // connection limit). `secret`: the peer's, which both sides prove on each lane, those that
  // replace others later as well; empty: this endpoint's own. `identify`: makes what the peer's
  // check is given, at most kMaxIdentityBytes, and needs a secret; null: nothing. It is called on a
  // progress thread or this one, for each address that asks, until this call returns.
  Result<Connection> Connect(const EndpointAddress& address, Deadline deadline,
                             const SecretText& secret = {}, MakeIdentity identify = nullptr);
  Result<Connection> Connect(std::string_view host_and_port, Deadline deadline);
  // Ends every connection, operation and blocked call with kCancelled, as the destructor does;
  // blocks until nothing touches memory. Idempotent; a concurrent second call does not wait. Later
  // calls of Accept() and Connect() return kCancelled.
  void Close();

  // Returns the next peer that has connected; blocks until there is one or the deadline passes.
  // One-sided operations of a peer are served before it is accepted. Errors: kTimedOut, kCancelled
  // (the endpoint is closing).
  Result<Connection> Accept(Deadline deadline);
  // A descriptor that is readable while Accept() would not block. Errors: kUnavailable (out of file
  // descriptors).
  Result<Readiness> AcceptReadiness() const;

 private:
  explicit Endpoint(std::shared_ptr<EndpointCore> core) : core_(std::move(core)) {}
  ProcessShared<EndpointCore> core_;  // shared with regions, connections and operations
};

}  // namespace ferry::transfer
