// Drives one TLS handshake on a loop.
#include "ferry/net/tcp/tls/handshake.h"

#include <sys/socket.h>

#include <utility>

namespace ferry::net::tcp {

TlsHandshake::TlsHandshake(UniqueFd fd, std::unique_ptr<TlsStream> stream, EventLoop* loop,
                           Done done)
    : fd_(std::move(fd)), stream_(std::move(stream)), loop_(loop), done_(std::move(done)) {}

TlsHandshake::~TlsHandshake() {
  if (fd_) loop_->UnwatchOnLoop(fd_.get(), this);
}

Status TlsHandshake::StartOnLoop(UniqueFunction<void()> heard) {
  heard_ = std::move(heard);
  // A connected socket is writable; that is the first event.
  return loop_->WatchOnLoop(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, this);
}

void TlsHandshake::ResetOnClose() {
  const linger at_once{1, 0};
  (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void TlsHandshake::OnEvents(std::uint32_t /*events*/) {
  const auto progress = stream_->Handshake();
  if (progress && *progress == TlsStream::Progress::kWaiting) {
    // Once: the caller protects a peer that has sent a well-formed ClientHello.
    if (!heard_ || !stream_->has_heard_hello()) return;
    auto heard = std::exchange(heard_, {});
    return heard();
  }
  loop_->UnwatchOnLoop(fd_.get(), this);
  // `done` usually destroys this object, so nothing of it is used afterwards.
  Done done = std::move(done_);
  if (!progress) return done(progress.error());
  done(SecureSocket{std::move(fd_), std::move(stream_)});
}

}  // namespace ferry::net::tcp
