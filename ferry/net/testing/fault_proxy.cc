// A TCP proxy that delays, cuts and corrupts.
#include "ferry/net/testing/fault_proxy.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ferry::net {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;

std::size_t IndexOf(ProxyDirection direction) { return static_cast<std::size_t>(direction); }

Result<UniqueFd> OpenTcp(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("socket", errno);
  return fd;
}

void SetNoDelay(int fd) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool WouldBlock() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

Result<std::unique_ptr<FaultProxy>> FaultProxy::Start(const Address& target, std::uint64_t seed) {
  FERRY_TRY_ASSIGN(const RawAddress raw_target, ToRaw(target));
  FERRY_TRY_ASSIGN(RawAddress raw, ToRaw({"127.0.0.1", 0}));
  FERRY_TRY_ASSIGN(UniqueFd listening, OpenTcp(raw.family()));
  raw.length = sizeof raw.storage;
  auto* const name = reinterpret_cast<sockaddr*>(&raw.storage);
  if (::bind(listening.get(), name, sizeof(sockaddr_in)) != 0 ||
      ::listen(listening.get(), 128) != 0 ||
      ::getsockname(listening.get(), name, &raw.length) != 0) {
    return ErrnoError("cannot listen for the proxy", errno);
  }
  FERRY_TRY_ASSIGN(UniqueFd wake, MakeEventFd());
  std::unique_ptr<FaultProxy> proxy(
      new FaultProxy(std::move(listening), std::move(wake), FromRaw(raw), raw_target, seed));
  proxy->thread_ = std::thread([raw_proxy = proxy.get()] { raw_proxy->Main(); });
  return proxy;
}

FaultProxy::FaultProxy(UniqueFd listening, UniqueFd wake, Address address, const RawAddress& target,
                       std::uint64_t seed)
    : listening_(std::move(listening)),
      wake_(std::move(wake)),
      address_(std::move(address)),
      target_(target),
      random_(seed) {}

FaultProxy::~FaultProxy() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  for (Connection& connection : connections_) Kill(connection);
}

// ---- the test's side ----------------------------------------------------------------------------

void FaultProxy::SetPieceBytes(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  piece_bytes_ = bytes;
}

void FaultProxy::SetDelay(microseconds delay) {
  const std::lock_guard lock(mutex_);
  delay_ = delay;
}

void FaultProxy::SetStalled(bool stalled) {
  const std::lock_guard lock(mutex_);
  stalled_ = stalled;
  Wake();
}

void FaultProxy::CutAt(ProxyDirection direction, std::uint64_t offset, ProxyCut how) {
  const std::lock_guard lock(mutex_);
  auto& cut = cuts_[IndexOf(direction)];
  cut.reset();
  if (forwarded_[IndexOf(direction)] < offset) {
    cut = Cut{offset, how};
  } else {
    CutLocked(how);
  }
  Wake();
}

void FaultProxy::CutNow(ProxyCut how) {
  const std::lock_guard lock(mutex_);
  CutLocked(how);
  Wake();
}

void FaultProxy::ResetOne(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (connections_.empty()) return;
  Kill(*std::next(connections_.begin(), static_cast<std::ptrdiff_t>(index % connections_.size())));
  Wake();
}

void FaultProxy::CorruptAt(ProxyDirection direction, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  corruptions_[IndexOf(direction)] = offset;
}

std::uint64_t FaultProxy::forwarded(ProxyDirection direction) const {
  const std::lock_guard lock(mutex_);
  return forwarded_[IndexOf(direction)];
}

std::size_t FaultProxy::connections() const {
  const std::lock_guard lock(mutex_);
  return accepted_;
}

// ---- the thread ---------------------------------------------------------------------------------

void FaultProxy::Main() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    WaitLocked(lock);
    DrainEventFd(wake_.get());
    if (stalled_) continue;
    AcceptLocked();
    for (Connection& connection : connections_) ServeLocked(connection);
    connections_.remove_if([](const Connection& connection) { return connection.dead; });
  }
}

// Sleeps until something can be done. Leaves out descriptors that it waits for nothing on, because
// poll would report their hang-up again and again.
void FaultProxy::WaitLocked(std::unique_lock<std::mutex>& lock) {
  polled_.assign(1, {wake_.get(), POLLIN, 0});
  Deadline wake = Deadline::Never();
  if (!stalled_) {
    polled_.push_back({listening_.get(), POLLIN, 0});
    for (const Connection& connection : connections_) {
      for (const Flow& flow : connection.flows) wake = wake.Sooner(WantLocked(flow));
    }
  }
  lock.unlock();
  (void)::poll(polled_.data(), polled_.size(), wake.PollMillis());
  lock.lock();
}

// Adds the events that the flow waits for; if it waits for time, returns that deadline.
Deadline FaultProxy::WantLocked(const Flow& flow) {
  if (flow.bytes.empty()) {
    if (!flow.ended) polled_.push_back({flow.from, POLLIN, 0});
    return Deadline::Never();
  }
  if (flow.due > Clock::now()) return Deadline::At(flow.due);
  polled_.push_back({flow.to, POLLOUT, 0});
  return Deadline::Never();
}

void FaultProxy::AcceptLocked() {
  for (;;) {
    UniqueFd client(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) return;
    ++accepted_;
    auto target = OpenTcp(target_.family());
    if (!target) continue;
    // A refused connection is detected when the connection is served.
    (void)::connect(target->get(), target_.get(), target_.length);
    if (TalksToItself(target->get(), target_)) continue;
    SetNoDelay(client.get());
    SetNoDelay(target->get());
    Connection& connection = connections_.emplace_back();
    connection.client = std::move(client);
    connection.target = *std::move(target);
    Flow& there = connection.flows[IndexOf(ProxyDirection::kToTarget)];
    there.from = connection.client.get();
    there.to = connection.target.get();
    Flow& back = connection.flows[IndexOf(ProxyDirection::kToClient)];
    back.from = connection.target.get();
    back.to = connection.client.get();
    back.direction = ProxyDirection::kToClient;
  }
}

void FaultProxy::ServeLocked(Connection& connection) {
  bool ended = true;
  for (Flow& flow : connection.flows) {
    if (connection.dead) return;
    if (!ReadLocked(flow, connection.draining) || !ForwardLocked(flow)) return Kill(connection);
    if (connection.dead) return;  // killed by a cut
    ended = ended && flow.ended && flow.bytes.empty();
  }
  if (ended) connection.dead = true;
}

// Returns false when the connection has failed.
bool FaultProxy::ReadLocked(Flow& flow, bool draining) {
  while (!flow.ended && flow.bytes.empty()) {
    std::size_t most = kReadBytes;
    if (piece_bytes_ > 0) most = std::min(most, 1 + random_() % piece_bytes_);
    flow.bytes.resize(most);
    const ssize_t got = ::recv(flow.from, flow.bytes.data(), most, 0);
    flow.bytes.resize(got > 0 && !draining ? static_cast<std::size_t>(got) : 0);
    flow.sent = 0;
    flow.due = Clock::now();
    if (delay_.count() > 0) {
      flow.due += microseconds(random_() % (static_cast<std::uint64_t>(delay_.count()) + 1));
    }
    if (got == 0) flow.ended = true;
    if (got < 0) return WouldBlock();
  }
  return true;
}

// Returns how many of the flow's bytes may be forwarded now, and corrupts the selected byte.
std::size_t FaultProxy::PrepareLocked(Flow& flow) {
  const std::size_t index = IndexOf(flow.direction);
  const std::uint64_t begin = forwarded_[index];
  std::size_t most = flow.bytes.size() - flow.sent;
  if (cuts_[index]) most = std::min<std::uint64_t>(most, cuts_[index]->offset - begin);
  auto& corruption = corruptions_[index];
  if (corruption && *corruption >= begin && *corruption < begin + most) {
    std::byte& byte = flow.bytes[flow.sent + static_cast<std::size_t>(*corruption - begin)];
    byte = ~byte;
    corruption.reset();
  }
  return most;
}

// Returns false when the connection has failed.
bool FaultProxy::ForwardLocked(Flow& flow) {
  if (!flow.bytes.empty() && flow.due <= Clock::now()) {
    const std::size_t most = PrepareLocked(flow);
    const ssize_t sent = ::send(flow.to, flow.bytes.data() + flow.sent, most, MSG_NOSIGNAL);
    if (sent < 0) return WouldBlock();
    flow.sent += static_cast<std::size_t>(sent);
    if (flow.sent == flow.bytes.size()) flow.bytes.clear();
    const std::size_t index = IndexOf(flow.direction);
    forwarded_[index] += static_cast<std::uint64_t>(sent);
    auto& cut = cuts_[index];
    if (cut && forwarded_[index] == cut->offset) CutLocked(std::exchange(cut, std::nullopt)->how);
  }
  if (flow.ended && flow.bytes.empty() && !std::exchange(flow.shut, true)) {
    (void)::shutdown(flow.to, SHUT_WR);
  }
  return true;
}

void FaultProxy::CutLocked(ProxyCut how) {
  for (Connection& connection : connections_) {
    if (how == ProxyCut::kReset) {
      Kill(connection);
      continue;
    }
    // Closing with unread bytes would send a reset, so both streams end and the rest is drained.
    connection.draining = true;
    for (Flow& flow : connection.flows) {
      flow.bytes.clear();
      if (!std::exchange(flow.shut, true)) (void)::shutdown(flow.to, SHUT_WR);
    }
  }
}

void FaultProxy::Kill(Connection& connection) {
  const linger reset{1, 0};
  for (UniqueFd* fd : {&connection.client, &connection.target}) {
    if (!*fd) continue;
    (void)::setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    fd->reset();
  }
  connection.dead = true;
}

}  // namespace ferry::net
