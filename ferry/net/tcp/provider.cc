#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/tcp/lane.h"
#include "ferry/net/tcp/socket_options.h"

namespace ferry::net::tcp {
namespace {

Result<std::unique_ptr<Lane>> MakeLane(UniqueFd fd, const Config& config) {
  FERRY_TRY_ASSIGN(std::string congestion_control, ConfigureConnected(fd.get(), config));
  const bool gift = config.gift != "off";
  return std::unique_ptr<Lane>(
      std::make_unique<TcpLane>(std::move(fd), std::move(congestion_control), gift));
}

// ---- listening ----------------------------------------------------------------------------------

class TcpListener final : public Listener, private EventLoop::Handler {
 public:
  TcpListener(UniqueFd fd, Address address, const Config& config, EventLoop* loop,
              Provider::Accepted accepted)
      : fd_(std::move(fd)),
        address_(std::move(address)),
        config_(config),
        loop_(loop),
        accepted_(std::move(accepted)) {}

  ~TcpListener() override {
    loop_->UnwatchOnLoop(fd_.get(), this);
    if (retry_ != 0) loop_->CancelTimerOnLoop(retry_);
  }

  const Address& address() const override { return address_; }
  Status Watch() { return loop_->WatchOnLoop(fd_.get(), EPOLLIN, this); }

 private:
  void OnEventsOnLoop(std::uint32_t /*events*/) override {
    for (;;) {
      UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd) {
        Deliver(std::move(fd));
      } else if (errno == EAGAIN) {
        return;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return RetryLater(errno);
      }
      // Other errors belong to the one connection that was about to be accepted (accept(2)).
    }
  }

  void Deliver(UniqueFd fd) {
    auto lane = MakeLane(std::move(fd), config_);
    if (lane) {
      accepted_(*std::move(lane));
    } else {
      Log(LogLevel::kWarn, "tcp", "dropped a connection to {}: {}", address_.ToString(),
          lane.error().message());
    }
  }

  // The pending connection gives no new edge, so a timer must ask again.
  void RetryLater(int error_number) {
    if (retry_ != 0) return;
    Log(LogLevel::kWarn, "tcp", "cannot accept on {}: {}; trying again in 100 ms",
        address_.ToString(), ErrnoError("accept4", error_number).message());
    retry_ = loop_->AddTimerOnLoop(Clock::now() + milliseconds(100), [this] {
      retry_ = 0;
      OnEventsOnLoop(EPOLLIN);
    });
  }

  UniqueFd fd_;
  Address address_;
  Config config_;
  EventLoop* loop_;
  Provider::Accepted accepted_;
  EventLoop::TimerId retry_ = 0;
};

Result<UniqueFd> BindAndListen(const Address& address, const Config& config) {
  FERRY_TRY_ASSIGN(RawAddress raw, ToRaw(address));
  auto opened = OpenSocket(raw.family(), config);
  if (!opened && address.host.empty()) {
    // No IPv6 on this machine.
    FERRY_TRY_ASSIGN(raw, ToRaw(Address{"0.0.0.0", address.port}));
    opened = OpenSocket(raw.family(), config);
  }
  if (!opened) return opened.error();
  const int on = 1;
  const int off = 0;
  (void)::setsockopt(opened->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (raw.family() == AF_INET6) {
    (void)::setsockopt(opened->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(opened->get(), raw.get(), raw.length) != 0 || ::listen(opened->get(), 1024) != 0) {
    if (errno == EADDRNOTAVAIL) {
      return Error(Code::kInvalidArgument,
                   fmt::format("cannot listen on {}: no interface of this machine has the address",
                               address.ToString()));
    }
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
    if (fd || fd.error().code() != Code::kUnavailable) return fd;
  }
  return Error(Code::kUnavailable,
               fmt::format("every port from {} to {} is taken; widen FERRY_PORT_RANGE",
                           config.port_first, config.port_last));
}

// ---- connecting ---------------------------------------------------------------------------------

// One connect(2) under way. Belongs to its timer, and so goes with a loop that stops first.
class Connecting final : private EventLoop::Handler {
 public:
  Connecting(const Address& address, const Config& config, EventLoop* loop,
             Provider::Connected connected)
      : address_(address), config_(config), loop_(loop), connected_(std::move(connected)) {}

  static void Start(std::unique_ptr<Connecting> self, Deadline deadline) {
    Connecting* const raw = self.get();
    EventLoop* const loop = self->loop_;
    raw->timer_ =
        loop->AddTimerOnLoop(deadline.when(), [self = std::move(self)] { self->Expire(); });
    if (auto begun = raw->Begin(); !begun) raw->Finish(begun.error());
  }

 private:
  Status Begin() {
    FERRY_TRY_ASSIGN(const RawAddress raw, ToRaw(address_));
    FERRY_TRY_ASSIGN(fd_, OpenSocket(raw.family(), config_));
    if (::connect(fd_.get(), raw.get(), raw.length) != 0 && errno != EINPROGRESS) {
      return Refused(errno);
    }
    FERRY_TRY(loop_->WatchOnLoop(fd_.get(), EPOLLOUT, this));
    watched_ = true;
    return Ok();
  }

  void OnEventsOnLoop(std::uint32_t /*events*/) override {
    int error = 0;
    socklen_t length = sizeof error;
    (void)::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    Unwatch();
    if (error != 0) return Finish(Refused(error));
    Finish(MakeLane(std::move(fd_), config_));
  }

  void Expire() {
    Finish(Error(Code::kTimedOut,
                 fmt::format("connecting to {} got no answer in time; check the address, the route "
                             "and firewalls on the way",
                             address_.ToString())));
  }

  Error Refused(int error_number) const {
    const Error plain =
        ErrnoError(fmt::format("cannot connect to {}", address_.ToString()), error_number);
    const Code code = error_number == ETIMEDOUT ? Code::kTimedOut : Code::kPeerLost;
    return Error(code, plain.message() + "; check that the peer listens there");
  }

  void Unwatch() {
    if (std::exchange(watched_, false)) loop_->UnwatchOnLoop(fd_.get(), this);
  }

  void Finish(Result<std::unique_ptr<Lane>> result) {
    Unwatch();
    fd_.reset();
    Provider::Connected connected = std::move(connected_);
    loop_->CancelTimerOnLoop(timer_);  // destroys this object, unless the timer is what runs
    connected(std::move(result));
  }

  Address address_;
  Config config_;
  EventLoop* loop_;
  Provider::Connected connected_;
  UniqueFd fd_;
  bool watched_ = false;
  EventLoop::TimerId timer_ = 0;
};

class TcpProvider final : public Provider {
 public:
  const char* name() const override { return "tcp"; }
  Capabilities capabilities() const override {
    return {.gifted_pages = true, .ipv6 = true, .other_process = true};
  }

  Result<std::unique_ptr<Listener>> Listen(const Address& address, const Config& config,
                                           EventLoop* loop, Accepted accepted) override {
    FERRY_TRY_ASSIGN(UniqueFd fd, ListenInRange(address, config));
    FERRY_TRY_ASSIGN(Address bound, LocalAddressOf(fd.get()));
    bound.host = address.host;
    auto listener = std::make_unique<TcpListener>(std::move(fd), std::move(bound), config, loop,
                                                  std::move(accepted));
    FERRY_TRY(listener->Watch());
    return std::unique_ptr<Listener>(std::move(listener));
  }

  void Connect(const Address& address, const Config& config, EventLoop* loop, Deadline deadline,
               Connected connected) override {
    Connecting::Start(std::make_unique<Connecting>(address, config, loop, std::move(connected)),
                      deadline);
  }
};

}  // namespace

std::unique_ptr<Provider> CreateProvider() { return std::make_unique<TcpProvider>(); }

}  // namespace ferry::net::tcp
