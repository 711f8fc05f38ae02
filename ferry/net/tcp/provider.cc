// The TCP provider: listening, accepting and connecting.
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "ferry/core/log_limiter.h"
#include "ferry/net/interface_table.h"
#include "ferry/net/resolve.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/tcp/lane.h"
#include "ferry/net/tcp/link_monitor.h"
#include "ferry/net/tcp/socket_options.h"
#include "ferry/net/tcp/tls_acceptor.h"
#include "ferry/net/tcp/tls_context.h"
#include "ferry/net/tcp/tls_handshake.h"

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
constexpr int kAcceptsPerTurn = 16;
// The kernel limits this to net.core.somaxconn. Connections wait in this queue while accepting is
// paused.
constexpr int kBacklog = 65535;

class TcpListener final : public Listener, private EventLoop::Handler, private EventLoop::Deferred {
 public:
  TcpListener(UniqueFd fd, Address address, const Config& config, EventLoop* loop,
              SharedInterfaces interfaces, Provider::Accepted accepted)
      : fd_(std::move(fd)),
        address_(std::move(address)),
        config_(config),
        loop_(loop),
        interfaces_(std::move(interfaces)),
        accepted_(std::move(accepted)) {}

  // Call before Watch().
  void UseTls(std::shared_ptr<TlsContextCache> tls) {  // shared with the provider
    acceptor_.emplace([this, tls = std::move(tls)] { return tls->Get(config_); }, config_, loop_,
                      address_.ToString(),
                      [this](SecureSocket socket) { Deliver(std::move(socket)); },
                      [this](bool full) { SetReason(&handshakes_full_, full); });
  }

  ~TcpListener() override {
    loop_->UnwatchOnLoop(fd_.get(), this);
    loop_->CancelDeferredOnLoop(this);
    if (retry_ != 0) loop_->CancelTimerOnLoop(retry_);
    // close() alone would leave the port, and a queue of connections, to another process that holds
    // the descriptor.
    (void)::shutdown(fd_.get(), SHUT_RDWR);
  }

  const Address& address() const override { return address_; }
  Status Watch() { return loop_->WatchOnLoop(fd_.get(), EPOLLIN, this); }
  void PauseOnLoop(bool paused) override { SetReason(&paused_by_user_, paused); }
  void ExpectOnLoop(const std::string& host, std::size_t lanes, Clock::time_point until) override {
    if (acceptor_) acceptor_->ExpectOnLoop(host, lanes, until);
  }

 private:
  bool paused() const noexcept { return paused_by_user_ || handshakes_full_; }
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
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      if (paused()) return;
      UniqueFd fd = ClosedInChildren(
          UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
      if (fd && acceptor_) {
        acceptor_->OnAccept(std::move(fd));
      } else if (fd) {
        Deliver(WithoutTls(std::move(fd)));
      } else if (errno == EAGAIN) {
        return;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return RetryLater(errno);
      }
      // Other errors concern only the connection that was about to be accepted (accept(2)).
    }
    // The socket is watched edge-triggered: what remains in the queue causes no further event.
    RequestTurn();
  }

  void Deliver(SecureSocket socket) {
    auto lane = MakeLane(std::move(socket), config_, interfaces_.get());
    if (lane) {
      accepted_(*std::move(lane));
    } else {
      const std::string here = address_.ToString();
      PeerLogLimiter().Write(
          LogLevel::kWarn, "tcp", here, {},
          fmt::format("dropped a connection to {}: {}", here, lane.error().message()));
    }
  }

  // The waiting connection triggers no new edge, so a timer must retry.
  void RetryLater(int error_number) {
    if (retry_ != 0) return;
    Log(LogLevel::kWarn, "tcp", "cannot accept on {}: {}; trying again in 100 ms",
        address_.ToString(), ErrnoError("accept4", error_number).message());
    retry_ = loop_->AddTimerOnLoop(Clock::now() + milliseconds(100), [this] {
      retry_ = 0;
      AcceptSome();
    });
  }

  UniqueFd fd_;
  Address address_;
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

// The numeric listening address: peers are told this address and need no name servers for it.
Result<Address> NumericOf(const Address& address, const Config& config) {
  if (ToRaw(address)) return address;
  FERRY_TRY_ASSIGN(auto all, Resolve(address, Deadline::After(config.connect_timeout)));
  return std::move(all.front());
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

Result<UniqueFd> ListenInRange(Address address, const Config& config) {
  if (address.port != 0) return BindAndListen(address, config);
  if (config.port_first == 0) return BindAndListen(address, config);
  for (unsigned port = config.port_first; port <= config.port_last; ++port) {
    address.port = static_cast<std::uint16_t>(port);
    auto fd = BindAndListen(address, config);
    const bool is_range = config.port_first < config.port_last;
    // kUnavailable: the port is taken (PortInUse()). Any other error would be the same for every
    // port.
    if (fd || !is_range || fd.error().code() != Code::kUnavailable) return fd;
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
    if (::connect(fd_.get(), raw.get(), raw.length) != 0 && errno != EINPROGRESS) {
      return Refused(errno);
    }
    if (TalksToItself(fd_.get(), raw)) return Refused(ECONNREFUSED);
    FERRY_TRY(loop_->WatchOnLoop(fd_.get(), EPOLLOUT, this));
    watched_ = true;
    return Ok();
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
    FERRY_TRY_ASSIGN(const Address address, NumericOf(wanted, config));
    FERRY_TRY_ASSIGN(UniqueFd fd, ListenInRange(address, config));
    FERRY_TRY_ASSIGN(Address bound, LocalAddressOf(fd.get()));
    // The address as it was asked for: "", for all interfaces, is not the same as "::" to the
    // caller.
    bound.host = address.host;
    auto listener = std::make_unique<TcpListener>(std::move(fd), std::move(bound), config, loop,
                                                  interfaces_, std::move(accepted));
    if (tls != nullptr) listener->UseTls(tls_);
    FERRY_TRY(listener->Watch());
    return std::unique_ptr<Listener>(std::move(listener));
  }

  EventLoop::TimerId Connect(const Address& address, const Config& config, EventLoop* loop,
                             Deadline deadline, Connected connected) override {
    return Connecting::Start(
        std::make_unique<Connecting>(address, config, loop, interfaces_, std::move(connected)),
        tls_->Get(config), deadline);
  }

  std::vector<LocalAddress> Addresses(const Config& config) const override {
    std::vector<LocalAddress> chosen;
    for (LocalAddress& local : interfaces_->Advertisable()) {
      const bool v6 = local.host.find(':') != std::string::npos;
      // One address of each family for each interface: more would be further paths over the same
      // link.
      const bool again = std::any_of(chosen.begin(), chosen.end(), [&](const LocalAddress& other) {
        return other.interface == local.interface &&
               (other.host.find(':') != std::string::npos) == v6;
      });
      if (!again && InterfaceAllowed(config.interfaces, local.interface)) {
        chosen.push_back(std::move(local));
      }
    }
    return chosen;
  }

  std::string InterfaceTo(const Address& to) const override {
    const auto source = SourceTo(to);
    return source ? interfaces_->InterfaceOf({*source, 0}) : "";
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
