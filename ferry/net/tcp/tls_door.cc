#include "ferry/net/tcp/tls_door.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/net/tcp/socket_options.h"

namespace ferry::net::tcp {
namespace {
constexpr std::chrono::seconds kLogEvery{1};
}  // namespace

TlsDoor::TlsDoor(std::shared_ptr<const TlsContext> context, const Config& config, EventLoop* loop,
                 std::string where, Passed passed)
    : context_(std::move(context)),
      timeout_(config.handshake_timeout),
      loop_(loop),
      where_(std::move(where)),
      passed_(std::move(passed)) {}

TlsDoor::~TlsDoor() {
  for (const auto& [id, stranger] : strangers_) loop_->CancelTimerOnLoop(stranger.timer);
}

void TlsDoor::KnockOnLoop(UniqueFd fd) {
  const std::string remote = DescribeSocket(fd.get()).remote;
  if (strangers_.size() >= kMaxHandshakes) MakeRoom();
  if (const Status begun = Begin(std::move(fd), remote); !begun) {
    LogRefusal(remote, begun.error().message());
  }
}

void TlsDoor::MakeRoom() {
  std::map<std::string_view, std::size_t> by_host;
  for (const auto& [id, stranger] : strangers_) ++by_host[HostOf(stranger.remote)];
  const auto crowded =
      std::max_element(by_host.begin(), by_host.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto oldest = std::find_if(strangers_.begin(), strangers_.end(), [&](const auto& each) {
    return HostOf(each.second.remote) == crowded->first;
  });
  const std::string name = oldest->second.remote;
  End(oldest->first, Error(Code::kUnavailable,
                           fmt::format("turned {} away, whose handshake was not over: others came, "
                                       "and {} TLS handshakes are under way already",
                                       name, strangers_.size())));
}

Status TlsDoor::Begin(UniqueFd fd, const std::string& remote) {
  FERRY_TRY_ASSIGN(auto stream,
                   TlsStream::Create(context_, fd.get(), TlsStream::Role::kAccepts, remote));
  const std::uint64_t id = next_id_++;
  auto handshake = std::make_unique<TlsHandshake>(
      std::move(fd), std::move(stream), loop_,
      [this, id](Result<SecureSocket> result) { End(id, std::move(result)); });
  FERRY_TRY(handshake->StartOnLoop());
  const auto timer = loop_->AddTimerOnLoop(Clock::now() + timeout_, [this, id] {
    const std::string name = strangers_.at(id).remote;
    End(id, Error(Code::kTimedOut, fmt::format("{} did not finish the TLS handshake within {}",
                                               name, FormatDuration(timeout_))));
  });
  strangers_.emplace(id, Stranger{std::move(handshake), timer, remote});
  return Ok();
}

void TlsDoor::End(std::uint64_t id, Result<SecureSocket> result) {
  auto node = strangers_.extract(id);
  loop_->CancelTimerOnLoop(node.mapped().timer);
  if (!result) return LogRefusal(node.mapped().remote, result.error().message());
  passed_(*std::move(result));
}

void TlsDoor::LogRefusal(const std::string& remote, const std::string& why) {
  if (Clock::now() < next_log_) {
    ++not_logged_;
    Log(LogLevel::kDebug, "tcp", "{} is not let in on {}: {}", remote, where_, why);
    return;
  }
  next_log_ = Clock::now() + kLogEvery;
  const auto others = std::exchange(not_logged_, 0);
  Log(LogLevel::kWarn, "tcp", "{} is not let in on {}: {}{}", remote, where_, why,
      others == 0 ? "" : fmt::format(" (and {} others since the last such line)", others));
}

}  // namespace ferry::net::tcp
