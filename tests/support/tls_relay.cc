// Implements a relay that terminates TLS on both sides.

#include "tests/support/tls_relay.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <utility>

namespace ferry::tests {
namespace {

constexpr int kRelayWaitMillis = 60'000;  // for anything that a side should do

// The other side gets a reset, and every later recv() and send() here an end or an error; the
// descriptor stays its thread's. By the system call: ThreadSanitizer takes every connect() of the C
// library for the beginning of a descriptor, and so the other thread's reads for a race.
void Reset(int fd) {
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  (void)::syscall(SYS_connect, fd, &nobody, sizeof nobody);
}

bool IsReady(int fd, short events) {
  pollfd watched{fd, events, 0};
  return ::poll(&watched, 1, kRelayWaitMillis) > 0;
}

bool SetNonBlocking(int fd) { return ::fcntl(fd, F_SETFL, O_NONBLOCK) == 0; }

}  // namespace

Result<std::unique_ptr<TlsRelay>> TlsRelay::Start(const net::Address& target, const Config& own) {
  FERRY_TRY_ASSIGN(const net::RawAddress raw_target, net::ToRaw(target));
  FERRY_TRY_ASSIGN(auto context, net::tcp::TlsContext::Create(own));
  FERRY_TRY_ASSIGN(net::RawAddress raw, net::ToRaw({"127.0.0.1", 0}));
  UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  raw.length = sizeof raw.storage;
  auto* const name = reinterpret_cast<sockaddr*>(&raw.storage);  // as in RawAddress::get()
  if (!listening || ::bind(listening.get(), name, sizeof(sockaddr_in)) != 0 ||
      ::listen(listening.get(), 128) != 0 ||
      ::getsockname(listening.get(), name, &raw.length) != 0) {
    return ErrnoError("cannot listen for the relay", errno);
  }
  std::unique_ptr<TlsRelay> relay(
      new TlsRelay(std::move(listening), net::FromRaw(raw), raw_target, std::move(context)));
  relay->thread_ = std::thread([self = relay.get()] { self->Main(); });
  return relay;
}

TlsRelay::TlsRelay(UniqueFd listening, net::Address address, const net::RawAddress& target,
                   std::shared_ptr<const net::tcp::TlsContext> context)
    : listening_(std::move(listening)),
      address_(std::move(address)),
      target_(target),
      context_(std::move(context)) {}

TlsRelay::~TlsRelay() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  (void)::shutdown(listening_.get(), SHUT_RDWR);  // ends accept()
  thread_.join();
  CutNow();
  for (Connection& each : served_) each.thread.join();
}

void TlsRelay::CutOne(Connection* connection) {
  connection->is_cut.store(true);
  Reset(connection->client.fd.get());
  Reset(connection->target.fd.get());
}

void TlsRelay::Cut(std::size_t connection) {
  const std::lock_guard lock(mutex_);
  const auto it = std::next(served_.begin(), static_cast<std::ptrdiff_t>(connection));
  CutOne(&*it);
}

void TlsRelay::CutNow() {
  const std::lock_guard lock(mutex_);
  for (Connection& each : served_) CutOne(&each);
}

void TlsRelay::Main() {
  for (;;) {
    UniqueFd client(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    UniqueFd target(::socket(target_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::lock_guard lock(mutex_);
    if (stopping_ || !client) return;
    if (!target || ::connect(target.get(), target_.get(), target_.length) != 0) continue;
    const bool ends_tls = connections_.fetch_add(1) >= end_tls_from_.load();
    Connection& made = served_.emplace_back();
    made.client.fd = std::move(client);
    made.target.fd = std::move(target);
    made.thread = std::thread([this, &made, ends_tls] { Serve(&made, ends_tls); });
  }
}

void TlsRelay::Serve(Connection* connection, bool ends_tls) {
  // OpenSSL writes without MSG_NOSIGNAL.
  sigset_t only{};
  sigemptyset(&only);
  sigaddset(&only, SIGPIPE);
  (void)::pthread_sigmask(SIG_BLOCK, &only, nullptr);
  if (!ends_tls || EndTls(connection)) Relay(connection);
  // An end on one side is one on the other, and so is a reset.
  for (const End* end : {&connection->client, &connection->target}) {
    if (connection->is_cut.load()) {
      Reset(end->fd.get());
    } else {
      (void)::shutdown(end->fd.get(), SHUT_RDWR);
    }
  }
}

// A handshake of its own with either side.
bool TlsRelay::EndTls(Connection* connection) const {
  for (End* end : {&connection->client, &connection->target}) {
    const timeval limit{.tv_sec = kRelayWaitMillis / 1000, .tv_usec = 0};
    (void)::setsockopt(end->fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    end->ssl.reset(::SSL_new(context_->get()));
    if (!end->ssl || ::SSL_set_fd(end->ssl.get(), end->fd.get()) != 1) return false;
  }
  return ::SSL_accept(connection->client.ssl.get()) == 1 &&
         ::SSL_connect(connection->target.ssl.get()) == 1;
}

void TlsRelay::Relay(Connection* connection) {
  End* const ends[] = {&connection->client, &connection->target};
  if (!SetNonBlocking(ends[0]->fd.get()) || !SetNonBlocking(ends[1]->fd.get())) return;
  for (;;) {
    std::array<pollfd, 2> watched{};
    for (std::size_t i = 0; i < 2; ++i) watched[i] = {ends[i]->fd.get(), POLLIN, 0};
    if (::poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) return;
    for (std::size_t i = 0; i < 2; ++i) {
      if (watched[i].revents != 0 && !PassOn(ends[i], ends[1 - i])) return;
    }
  }
}

// All that is there; false at the end.
bool TlsRelay::PassOn(End* from, End* to) {
  std::array<char, 16 * 1024> bytes;
  for (;;) {
    std::size_t got = 0;
    if (from->ssl) {
      const int result = ::SSL_read_ex(from->ssl.get(), bytes.data(), bytes.size(), &got);
      if (result != 1) return ::SSL_get_error(from->ssl.get(), result) == SSL_ERROR_WANT_READ;
      bytes_seen_.fetch_add(got);
    } else {
      const ssize_t result = ::recv(from->fd.get(), bytes.data(), bytes.size(), 0);
      if (result <= 0) return result < 0 && (errno == EAGAIN || errno == EINTR);
      got = static_cast<std::size_t>(result);
    }
    if (!WriteAll(to, bytes.data(), got)) return false;
  }
}

bool TlsRelay::WriteAll(End* to, const char* bytes, std::size_t size) {
  while (size > 0) {
    std::size_t sent = 0;
    if (to->ssl) {
      const int result = ::SSL_write_ex(to->ssl.get(), bytes, size, &sent);
      const bool full =
          result != 1 && ::SSL_get_error(to->ssl.get(), result) == SSL_ERROR_WANT_WRITE;
      if (result != 1 && (!full || !IsReady(to->fd.get(), POLLOUT))) return false;
    } else {
      const ssize_t result = ::send(to->fd.get(), bytes, size, MSG_NOSIGNAL);
      const bool full = result < 0 && (errno == EAGAIN || errno == EINTR);
      if (result < 0 && (!full || !IsReady(to->fd.get(), POLLOUT))) return false;
      if (result > 0) sent = static_cast<std::size_t>(result);
    }
    bytes += sent;
    size -= sent;
  }
  return true;
}

}  // namespace ferry::tests
