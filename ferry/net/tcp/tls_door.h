#pragma once
#include <map>
#include <memory>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/event_loop.h"
#include "ferry/net/tcp/tls_handshake.h"

namespace ferry::net::tcp {

// The handshakes with those who have connected to a listener: so many at once, each for
// config.handshake_timeout. Whoever comes is let in: when there is no room, the oldest of the
// address that has the most of them goes, so that a silent flood pushes out itself. Who does not
// pass is logged, at most once a second. Belongs to one loop; destroy on it or after it has
// stopped.
class TlsDoor {
 public:
  using Passed = UniqueFunction<void(SecureSocket)>;
  // Each costs some 50 KiB while it lasts.
  static constexpr std::size_t kMaxHandshakes = 256;

  // `where`: the address that was listened on, for the log.
  TlsDoor(std::shared_ptr<const TlsContext> context, const Config& config, EventLoop* loop,
          std::string where, Passed passed);
  ~TlsDoor();
  TlsDoor(const TlsDoor&) = delete;
  TlsDoor& operator=(const TlsDoor&) = delete;

  void KnockOnLoop(UniqueFd fd);

 private:
  struct Stranger {
    std::unique_ptr<TlsHandshake> handshake;
    EventLoop::TimerId timer = 0;
    std::string remote;
  };

  Status Begin(UniqueFd fd, const std::string& remote);
  void MakeRoom();
  void End(std::uint64_t id, Result<SecureSocket> result);
  void LogRefusal(const std::string& remote, const std::string& why);

  const std::shared_ptr<const TlsContext> context_;  // with the streams
  const microseconds timeout_;
  EventLoop* const loop_;
  const std::string where_;
  Passed passed_;
  std::map<std::uint64_t, Stranger> strangers_;  // oldest first
  std::uint64_t next_id_ = 1;
  Clock::time_point next_log_;
  std::uint64_t not_logged_ = 0;
};

}  // namespace ferry::net::tcp
