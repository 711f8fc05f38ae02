// State shared by the handles of an endpoint: loops, listener, regions and connections.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/random.h"
#include "ferry/net/provider.h"
#include "ferry/net/resolve.h"
#include "ferry/transfer/connection/connection_core.h"
#include "ferry/transfer/endpoint/connection_table.h"
#include "ferry/transfer/endpoint/loop_set.h"
#include "ferry/transfer/endpoint/own_calls.h"
#include "ferry/transfer/endpoint/peer_policy.h"
#include "ferry/transfer/gpu/device_memory.h"
#include "ferry/transfer/gpu/stream_watch.h"
#include "ferry/transfer/memory/held_memory.h"
#include "ferry/transfer/memory/region_table.h"
#include "ferry/transfer/options.h"
#include "ferry/transfer/stats/metrics.h"

namespace ferry::transfer {

class Dialer;
class Acceptor;
struct EndpointAddress;

// Where a peer was reached, by which interface, where else it says that it can be, and the secret
// that it has proved.
struct Dialled {
  net::Address at;
  std::string interface;
  std::vector<net::Address> others;
  std::optional<Secret> secret;
};

// What an endpoint's handles share. Owns loops, listener, regions and live connections.
class EndpointCore final : public std::enable_shared_from_this<EndpointCore> {
 public:
  EndpointCore(const Config& config, std::unique_ptr<net::Provider> provider,
               CheckIdentity check = nullptr);
  ~EndpointCore();

  // `secret`: as PeerPolicy::Load().
  Status Start(const SecretText& secret = {});
  // Closes everything, blocks until nothing touches memory, then stops the threads. Idempotent.
  void Shutdown();

  const Config& config() const noexcept { return config_; }
  const Uuid& id() const noexcept { return id_; }
  net::Provider& provider() const noexcept { return *provider_; }
  std::uint16_t port() const noexcept { return listening_.front().port; }
  // Both are valid after Start().
  LoopSet& loops() noexcept { return loops_; }
  PeerPolicy& policy() noexcept { return policy_; }
  // Null where peers do not identify themselves.
  const CheckIdentity& check_identity() const noexcept { return check_identity_; }
  OwnCalls& own_calls() noexcept { return own_calls_; }
  ConnectionTable& connections() noexcept { return connections_; }
  RegionTable& regions() noexcept { return regions_; }
  DeviceMemory& device_memory() noexcept { return device_memory_; }
  StreamWatch& stream_watch() noexcept { return stream_watch_; }
  net::NameResolver& names() noexcept { return names_; }
  // Lanes of a connection over one interface.
  int lanes() const noexcept { return lanes_; }
  // Like lanes(), but at least one for each interface by which remote peers may be reached.
  int LanesOverInterfaces() const;
  int LanesTo(const net::Address& peer) const;
  // The addresses that peers are told.
  EndpointAddress Told() const;
  // Those that a connected peer may use for further lanes.
  EndpointAddress OtherAddresses() const;
  // Holds a dial that is about to start until Forget(), or until Shutdown() has stopped the loops:
  // before that, no other thread may destroy a dial that is not done. Any thread.
  void Follow(const std::shared_ptr<Dialer>& dialer);
  void Forget(const std::shared_ptr<Dialer>& dialer);
  // Same contracts as net::Listener. Front loop only.
  void PauseAcceptingOnLoop(bool paused);
  void ExpectLanesOnLoop(const std::string& host, std::size_t lanes, Clock::time_point until);

  // Makes lanes that have opened the region release it, and peers unmap GPU memory that was shared
  // with them. `drained`: no lane is inside. Any thread.
  void RevokeEverywhere(const std::shared_ptr<RegionState>& region, bool drained);
  // Closes connections to peers that still hold data requested from the region. Any thread.
  void FailHolders(const std::shared_ptr<RegionState>& region);
  // Locks the connection table while it sums up, which takes microseconds per connection. Any
  // thread.
  EndpointCounters Counters();
  // 0 if metrics are off.
  std::uint16_t metrics_port() const noexcept { return metrics_ ? metrics_->port() : 0; }
  // The loop that the lanes are on: makes the connection that was agreed on, with a loop for each
  // lane, keeps it until it is closed, lets it run, and hands it to Accept if a peer has made it.
  // `dialled`: null where a peer has. Shared with the endpoint's table. Null, and the lanes are
  // closed, once the endpoint is.
  std::shared_ptr<ConnectionCore> EstablishOnLoop(Peer agreed,
                                                  std::vector<std::unique_ptr<net::Lane>> lanes,
                                                  const std::vector<EventLoop*>& loops,
                                                  const Dialled* dialled);

  bool closing() const noexcept { return closing_.load(); }

 private:
  [[nodiscard]] bool Keep(const std::shared_ptr<ConnectionCore>& connection);
  void BringUpOnLoop(const std::shared_ptr<ConnectionCore>& connection,
                     std::vector<std::unique_ptr<net::Lane>> lanes);
  void OnLinkChange(const net::LinkChange& change);
  Status ServeMetrics();
  void TrimSoonOnLoop();

  const Config config_;
  const Uuid id_ = Uuid::Random();
  const std::unique_ptr<net::Provider> provider_;
  const CheckIdentity check_identity_;
  const int lanes_;
  PeerPolicy policy_{config_};
  LoopSet loops_;
  // After loops_, to which its threads post, and after the provider.
  DeviceMemory device_memory_{config_, provider_.get()};
  EventLoop::TimerId trim_timer_ = 0;  // on the listener's loop
  StreamWatch stream_watch_{config_};  // after loops_, to which its threads post
  RegionTable regions_;
  const std::shared_ptr<HeldMemoryPool> held_;  // shared with connections, which handles keep alive
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<net::LinkWatch> link_watch_;
  std::vector<net::Address> listening_;  // one at least after Start()
  std::atomic<bool> closing_{false};
  net::NameResolver names_;
  OwnCalls own_calls_;
  std::mutex mutex_;
  // Under mutex_.
  std::vector<std::shared_ptr<Dialer>> dialers_;
  bool has_stopped_ = false;  // the loops, for good
  ConnectionTable connections_;

  std::unique_ptr<MetricsServer> metrics_;  // null if metrics are off; last: it uses the rest
};

}  // namespace ferry::transfer
