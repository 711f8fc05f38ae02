// Implements accepting and refusing peers of the tools' servers.

#include "tools/support/acceptor.h"

#include <span>
#include <utility>

#include "ferry/net/address.h"
#include "tools/support/json.h"
#include "tools/support/process.h"

namespace ferry::tools {
namespace {

constexpr auto kAcceptGlance = milliseconds(100);  // how often a wait looks for Ctrl-C
constexpr auto kRefusalTime = std::chrono::seconds(2);
constexpr std::size_t kMaxRefused = 16;  // with open connections

}  // namespace

Acceptor::~Acceptor() {
  for (Refused& refused : refused_) refused.connection.Close();
}

Result<transfer::Connection> Acceptor::Next(const std::function<bool()>& stop) {
  while (!Interrupted() && !(stop && stop())) {
    CloseRefused();
    auto connection = endpoint_->Accept(Deadline::After(kAcceptGlance));
    if (connection || connection.error().code() != Code::kTimedOut) return connection;
  }
  return InterruptedError();
}

void Acceptor::Refuse(transfer::Connection connection, const Error& reason) {
  const std::string peer = connection.Info().peer;
  log_.Write(LogLevel::kWarn, "tools", net::HostOf(peer), {{"peer", peer}},
             "refused: " + reason.message());
  if (refused_.size() >= kMaxRefused) {
    refused_.front().connection.Close();
    refused_.pop_front();
  }
  Refused& refused = refused_.emplace_back(
      Refused{std::move(connection), DumpJson(ErrorToJson(reason)), Deadline::After(kRefusalTime)});
  (void)refused.connection.Send(kControlTag, std::as_bytes(std::span(refused.text)),
                                {.deadline = refused.until});
}

void Acceptor::CloseRefused() {
  for (auto each = refused_.begin(); each != refused_.end();) {
    const bool done = each->connection.lost() || each->until.expired();
    if (done) each->connection.Close();
    each = done ? refused_.erase(each) : std::next(each);
  }
}

}  // namespace ferry::tools
