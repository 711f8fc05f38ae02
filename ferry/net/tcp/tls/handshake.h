// One TLS handshake on a loop.
#pragma once
#include <memory>

#include "ferry/core/fd.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/unique_function.h"
#include "ferry/net/tcp/tls/stream.h"

namespace ferry::net::tcp {

// A connected socket and the stream that was negotiated on it. The stream uses the socket.
struct SecureSocket {
  UniqueFd fd;
  std::unique_ptr<ByteStream> stream;
};

// A TLS handshake in flight. Lives on one loop and has no timeout of its own: its owner ends it by
// destroying it.
class TlsHandshake final : private EventLoop::Handler {
 public:
  // Called once, as the last action: it may destroy the handshake.
  using Done = UniqueFunction<void(Result<SecureSocket>)>;

  TlsHandshake(UniqueFd fd, std::unique_ptr<TlsStream> stream, EventLoop* loop, Done done);
  ~TlsHandshake();
  TlsHandshake(const TlsHandshake&) = delete;
  TlsHandshake& operator=(const TlsHandshake&) = delete;

  // Starts in the loop's next turn. `heard`, if given, is called once, when the peer's first
  // message has been parsed.
  Status StartOnLoop(UniqueFunction<void()> heard = {});
  // From now on destruction resets the connection instead of closing it.
  void ResetOnClose();

 private:
  void OnEvents(std::uint32_t events) override;

  UniqueFd fd_;
  std::unique_ptr<TlsStream> stream_;
  EventLoop* const loop_;
  Done done_;
  UniqueFunction<void()> heard_;  // empty after the call
};

}  // namespace ferry::net::tcp
