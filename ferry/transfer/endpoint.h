#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/connection.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/endpoint_address.h"
#include "ferry/transfer/readiness.h"

namespace ferry::transfer {

// The process's place on the network: progress threads, a listening port, registered memory and
// the connections. Move-only; its end closes every connection and waits until nothing touches any
// memory. All methods may be called by any thread.
//
// An endpoint, and what is made from it, is its process's own. In a child that was forked later
// (fork(2)) every call that can fail fails by kInvalidArgument at once, and others do nothing; what
// goes there is left as it is, silently. The parent is not affected. A child makes its own.
class Endpoint {
 public:
  // `provider`: null for the built-in TCP. Errors: kInvalidArgument (config), kUnavailable (ports,
  // descriptors), kUnsupported (metrics_address, in a build without prometheus-cpp).
  static Result<Endpoint> Create(const Config& config,
                                 std::unique_ptr<net::Provider> provider = nullptr);
  Endpoint(Endpoint&&) = default;
  Endpoint& operator=(Endpoint&& other) noexcept;
  ~Endpoint();

  const Uuid& id() const noexcept;
  std::uint16_t port() const noexcept;
  // What has happened so far; see counters.h.
  EndpointCounters Counters() const;
  // Where config.metrics_address is served; 0 where it is empty.
  std::uint16_t metrics_port() const noexcept;
  // With every address that a peer may try, or only config.listen_host.
  EndpointAddress address() const;

  // The memory is the caller's and must outlive the region: of the host, or of one GPU
  // (cudaMalloc), which is seen from the address. Errors: kInvalidArgument (no bytes, or GPU memory
  // that was freed or ends sooner), kUnsupported (managed memory), kUnavailable (no memory to stage
  // it).
  Result<Region> Register(std::span<std::byte> memory, Rights rights);

  // Errors: kInvalidArgument (unknown host), kPeerLost (nothing listens, or it closed), kTimedOut,
  // kCorrupt (no Tensorferry endpoint), kUnsupported (version), kRefused (another endpoint than
  // the address means), kUnavailable (the peer has as many connections as it allows).
  Result<Connection> Connect(const EndpointAddress& address, Deadline deadline);
  Result<Connection> Connect(std::string_view host_and_port, Deadline deadline);
  // Ends every connection, operation and call under way, by kCancelled, as the endpoint's own end
  // does; returns when nothing touches any memory. Idempotent; a second call at the same time does
  // not wait. Accept() and Connect() are cancelled from now on.
  void Close();

  // The next peer that has connected here. Its one-sided operations are served before it is
  // accepted, too. Errors: kTimedOut, kCancelled (the endpoint is closing).
  Result<Connection> Accept(Deadline deadline);
  // Readable while Accept() would not wait. Errors: kUnavailable (descriptors).
  Result<Readiness> AcceptReadiness() const;

 private:
  explicit Endpoint(std::shared_ptr<EndpointCore> core) : core_(std::move(core)) {}
  ProcessShared<EndpointCore> core_;  // with regions, connections and operations
};

}  // namespace ferry::transfer
