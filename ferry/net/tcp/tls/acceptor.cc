// TLS handshakes of accepted connections.
#include "ferry/net/tcp/tls/acceptor.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/net/tcp/socket_options.h"

namespace ferry::net::tcp {
namespace {
constexpr std::chrono::seconds kLogEvery{1};
}  // namespace

TlsAcceptor::TlsAcceptor(Context context, const Config& config, EventLoop* loop, std::string where,
                         Passed passed, AcceptGate::SetPaused set_full)
    : context_(std::move(context)),
      timeout_(config.handshake_timeout),
      loop_(loop),
      where_(std::move(where)),
      passed_(std::move(passed)),
      admission_(std::min<std::size_t>(config.max_pending_handshakes, kMaxHandshakes)),
      gate_(loop, &admission_, std::move(set_full)) {}

// On the loop, as everything here. The handshakes unwatch their sockets themselves.
TlsAcceptor::~TlsAcceptor() {
  for (const auto& [id, pending] : pending_) loop_->CancelTimerOnLoop(pending.timer);
}

void TlsAcceptor::OnAccept(UniqueFd fd) {
  const auto address = RemoteAddressOf(fd.get());
  if (!address) return;  // reset right after it was accepted
  const auto local = LocalAddressOf(fd.get());
  const std::string remote = address->ToString();
  const std::uint64_t id = next_id_++;
  const bool same_machine = IsSameMachine(local ? *local : Address(), *address);
  // Before Begin(), so that the table never has fewer entries than there are handshakes.
  const auto leaving = admission_.Enter(id, address->host, same_machine, Clock::now());
  if (leaving) TurnAway(*leaving);
  if (const Status begun = Begin(id, std::move(fd), remote, same_machine); !begun) {
    admission_.Leave(id);
    LogRefusal(remote, begun.error().message());
  }
  gate_.UpdateOnLoop();
}

// Resets instead of closing: the connection was not refused for its contents, and the caller may
// try again.
void TlsAcceptor::TurnAway(std::uint64_t id) {
  Pending& leaving = pending_.at(id);
  leaving.handshake->ResetOnClose();
  const std::string name = leaving.remote;
  End(id, Error(Code::kUnavailable,
                fmt::format("closed {} during its TLS handshake: {} handshakes are in flight, and "
                            "more connections wait",
                            name, pending_.size())));
}

Status TlsAcceptor::Begin(std::uint64_t id, UniqueFd fd, const std::string& remote,
                          bool same_machine) {
  FERRY_TRY_ASSIGN(auto context, context_());
  FERRY_TRY_ASSIGN(auto stream, TlsStream::Create(std::move(context), fd.get(),
                                                  TlsStream::Role::kAccepts, remote));
  auto handshake = std::make_unique<TlsHandshake>(
      std::move(fd), std::move(stream), loop_,
      [this, id](Result<SecureSocket> result) { End(id, std::move(result)); });
  FERRY_TRY(handshake->StartOnLoop([this, id, same_machine] {
    // Within TLS nobody has said yet which process it is: by their address alone, all of this
    // machine are believed.
    admission_.MarkSpoken(id, Clock::now(), /*proven=*/same_machine);
    gate_.UpdateOnLoop();
  }));
  const auto timer = loop_->AddTimerOnLoop(Clock::now() + timeout_, [this, id] {
    const std::string name = pending_.at(id).remote;
    End(id, Error(Code::kTimedOut, fmt::format("{} did not finish the TLS handshake within {}",
                                               name, FormatDuration(timeout_))));
  });
  pending_.emplace(id, Pending{std::move(handshake), timer, remote});
  return Ok();
}

// Called from the handshake, from its timer, or to evict it. The node keeps the handshake alive
// until this returns, as one of its own functions may be on the stack.
void TlsAcceptor::End(std::uint64_t id, Result<SecureSocket> result) {
  auto node = pending_.extract(id);
  loop_->CancelTimerOnLoop(node.mapped().timer);
  admission_.Leave(id);
  if (result) {
    passed_(*std::move(result));
  } else {
    LogRefusal(node.mapped().remote, result.error().message());
  }
  gate_.UpdateOnLoop();
}

void TlsAcceptor::LogRefusal(const std::string& remote, const std::string& why) {
  // One warning a second: anybody who can connect can cause these lines.
  if (Clock::now() < next_log_) {
    ++not_logged_;
    Log(LogLevel::kDebug, "tcp", "connection from {} refused on {}: {}", remote, where_, why);
    return;
  }
  next_log_ = Clock::now() + kLogEvery;
  const auto others = std::exchange(not_logged_, 0);
  Log(LogLevel::kWarn, "tcp", "connection from {} refused on {}: {}{}", remote, where_, why,
      others == 0 ? "" : fmt::format(" (and {} more since the last such line)", others));
}

}  // namespace ferry::net::tcp
