#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/log_limiter.h"
#include "ferry/core/random.h"
#include "ferry/net/provider.h"
#include "ferry/net/resolve.h"
#include "ferry/transfer/connection_core.h"
#include "ferry/transfer/counter_book.h"
#include "ferry/transfer/device_memory.h"
#include "ferry/transfer/held_memory.h"
#include "ferry/transfer/metrics.h"
#include "ferry/transfer/ready_flag.h"
#include "ferry/transfer/region_table.h"
#include "ferry/transfer/secret.h"
#include "ferry/transfer/stream_watch.h"

namespace ferry::transfer {

class Dialer;
class Greeting;
class Reception;
struct EndpointAddress;

// Where a peer was reached, by which interface, and where else it says that it can be.
struct Dialled {
  net::Address at;
  std::string interface;
  std::vector<net::Address> others;
};

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
  // Whether, having no secret, this endpoint connects to a peer, or lets it in. `is_known`: for
  // being on this machine, or by TLS.
  bool Trusts(bool is_known) const noexcept { return is_known || config_.insecure == "on"; }
  // Whether this endpoint's settings let it use a lane that it has connected to `peer_name`: by
  // whom that is known to be, and by the interface by which the lane leaves. Errors: kRefused,
  // kInvalidArgument.
  Status CheckLane(const Greeting& greeting, const std::string& peer_name) const;
  RegionTable& regions() noexcept { return regions_; }
  DeviceMemory& device_memory() noexcept { return device_memory_; }
  StreamWatch& stream_watch() noexcept { return stream_watch_; }
  net::NameResolver& names() noexcept { return names_; }
  // Over one interface.
  int lanes() const noexcept { return lanes_; }
  // At least one for each interface that peers on other machines may be reached by.
  int LanesOverInterfaces() const;
  int LanesTo(const net::Address& peer) const;
  // Every address that peers on other machines may be told.
  EndpointAddress OtherAddresses() const;
  // Any thread. Those that peers have made to this endpoint, until they are closed.
  std::size_t ConnectionsFromOutside();
  // Any thread. While a call of this endpoint's is under way, from this address and port of its
  // own: whether somebody who calls from there is this endpoint itself.
  void BeginCall(const std::string& local_name);
  void EndCall(const std::string& local_name);
  bool IsOwnCall(const std::string& remote_name);
  // Any thread. Of a call that is about to be made: its end is the endpoint's at the latest.
  void Follow(const std::shared_ptr<Dialer>& dialer);
  // The front loop. As the listener's.
  void PauseAcceptingOnLoop(bool paused);
  void ExpectLanesOnLoop(const std::string& host, std::size_t lanes, Clock::time_point until);
  // Any thread. Counts and logs, by a sentence, that somebody who wished to connect was not let in.
  void RefusedGreeting(const std::string& peer_name, const std::string& sentence);
  // Any thread. The open connection that a peer was welcomed to with this number and token.
  std::shared_ptr<ConnectionCore> FindConnection(std::uint32_t number, const Uuid& token);
  EventLoop* front_loop() const noexcept { return loops_.front().get(); }

  // Any thread. The loops for a new connection's lanes, home first.
  std::vector<EventLoop*> ChooseLoops(std::size_t lanes);
  // Any thread. Makes the lanes that have opened the region let go of it, and peers of GPU memory
  // that was shared with them. `drained`: no lane is inside.
  void RevokeEverywhere(const std::shared_ptr<RegionState>& region, bool drained);
  // Any thread. Closes the connections to peers that do not let go of data they have read from it.
  void FailHolders(const std::shared_ptr<RegionState>& region);
  // Any thread. Locks out other uses of the connections while it adds up, which takes microseconds
  // for each.
  EndpointCounters Counters();
  // 0 where there are none.
  std::uint16_t metrics_port() const noexcept { return metrics_ ? metrics_->port() : 0; }
  // The loop that the lanes are on: makes the connection that was agreed on, with a loop for each
  // lane, keeps it until it is closed, lets it run, and hands it to Accept if a peer has made it.
  // `dialled`: null where a peer has. Shared with the endpoint's table.
  std::shared_ptr<ConnectionCore> EstablishOnLoop(Peer agreed,
                                                  std::vector<std::unique_ptr<net::Lane>> lanes,
                                                  std::vector<EventLoop*> loops,
                                                  const Dialled* dialled);

  std::shared_ptr<ConnectionCore> TakeAccepted();
  // Any thread. See Endpoint::AcceptReadiness().
  Result<UniqueFd> AcceptDescriptor();
  bool closing() const noexcept { return closing_.load(); }

 private:
  void Keep(const std::shared_ptr<ConnectionCore>& connection);
  void BringUpOnLoop(const std::shared_ptr<ConnectionCore>& connection,
                     std::vector<std::unique_ptr<net::Lane>> lanes);
  void Forget(const ConnectionCore* connection);
  // Null: the connection has closed.
  std::shared_ptr<ConnectionCore> FindConnection(std::uint32_t number);
  void OnLinkChange(const net::LinkChange& change);

  const Config config_;
  const Uuid id_ = Uuid::Random();
  const std::unique_ptr<net::Provider> provider_;
  const int lanes_;
  std::optional<Secret> secret_;
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::atomic<std::size_t> next_loop_{0};
  DeviceMemory device_memory_{config_};  // after loops_, to which its threads post
  StreamWatch stream_watch_{config_};    // likewise
  RegionTable regions_;
  const std::shared_ptr<HeldMemoryPool> held_;  // with the connections, which handles keep
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<Reception> reception_;
  std::unique_ptr<net::LinkWatch> link_watch_;
  net::Address listening_;
  std::atomic<bool> closing_{false};
  net::NameResolver names_;
  LogLimiter refusal_log_;  // by host
  std::atomic<std::uint64_t> greetings_refused_{0};

  std::mutex mutex_;
  std::vector<std::weak_ptr<Dialer>> dialers_;  // under mutex_; those that are there, and others
  std::condition_variable changed_;
  std::unordered_set<std::shared_ptr<ConnectionCore>> connections_;  // until closed
  std::vector<std::shared_ptr<ConnectionCore>> by_number_;           // the same; null: free
  std::vector<std::uint32_t> free_numbers_;                          // of by_number_
  std::deque<std::shared_ptr<ConnectionCore>> accepted_;             // until taken
  ReadyFlag accept_ready_;            // under mutex_; set once it is closing
  std::multiset<std::string> calls_;  // under way, local names
  CounterBook book_;                  // under mutex_

  std::unique_ptr<MetricsServer> metrics_;  // null where none was asked for; last: it uses the rest
};

}  // namespace ferry::transfer
