// TLS handshakes of accepted connections.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/net/accept_gate.h"
#include "ferry/net/admission.h"
#include "ferry/net/tcp/tls/handshake.h"

namespace ferry::net::tcp {

// Runs the TLS handshakes of accepted connections: config.max_pending_handshakes at once, at most
// kMaxHandshakes, each for at most config.handshake_timeout. Admission decides which handshake is
// closed when more connections come; a peer counts as having spoken when its first message is
// complete. Failures are logged, at most once a second. Lives on one loop; destroy it on that loop,
// or after the loop has stopped.
class TlsAcceptor {
 public:
  using Passed = UniqueFunction<void(SecureSocket)>;
  // Each handshake needs about 50 KiB.
  static constexpr std::size_t kMaxHandshakes = 256;

  // What each handshake begins with: files may change meanwhile.
  using Context = std::function<Result<std::shared_ptr<const TlsContext>>()>;

  // `where`: the listening address, for the log. `set_full` tells the listener to pause or resume
  // accepting.
  TlsAcceptor(Context context, const Config& config, EventLoop* loop, std::string where,
              Passed passed, AcceptGate::SetPaused set_full);
  ~TlsAcceptor();
  TlsAcceptor(const TlsAcceptor&) = delete;
  TlsAcceptor& operator=(const TlsAcceptor&) = delete;

  // Takes an accepted socket and starts its handshake.
  void OnAccept(UniqueFd fd);
  // As Listener::ExpectOnLoop().
  void ExpectOnLoop(const std::string& host, std::size_t lanes, Clock::time_point until) {
    admission_.Expect(host, lanes, until);
  }

 private:
  struct Pending {
    std::unique_ptr<TlsHandshake> handshake;
    EventLoop::TimerId timer = 0;
    std::string remote;
  };

  Status Begin(std::uint64_t id, UniqueFd fd, const std::string& remote, bool same_machine);
  void TurnAway(std::uint64_t id);
  void End(std::uint64_t id, Result<SecureSocket> result);
  void LogRefusal(const std::string& remote, const std::string& why);

  const Context context_;
  const microseconds timeout_;
  EventLoop* const loop_;
  const std::string where_;
  Passed passed_;
  Admission admission_;
  AcceptGate gate_;
  std::unordered_map<std::uint64_t, Pending> pending_;
  std::uint64_t next_id_ = 1;
  Clock::time_point next_log_;
  std::uint64_t not_logged_ = 0;
};

}  // namespace ferry::net::tcp
