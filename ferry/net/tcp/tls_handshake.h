// One TLS handshake on a loop.
#pragma once
#include <memory>

#include "ferry/core/event_loop.h"
#include "ferry/core/fd.h"
#include "ferry/core/unique_function.h"
#include "ferry/net/tcp/tls_stream.h"

namespace ferry::net::tcp {

// A socket that has been connected, with what was agreed on it. The stream uses the socket.
struct SecureSocket {
  UniqueFd fd;
  std::unique_ptr<ByteStream> stream;
};

// A TLS handshake under way. Belongs to one loop, and has no deadline: whoever owns it ends it by
// destroying it.
class TlsHandshake final : private EventLoop::Handler {
 public:
  // Called once, as the last thing that this does: it may destroy the handshake.
  using Done = UniqueFunction<void(Result<SecureSocket>)>;

  TlsHandshake(UniqueFd fd, std::unique_ptr<TlsStream> stream, EventLoop* loop, Done done);
  ~TlsHandshake();
  TlsHandshake(const TlsHandshake&) = delete;
  TlsHandshake& operator=(const TlsHandshake&) = delete;

  // Nothing is done before the loop's next turn. `heard`, where given, is called once, when the
  // peer's first message has been understood.
  Status StartOnLoop(UniqueFunction<void()> heard = {});
  // The peer finds the connection reset, not closed, when this is destroyed.
  void ResetOnClose();

 private:
  void OnEventsOnLoop(std::uint32_t events) override;

  UniqueFd fd_;
  std::unique_ptr<TlsStream> stream_;
  EventLoop* const loop_;
  Done done_;
  UniqueFunction<void()> heard_;  // until it was called
};

}  // namespace ferry::net::tcp
