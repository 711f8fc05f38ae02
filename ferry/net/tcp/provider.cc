// The TCP provider: listening, accepting and connecting.
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/log_limiter.h"
#include "ferry/net/machine/interface_table.h"
#include "ferry/net/resolve.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/tcp/lane.h"
#include "ferry/net/tcp/link_monitor.h"
#include "ferry/net/tcp/socket_options.h"
#include "ferry/net/tcp/tls/acceptor.h"
#include "ferry/net/tcp/tls/context.h"
#include "ferry/net/tcp/tls/handshake.h"

namespace ferry::net::tcp {
namespace {

// Shared by all connections of the endpoint and its lanes.
using SharedTls = std::shared_ptr<const TlsContext>;

SecureSocket WithoutTls(UniqueFd fd) {
  auto stream = MakePlainStream(fd.get());
  return {std::move(fd), std::move(stream)};
}

// Shared with the lanes and the connects in flight.
using SharedInterfaces = std::shared_ptr<InterfaceTable>;

Result<std::unique_ptr<Lane>> MakeLane(SecureSocket socket, const Config& config,
                                       InterfaceTable* interfaces) {
  FERRY_TRY_ASSIGN(std::string congestion_control, ConfigureConnected(socket.fd.get(), config));
  LaneInfo info = DescribeSocket(socket.fd.get(), interfaces);
  if (info.remote.empty()) {
    return Error(Code::kUnavailable,
                 "the connection was reset as soon as it was made; try again when the peer is back "
                 "or has room");
  }
  // With the reason for the choice, which the socket alone does not tell.
  info.congestion_control = std::move(congestion_control);
  const bool zero_copy_send = config.zero_copy_send != AutoOnOff::kOff;
  return std::unique_ptr<Lane>(std::make_unique<TcpLane>(
      std::move(socket.fd), std::move(socket.stream), std::move(info), zero_copy_send));
}

// ---- listening ----------------------------------------------------------------------------------

// Accepts per turn of the loop, so that handshakes of accepted peers and the loop's lanes also make
// progress.
constexpr std::size_t kAcceptsPerTurn = 16;
// The kernel limits this to net.core.somaxconn. Connections wait in this queue while accepting is
// paused.
constexpr int kBacklog = 65535;

// One listening port, at one address or several.
struct Listening {
  std::vector<UniqueFd> sockets;
  std::vector<Address> addresses;  // of the sockets; an empty host is all addresses
};

Status SetReusePort(int fd, bool on) {
  const int value = on ? 1 : 0;
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &value, sizeof value) == 0) return Ok();
  return ErrnoError("setsockopt SO_REUSEPORT", errno);
}

// Needs no privilege from Linux 5.7 on.
Status BindToInterface(int fd, const std::string& interface) {
  if (::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface.c_str(),
                   static_cast<socklen_t>(interface.size())) == 0) {
    return Ok();
  }
  return ErrnoError(fmt::format("binding a socket to {}", interface), errno);
}

Result<UniqueFd> ListenByInterface(const LocalAddress& local, std::uint16_t port,
                                   const Config& config) {
  const int on = 1;
  FERRY_TRY_ASSIGN(const RawAddress raw, ToRaw({local.host, port}));
  FERRY_TRY_ASSIGN(UniqueFd fd, OpenSocket(raw.family(), config));
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  FERRY_TRY(SetReusePort(fd.get(), true));
  FERRY_TRY(BindToInterface(fd.get(), local.interface));
  if (::bind(fd.get(), raw.get(), raw.length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return ErrnoError(fmt::format("listening on {} by {}", local.host, local.interface), errno);
  }
  return fd;
}

// Sockets that are bound to the addresses' interfaces take the connections whose packets arrive
// there, and answer by that interface; those of `listening` take the rest. What cannot be had is
// left to these.
std::vector<UniqueFd> ListenByInterfaces(const Listening& listening,
                                         const std::vector<LocalAddress>& locals,
                                         const Config& config) {
  std::vector<UniqueFd> sockets;
  // Two sockets may listen at one address while both have this option. The port was bound without
  // it, so that it is nobody else's; and it is off again before another process can join.
  const auto share = [&listening](bool on) {
    for (const UniqueFd& fd : listening.sockets) (void)SetReusePort(fd.get(), on);
  };
  share(true);
  for (const LocalAddress& local : locals) {
    auto fd = ListenByInterface(local, listening.addresses.front().port, config);
    if (fd) {
      sockets.push_back(*std::move(fd));
    } else {
      Log(LogLevel::kInfo, "tcp", "{}", fd.error().message());
    }
  }
  share(false);
  for (const UniqueFd& fd : sockets) (void)SetReusePort(fd.get(), false);
  return sockets;
}

class TcpListener final : public Listener, private EventLoop::Handler, private EventLoop::Deferred {
 public:
  TcpListener(Listening listening, const Config& config, EventLoop* loop,
              SharedInterfaces interfaces, Provider::Accepted accepted)
      : listening_(std::move(listening)),
        config_(config),
        loop_(loop),
        interfaces_(std::move(interfaces)),
        accepted_(std::move(accepted)) {}

  // Call before Watch().
  void UseTls(std::shared_ptr<TlsContextCache> tls) {  // shared with the provider
    acceptor_.emplace([this, tls = std::move(tls)] { return tls->Get(config_); }, config_, loop_,
                      address().ToString(),
                      [this](SecureSocket socket) { Deliver(std::move(socket)); },
                      [this](bool full) { SetReason(&handshakes_full_, full); });
  }

  ~TcpListener() override {
    loop_->CancelDeferredOnLoop(this);
    if (retry_ != 0) loop_->CancelTimerOnLoop(retry_);
    for (const UniqueFd& fd : listening_.sockets) {
      loop_->UnwatchOnLoop(fd.get(), this);
      // close() alone would leave the port, and a queue of connections, to another process that
      // holds the descriptor.
      (void)::shutdown(fd.get(), SHUT_RDWR);
    }
  }

  const Address& address() const override { return listening_.addresses.front(); }
  std::vector<Address> addresses() const override { return listening_.addresses; }
  Status Watch() {
    for (const UniqueFd& fd : listening_.sockets) {
      FERRY_TRY(loop_->WatchOnLoop(fd.get(), EPOLLIN, this));
    }
    return Ok();
  }
  void AnswerByInterfaceOnLoop() override { AddByInterface(/*excluded=*/false); }
  // `excluded`: only where answers would otherwise leave by an interface that the list excludes.
  void AddByInterface(bool excluded) {
    auto locals = interfaces_->InSharedSubnets(config_.interfaces, excluded);
    const auto none = [this](const LocalAddress& local) { return !MayBeBound(local); };
    locals.erase(std::remove_if(locals.begin(), locals.end(), none), locals.end());
    if (locals.empty()) return;
    for (const LocalAddress& local : locals) by_interface_.insert(local.host);
    for (UniqueFd& fd : ListenByInterfaces(listening_, locals, config_)) {
      (void)loop_->WatchOnLoop(fd.get(), EPOLLIN, this);
      listening_.sockets.push_back(std::move(fd));
    }
  }
  void PauseOnLoop(bool paused) override { SetReason(&paused_by_user_, paused); }
  void ExpectOnLoop(const std::string& host, std::size_t lanes, Clock::time_point until) override {
    if (acceptor_) acceptor_->ExpectOnLoop(host, lanes, until);
  }

 private:
  bool paused() const noexcept { return paused_by_user_ || handshakes_full_; }
  // Whether it listens at the address, and not by a socket of its interface yet.
  bool MayBeBound(const LocalAddress& local) const {
    const auto covers = [&local](const Address& at) {
      return at.host.empty() || at.host == "::" || at.host == local.host ||
             (at.host == "0.0.0.0" && local.host.find(':') == std::string::npos);
    };
    const auto& all = listening_.addresses;
    return by_interface_.count(local.host) == 0 && std::any_of(all.begin(), all.end(), covers);
  }
  // Sets or clears one of the reasons to pause.
  void SetReason(bool* reason, bool on) {
    *reason = on;
    if (!paused()) RequestTurn();
  }

  // Accept in the next turn, so that data of accepted peers is handled first.
  void OnEvents(std::uint32_t /*events*/) override { RequestTurn(); }

  void RequestTurn() {
    if (std::exchange(next_turn_requested_, true)) return;
    loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, this);
  }

  void RunDeferredOnLoop(EventLoop::Defer /*when*/) override {
    next_turn_requested_ = false;
    AcceptSome();
  }

  void AcceptSome() {
    const std::size_t sockets = listening_.sockets.size();
    std::size_t empty = 0;  // sockets in a row that had no connection
    for (std::size_t i = 0; i < kAcceptsPerTurn + sockets; ++i) {
      if (paused()) return;
      const int socket = listening_.sockets[next_++ % sockets].get();
      UniqueFd fd = ClosedInChildren(
          UniqueFd(::accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
      if (fd) empty = 0;
      if (fd && acceptor_) {
        acceptor_->OnAccept(std::move(fd));
      } else if (fd) {
        Deliver(WithoutTls(std::move(fd)));
      } else if (errno == EAGAIN) {
        if (++empty == sockets) return;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return RetryLater(errno);
      }
      // Other errors concern only the connection that was about to be accepted (accept(2)).
    }
    // The sockets are watched edge-triggered: what remains in a queue causes no further event.
    RequestTurn();
  }

  void Deliver(SecureSocket socket) {
    auto lane = MakeLane(std::move(socket), config_, interfaces_.get());
    if (lane) {
      accepted_(*std::move(lane));
    } else {
      const std::string here = address().ToString();
      PeerLogLimiter().Write(
          LogLevel::kWarn, "tcp", here, {},
          fmt::format("dropped a connection to {}: {}", here, lane.error().message()));
    }
  }

  // The waiting connection triggers no new edge, so a timer must retry.
  void RetryLater(int error_number) {
    if (retry_ != 0) return;
    Log(LogLevel::kWarn, "tcp", "cannot accept on {}: {}; trying again in 100 ms",
        address().ToString(), ErrnoError("accept4", error_number).message());
    retry_ = loop_->AddTimerOnLoop(Clock::now() + milliseconds(100), [this] {
      retry_ = 0;
      AcceptSome();
    });
  }

  Listening listening_;
  std::set<std::string> by_interface_;  // hosts at which sockets of their interfaces listen
  std::size_t next_ = 0;                // socket to accept from
  Config config_;
  EventLoop* loop_;
  const SharedInterfaces interfaces_;
  Provider::Accepted accepted_;
  std::optional<TlsAcceptor> acceptor_;
  bool paused_by_user_ = false;
  bool handshakes_full_ = false;
  EventLoop::TimerId retry_ = 0;
  bool next_turn_requested_ = false;
};

// The numeric listening addresses: peers are told these and need no name servers for them.
Result<std::vector<Address>> NumericOf(const Address& wanted, const Config& config,
                                       InterfaceTable* interfaces) {
  if (ToRaw(wanted)) return std::vector{wanted};
  FERRY_TRY_ASSIGN(const auto found, Resolve(wanted, Deadline::After(config.connect_timeout)));
  std::vector<Address> all;
  std::vector<Address> here;
  bool loopback = true;
  for (const Address& address : found) {
    if (std::find(all.begin(), all.end(), address) != all.end()) continue;
    all.push_back(address);
    if (interfaces->InterfaceOf(address).empty()) continue;
    here.push_back(address);
    FERRY_TRY_ASSIGN(const RawAddress raw, ToRaw(address));
    loopback = loopback && IsLoopback(raw);
  }
  // A name may have addresses of other machines, too; where it has no other, bind(2) says so.
  if (here.empty()) return all;
  if (loopback && wanted.host.find("localhost") == std::string::npos) {
    Log(LogLevel::kWarn, "tcp",
        "listening on {} only, which is what the name {} stands for here: peers on other machines "
        "cannot connect; give {} its network address in /etc/hosts, or set FERRY_LISTEN_HOST to "
        "an address, or leave it empty",
        here.front().host, wanted.host, wanted.host);
  }
  return here;
}

Error PortInUse(const Address& address) {
  return Error(Code::kUnavailable,
               fmt::format("cannot listen on {}: another program uses port {}; end it, or choose "
                           "another port (FERRY_PORT_RANGE, --port of ferry)",
                           address.ToString(), address.port));
}

Result<UniqueFd> BindAndListen(const Address& address, const Config& config) {
  FERRY_TRY_ASSIGN(RawAddress raw, ToRaw(address));
  auto opened = OpenSocket(raw.family(), config);
  if (!opened && address.host.empty()) {
    // This machine has no IPv6.
    FERRY_TRY_ASSIGN(raw, ToRaw(Address{"0.0.0.0", address.port}));
    opened = OpenSocket(raw.family(), config);
  }
  if (!opened) return opened.error();
  const int on = 1;
  const int off = 0;
  // Connections in TIME_WAIT must not keep a restarted program from its port. A listener that lives
  // does so all the same.
  (void)::setsockopt(opened->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (raw.family() == AF_INET6) {
    // One socket for both families, whatever net.ipv6.bindv6only says.
    (void)::setsockopt(opened->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(opened->get(), raw.get(), raw.length) != 0 || ::listen(opened->get(), kBacklog) != 0) {
    if (errno == EADDRNOTAVAIL) {
      return Error(Code::kInvalidArgument,
                   fmt::format("cannot listen on {}: no interface of this machine has the address",
                               address.ToString()));
    }
    if (errno == EADDRINUSE) return PortInUse(address);
    return ErrnoError(fmt::format("cannot listen on {}", address.ToString()), errno);
  }
  return opened;
}

// At all addresses with one port; 0: any that is free.
Result<Listening> BindAll(const std::vector<Address>& addresses, std::uint16_t port,
                          const Config& config) {
  Listening listening;
  for (Address address : addresses) {
    address.port = port;
    FERRY_TRY_ASSIGN(UniqueFd fd, BindAndListen(address, config));
    FERRY_TRY_ASSIGN(const Address bound, LocalAddressOf(fd.get()));
    port = bound.port;
    // The host as it was asked for: "", for all interfaces, is not the same as "::" to the caller.
    listening.addresses.push_back({address.host, port});
    listening.sockets.push_back(std::move(fd));
  }
  return listening;
}

Result<Listening> ListenInRange(const std::vector<Address>& addresses, const Config& config) {
  constexpr int kTries = 16;  // the port that is free at one address may be taken at the next
  const std::uint16_t wanted = addresses.front().port;
  if (wanted != 0) return BindAll(addresses, wanted, config);
  if (config.port_first == 0) {
    auto listening = BindAll(addresses, 0, config);
    for (int i = 1; i < kTries && !listening; ++i) {
      if (listening.error().code() != Code::kUnavailable) break;
      listening = BindAll(addresses, 0, config);
    }
    return listening;
  }
  for (unsigned port = config.port_first; port <= config.port_last; ++port) {
    auto listening = BindAll(addresses, static_cast<std::uint16_t>(port), config);
    const bool is_range = config.port_first < config.port_last;
    // kUnavailable: the port is taken (PortInUse()). Any other error would be the same for every
    // port.
    if (listening || !is_range || listening.error().code() != Code::kUnavailable) return listening;
  }
  return Error(Code::kUnavailable,
               fmt::format("every port from {} to {} is taken; widen FERRY_PORT_RANGE",
                           config.port_first, config.port_last));
}

// ---- connecting ---------------------------------------------------------------------------------

// One connect(2) in flight, and the TLS handshake after it. Owned by its timer, and so destroyed
// with a loop that stops first.
class Connecting final : private EventLoop::Handler {
 public:
  Connecting(const Address& address, const Config& config, EventLoop* loop,
             SharedInterfaces interfaces, Provider::Connected connected)
      : address_(address),
        config_(config),
        loop_(loop),
        interfaces_(std::move(interfaces)),
        connected_(std::move(connected)) {}

  ~Connecting() { Unwatch(); }

  // `tls`: null for none, or the reason why there is none.
  static EventLoop::TimerId Start(std::unique_ptr<Connecting> self, Result<SharedTls> tls,
                                  Deadline deadline) {
    Connecting* const raw = self.get();
    EventLoop* const loop = self->loop_;
    // The timer owns the object from here on. Finish() cancels it, which destroys the object, and
    // so comes last in every function that calls it.
    const EventLoop::TimerId timer =
        loop->AddTimerOnLoop(deadline.when(), [self = std::move(self)] { self->Expire(); });
    raw->timer_ = timer;
    if (!tls) {
      raw->Finish(tls.error());
      return timer;
    }
    raw->tls_ = *std::move(tls);
    if (auto begun = raw->Begin(); !begun) raw->Finish(begun.error());
    return timer;
  }

 private:
  Status Begin() {
    FERRY_TRY_ASSIGN(const RawAddress raw, ToRaw(address_));
    FERRY_TRY_ASSIGN(fd_, OpenSocket(raw.family(), config_));
    if (!config_.interfaces.empty()) FERRY_TRY(BindIfExcluded());
    if (::connect(fd_.get(), raw.get(), raw.length) != 0 && errno != EINPROGRESS) {
      return Refused(errno);
    }
    if (TalksToItself(fd_.get(), raw)) return Refused(ECONNREFUSED);
    FERRY_TRY(loop_->WatchOnLoop(fd_.get(), EPOLLOUT, this));
    watched_ = true;
    return Ok();
  }

  // Where the list excludes the interface of the route, and allows another one that leads there.
  Status BindIfExcluded() {
    const Ways ways = interfaces_->WaysTo(address_, config_.interfaces);
    if (ways.usable.empty() || ways.usable.front() == ways.route) return Ok();
    const std::string& interface = ways.usable.front();
    auto bound = BindToInterface(fd_.get(), interface);
    if (bound) return Ok();
    return Error(
        Code::kInvalidArgument,
        fmt::format("the route to {} leaves by {}, which FERRY_INTERFACES={} does not "
                    "allow, and {}; allow it, or connect to another address of the peer",
                    address_.ToString(), ways.route, config_.interfaces, bound.error().message()));
  }

  void OnEvents(std::uint32_t /*events*/) override {
    int error = 0;
    socklen_t length = sizeof error;
    // The result of a connect(2) that was in progress.
    (void)::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    Unwatch();
    if (error != 0) return Finish(Refused(error));
    if (tls_ == nullptr)
      return Finish(MakeLane(WithoutTls(std::move(fd_)), config_, interfaces_.get()));
    if (auto begun = BeginTls(); !begun) Finish(begun.error());
  }

  Status BeginTls() {
    FERRY_TRY_ASSIGN(auto stream, TlsStream::Create(tls_, fd_.get(), TlsStream::Role::kConnects,
                                                    address_.ToString()));
    handshake_ = std::make_unique<TlsHandshake>(
        std::move(fd_), std::move(stream), loop_, [this](Result<SecureSocket> socket) {
          if (!socket) return Finish(socket.error());
          Finish(MakeLane(*std::move(socket), config_, interfaces_.get()));
        });
    return handshake_->StartOnLoop();
  }

  void Expire() {
    if (handshake_) {
      return Finish(Error(Code::kTimedOut,
                          fmt::format("the TLS handshake with {} did not end in time; check that "
                                      "it speaks TLS (FERRY_TLS) and is not overloaded",
                                      address_.ToString())));
    }
    Finish(Error(Code::kTimedOut,
                 fmt::format("connecting to {} got no answer in time; check the address, the route "
                             "and firewalls on the way",
                             address_.ToString())));
  }

  Error Refused(int error_number) const {
    const Error plain =
        ErrnoError(fmt::format("cannot connect to {}", address_.ToString()), error_number);
    // Reset after it was accepted: the listener is there but has no room, so trying again makes
    // sense.
    const bool was_made = error_number == ECONNRESET || error_number == ECONNABORTED;
    const Code code = was_made                    ? Code::kUnavailable
                      : error_number == ETIMEDOUT ? Code::kTimedOut
                                                  : Code::kPeerLost;
    return Error(code, plain.message() + "; check that the peer listens there");
  }

  void Unwatch() {
    if (std::exchange(watched_, false)) loop_->UnwatchOnLoop(fd_.get(), this);
  }

  void Finish(Result<std::unique_ptr<Lane>> result) {
    Unwatch();
    fd_.reset();
    Provider::Connected connected = std::move(connected_);
    loop_->CancelTimerOnLoop(timer_);  // destroys this object, unless it is called from the timer
    connected(std::move(result));
  }

  Address address_;
  Config config_;
  EventLoop* loop_;
  const SharedInterfaces interfaces_;
  Provider::Connected connected_;
  SharedTls tls_;
  UniqueFd fd_;
  bool watched_ = false;
  std::unique_ptr<TlsHandshake> handshake_;
  EventLoop::TimerId timer_ = 0;
};

class TcpProvider final : public Provider {
 public:
  const char* name() const override { return "tcp"; }
  Capabilities capabilities() const override {
    return {.spliced_pages = true, .ipv6 = true, .other_process = true, .tls = true};
  }

  Result<std::unique_ptr<Listener>> Listen(const Address& wanted, const Config& config,
                                           EventLoop* loop, Accepted accepted) override {
    FERRY_TRY_ASSIGN(const SharedTls tls, tls_->Get(config));
    FERRY_TRY_ASSIGN(
        const AddressChoice choice,
        interfaces_->Choose(fmt::format("interfaces={} (FERRY_INTERFACES)", config.interfaces),
                            config.interfaces));
    FERRY_TRY_ASSIGN(const auto addresses, NumericOf(wanted, config, interfaces_.get()));
    if (wanted.host.empty() && !choice.warning.empty()) {
      Log(LogLevel::kWarn, "tcp", "{}", choice.warning);
    }
    FERRY_TRY_ASSIGN(Listening listening, ListenInRange(addresses, config));
    auto listener = std::make_unique<TcpListener>(std::move(listening), config, loop, interfaces_,
                                                  std::move(accepted));
    if (tls != nullptr) listener->UseTls(tls_);
    FERRY_TRY(listener->Watch());
    if (!config.interfaces.empty()) listener->AddByInterface(/*excluded=*/true);
    return std::unique_ptr<Listener>(std::move(listener));
  }

  EventLoop::TimerId Connect(const Address& address, const Config& config, EventLoop* loop,
                             Deadline deadline, Connected connected) override {
    return Connecting::Start(
        std::make_unique<Connecting>(address, config, loop, interfaces_, std::move(connected)),
        tls_->Get(config), deadline);
  }

  std::vector<LocalAddress> Addresses(const Config& config) const override {
    return interfaces_->Told(config.interfaces);
  }

  std::vector<std::string> InterfacesTo(const Address& to, const Config& config) const override {
    return interfaces_->WaysTo(to, config.interfaces).usable;
  }

  std::unique_ptr<LinkWatch> WatchLinks(EventLoop* loop, LinkChanged changed) override {
    auto monitor = LinkMonitor::Create(loop, std::move(changed));
    if (monitor) return *std::move(monitor);
    Log(LogLevel::kWarn, "tcp",
        "links are not watched, so that a cut one shows only by timeouts: {}",
        monitor.error().message());
    return nullptr;
  }

 private:
  const SharedInterfaces interfaces_ = InterfaceTable::OfThisNamespace();
  // Shared with the listeners.
  const std::shared_ptr<TlsContextCache> tls_ = std::make_shared<TlsContextCache>();
};

}  // namespace

std::unique_ptr<Provider> CreateProvider() { return std::make_unique<TcpProvider>(); }

}  // namespace ferry::net::tcp
