#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/random.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/connection_core.h"
#include "ferry/transfer/region.h"
#include "ferry/transfer/secret.h"

namespace ferry::transfer {

class Reception;

// What an endpoint's handles share. Owns loops, listener, regions and live connections.
class EndpointCore final : public std::enable_shared_from_this<EndpointCore> {
 public:
  EndpointCore(const Config& config, std::unique_ptr<net::Provider> provider);
  ~EndpointCore();

  Status Start();
  // Closes everything, waits until nothing touches memory, stops the threads. Idempotent.
  void Shutdown();

  const Config& config() const noexcept { return config_; }
  const Uuid& id() const noexcept { return id_; }
  net::Provider& provider() const noexcept { return *provider_; }
  const net::Address& listening() const noexcept { return listening_; }
  // Once started.
  const std::optional<Secret>& secret() const noexcept { return secret_; }
  // Whether, having no secret, this endpoint connects to a peer, or lets it in.
  bool Trusts(bool is_local) const noexcept { return is_local || config_.insecure == "on"; }
  RegionTable& regions() noexcept { return regions_; }
  int lanes() const noexcept { return lanes_; }
  EventLoop* front_loop() const noexcept { return loops_.front().get(); }

  // Any thread. The loops for a new connection's lanes, home first.
  std::vector<EventLoop*> ChooseLoops(std::size_t lanes);
  // Any thread. Makes lanes of all connections let go of the region.
  void RevokeEverywhere(const std::shared_ptr<RegionState>& region);
  // Any thread. Closes the connections to peers that do not let go of data they have read from it.
  void FailHolders(const std::shared_ptr<RegionState>& region);
  // Any thread. From now until it is closed the endpoint keeps the connection.
  void Keep(const std::shared_ptr<ConnectionCore>& connection);
  // The home loop: gives the channels their lanes, lets the connection run, and hands it to Accept
  // if it came from outside.
  void BringUpOnLoop(const std::shared_ptr<ConnectionCore>& connection,
                     std::vector<std::unique_ptr<net::Lane>> lanes, bool from_outside);

  std::shared_ptr<ConnectionCore> TakeAccepted();
  bool closing() const noexcept { return closing_.load(); }

 private:
  void Forget(const ConnectionCore* connection);

  const Config config_;
  const Uuid id_ = Uuid::Random();
  const std::unique_ptr<net::Provider> provider_;
  const int lanes_;
  std::optional<Secret> secret_;
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::atomic<std::size_t> next_loop_{0};
  RegionTable regions_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<Reception> reception_;
  net::Address listening_;
  std::atomic<bool> closing_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_set<std::shared_ptr<ConnectionCore>> connections_;  // until closed
  std::deque<std::shared_ptr<ConnectionCore>> accepted_;             // until taken
};

}  // namespace ferry::transfer
