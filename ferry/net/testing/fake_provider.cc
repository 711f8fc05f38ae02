// The in-memory network and its providers.
#include "ferry/net/testing/fake_provider.h"

#include <fmt/core.h>

#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/net/testing/fake_lane.h"
#include "ferry/net/testing/fake_link.h"

namespace ferry::net {
namespace {

constexpr unsigned kFirstPort = 10'000;
constexpr unsigned kFirstConnectorPort = 40'000;

// Shared by the listener, the network's table and lanes in flight.
struct Listening {
  EventLoop* loop;
  Provider::Accepted accepted;  // on the loop, like `open`
  bool open = true;
};

// A watcher's loop and its callback; used on the loop only.
struct Watching {
  EventLoop* loop;
  Provider::LinkChanged changed;
  bool open = true;
};

std::string HostAt(std::size_t index) {
  return index == 0 ? FakeNetwork::kHost : fmt::format("{}{}", FakeNetwork::kHost, index);
}

bool IsFakeHost(const std::string& host) { return host.rfind(FakeNetwork::kHost, 0) == 0; }

Error BadAddress(const Address& address) {
  return Error(Code::kInvalidArgument,
               fmt::format("\"{}\" is no address of the fake network; its host is \"{}\"",
                           address.host, FakeNetwork::kHost));
}

}  // namespace

// State that a network's providers and listeners share, so that none must outlive another.
class FakeNetwork::State {
 public:
  void SetAnswer(FakeAnswer answer);
  void SetFaults(const FakeFaults& faults);
  void SetFaults(std::size_t connection, const FakeFaults& faults);
  std::size_t connections() const;
  std::shared_ptr<FakeLink> LinkAt(std::size_t connection) const;  // with the caller

  // Returns the port that was bound.
  Result<std::uint16_t> Listen(const Address& address, const Config& config,
                               std::shared_ptr<Listening> listening);  // with the listener
  void StopListening(std::uint16_t port);
  // How a connect to this host is answered.
  FakeAnswer AnswerAt(const std::string& host) const;
  Result<std::unique_ptr<Lane>> Connect(const Address& address);

  void SetInterfaces(std::size_t count);
  std::size_t interfaces() const;
  void SetLink(std::string_view host, bool up, bool announce);
  void Watch(std::shared_ptr<Watching> watching);  // with the watch
  void StopWatching(const Watching* watching);

 private:
  Result<std::uint16_t> ChoosePort(const Address& address, const Config& config) const;

  mutable std::mutex mutex_;  // guards all below
  FakeAnswer answer_ = FakeAnswer::kAccept;
  FakeFaults faults_;
  std::map<std::size_t, FakeFaults> own_faults_;
  std::vector<std::shared_ptr<FakeLink>> links_;
  std::map<unsigned, std::shared_ptr<Listening>> ports_;
  std::size_t interfaces_ = 1;
  std::set<std::string, std::less<>> down_;
  std::vector<std::shared_ptr<Watching>> watching_;
};

void FakeNetwork::State::SetAnswer(FakeAnswer answer) {
  const std::lock_guard lock(mutex_);
  answer_ = answer;
}

FakeAnswer FakeNetwork::State::AnswerAt(const std::string& host) const {
  const std::lock_guard lock(mutex_);
  return down_.contains(host) ? FakeAnswer::kSilence : answer_;
}

void FakeNetwork::State::SetInterfaces(std::size_t count) {
  const std::lock_guard lock(mutex_);
  interfaces_ = count;
}

std::size_t FakeNetwork::State::interfaces() const {
  const std::lock_guard lock(mutex_);
  return interfaces_;
}

void FakeNetwork::State::SetLink(std::string_view host, bool up, bool announce) {
  const std::lock_guard lock(mutex_);
  up ? (void)down_.erase(std::string(host)) : (void)down_.emplace(host);
  for (const auto& link : links_) {
    if (link->host() == host) link->SetDown(!up);
  }
  if (!announce) return;
  for (const auto& watching : watching_) {
    watching->loop->Post([watching, change = LinkChange{std::string(host), up}] {
      if (watching->open) watching->changed(change);
    });
  }
}

void FakeNetwork::State::Watch(std::shared_ptr<Watching> watching) {
  const std::lock_guard lock(mutex_);
  watching_.push_back(std::move(watching));
}

void FakeNetwork::State::StopWatching(const Watching* watching) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watching_, [&](const auto& kept) { return kept.get() == watching; });
}

void FakeNetwork::State::SetFaults(const FakeFaults& faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
  own_faults_.clear();
  for (const auto& link : links_) link->SetFaults(faults);
}

void FakeNetwork::State::SetFaults(std::size_t connection, const FakeFaults& faults) {
  const std::lock_guard lock(mutex_);
  own_faults_[connection] = faults;
  if (connection < links_.size()) links_[connection]->SetFaults(faults);
}

std::size_t FakeNetwork::State::connections() const {
  const std::lock_guard lock(mutex_);
  return links_.size();
}

std::shared_ptr<FakeLink> FakeNetwork::State::LinkAt(std::size_t connection) const {
  const std::lock_guard lock(mutex_);
  FERRY_CHECK(connection < links_.size(), connection, links_.size());
  return links_[connection];
}

Result<std::uint16_t> FakeNetwork::State::ChoosePort(const Address& address,
                                                     const Config& config) const {
  unsigned port = address.port;
  if (port != 0) {
    if (!ports_.contains(port)) return address.port;
    return Error(Code::kUnavailable,
                 fmt::format("cannot listen on {}: the port is taken", address.ToString()));
  }
  const bool any = config.port_first == 0;
  const unsigned first = any ? kFirstPort : config.port_first;
  const unsigned last = any ? kFirstConnectorPort - 1 : config.port_last;
  port = first;
  while (port <= last && ports_.contains(port)) ++port;
  if (port <= last) return static_cast<std::uint16_t>(port);
  return Error(Code::kUnavailable, fmt::format("every port from {} to {} is taken", first, last));
}

Result<std::uint16_t> FakeNetwork::State::Listen(const Address& address, const Config& config,
                                                 std::shared_ptr<Listening> listening) {
  const std::lock_guard lock(mutex_);
  FERRY_TRY_ASSIGN(const std::uint16_t port, ChoosePort(address, config));
  ports_.emplace(port, std::move(listening));
  return port;
}

void FakeNetwork::State::StopListening(std::uint16_t port) {
  const std::lock_guard lock(mutex_);
  ports_.erase(port);
}

Result<std::unique_ptr<Lane>> FakeNetwork::State::Connect(const Address& address) {
  const std::lock_guard lock(mutex_);
  const auto found = ports_.find(address.port);
  if (answer_ == FakeAnswer::kRefuse || found == ports_.end()) {
    return Error(Code::kPeerLost,
                 fmt::format("cannot connect to {}: refused; check that the peer listens there",
                             address.ToString()));
  }
  const std::size_t index = links_.size();
  auto link = std::make_shared<FakeLink>(index, address.host);
  const auto own = own_faults_.find(index);
  link->SetFaults(own == own_faults_.end() ? faults_ : own->second);
  links_.push_back(link);
  const auto port = static_cast<std::uint16_t>(kFirstConnectorPort + index % 20'000);
  const std::string here = Address{address.host, port}.ToString();
  const std::string there = address.ToString();
  auto accepted = std::make_unique<FakeLane>(link, FakeLink::kListener, there, here);
  // Under the mutex: the listener, and then its loop, may be destroyed once they have left the
  // table.
  found->second->loop->Post([listening = found->second, lane = std::move(accepted)]() mutable {
    if (listening->open) listening->accepted(std::move(lane));
  });
  return std::unique_ptr<Lane>(
      std::make_unique<FakeLane>(std::move(link), FakeLink::kConnector, here, there));
}

// ---- the provider -------------------------------------------------------------------------------

namespace {

class FakeListener final : public Listener {
 public:
  FakeListener(std::shared_ptr<FakeNetwork::State> network, std::shared_ptr<Listening> listening,
               Address address)
      : network_(std::move(network)),
        listening_(std::move(listening)),
        address_(std::move(address)) {}

  ~FakeListener() override {
    network_->StopListening(address_.port);
    listening_->open = false;
  }

  const Address& address() const override { return address_; }

 private:
  const std::shared_ptr<FakeNetwork::State> network_;  // shared with the providers
  const std::shared_ptr<Listening> listening_;         // shared with lanes in flight
  const Address address_;
};

class FakeLinkWatch final : public LinkWatch {
 public:
  FakeLinkWatch(std::shared_ptr<FakeNetwork::State> network, std::shared_ptr<Watching> watching)
      : network_(std::move(network)), watching_(std::move(watching)) {
    network_->Watch(watching_);
  }
  ~FakeLinkWatch() override {
    network_->StopWatching(watching_.get());
    watching_->open = false;
  }

 private:
  const std::shared_ptr<FakeNetwork::State> network_;  // shared with the providers
  const std::shared_ptr<Watching> watching_;           // shared with notices in flight
};

class FakeProvider final : public Provider {
 public:
  explicit FakeProvider(std::shared_ptr<FakeNetwork::State> network)
      : network_(std::move(network)) {}

  const char* name() const override { return "fake"; }
  Capabilities capabilities() const override { return {.registered_memory = true}; }
  Result<std::unique_ptr<RegisteredMemory>> Register(std::span<std::byte> memory) override {
    return std::unique_ptr<RegisteredMemory>(std::make_unique<FakeRegisteredMemory>(memory));
  }

  Result<std::unique_ptr<Listener>> Listen(const Address& address, const Config& config,
                                           EventLoop* loop, Accepted accepted) override {
    if (!address.host.empty() && !IsFakeHost(address.host)) return BadAddress(address);
    auto listening = std::make_shared<Listening>();
    listening->loop = loop;
    listening->accepted = std::move(accepted);
    Address bound = address;
    FERRY_TRY_ASSIGN(bound.port, network_->Listen(address, config, listening));
    return std::unique_ptr<Listener>(
        std::make_unique<FakeListener>(network_, std::move(listening), std::move(bound)));
  }

  EventLoop::TimerId Connect(const Address& address, const Config& /*config*/, EventLoop* loop,
                             Deadline deadline, Connected connected) override {
    FERRY_CHECK(loop->InLoop());
    if (IsFakeHost(address.host) && network_->AnswerAt(address.host) == FakeAnswer::kSilence) {
      auto error = Error(Code::kTimedOut,
                         fmt::format("connecting to {} got no answer in time", address.ToString()));
      return loop->AddTimerOnLoop(
          deadline.when(), [connected = std::move(connected), error = std::move(error)]() mutable {
            connected(std::move(error));
          });
    }
    Result<std::unique_ptr<Lane>> lane =
        IsFakeHost(address.host) ? network_->Connect(address) : BadAddress(address);
    loop->Post([connected = std::move(connected), lane = std::move(lane)]() mutable {
      connected(std::move(lane));
    });
    return 0;
  }

  std::vector<LocalAddress> Addresses(const Config& config) const override {
    std::vector<LocalAddress> all;
    for (std::size_t i = 0; i < network_->interfaces(); ++i) {
      if (InterfaceAllowed(config.interfaces, HostAt(i))) all.push_back({HostAt(i), HostAt(i)});
    }
    return all;
  }
  std::vector<std::string> InterfacesTo(const Address& to,
                                        const Config& /*config*/) const override {
    return {to.host};
  }
  std::unique_ptr<LinkWatch> WatchLinks(EventLoop* loop, LinkChanged changed) override {
    auto watching = std::make_shared<Watching>();
    watching->loop = loop;
    watching->changed = std::move(changed);
    return std::make_unique<FakeLinkWatch>(network_, std::move(watching));
  }

 private:
  const std::shared_ptr<FakeNetwork::State> network_;  // shared with the other providers
};

}  // namespace

// ---- the network --------------------------------------------------------------------------------

FakeNetwork::FakeNetwork() : state_(std::make_shared<State>()) {}
FakeNetwork::~FakeNetwork() = default;

std::unique_ptr<Provider> FakeNetwork::CreateProvider() {
  return std::make_unique<FakeProvider>(state_);
}

void FakeNetwork::SetAnswer(FakeAnswer answer) { state_->SetAnswer(answer); }
void FakeNetwork::SetFaults(const FakeFaults& faults) { state_->SetFaults(faults); }
void FakeNetwork::SetFaults(std::size_t connection, const FakeFaults& faults) {
  state_->SetFaults(connection, faults);
}
std::size_t FakeNetwork::connections() const { return state_->connections(); }
void FakeNetwork::Cut(std::size_t connection) { state_->LinkAt(connection)->Cut(); }
void FakeNetwork::Reset(std::size_t connection) { state_->LinkAt(connection)->Reset(); }
void FakeNetwork::Unreach(std::size_t connection) { state_->LinkAt(connection)->Unreach(); }
void FakeNetwork::SetInterfaces(std::size_t count) { state_->SetInterfaces(count); }
void FakeNetwork::SetLink(std::string_view host, bool up, bool announce) {
  state_->SetLink(host, up, announce);
}
std::uint64_t FakeNetwork::BytesSent(std::size_t connection, FakeDirection direction) const {
  return state_->LinkAt(connection)->BytesSent(direction);
}

}  // namespace ferry::net
