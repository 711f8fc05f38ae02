// Implements connecting, waiting and control messages for the tools.

#include "ferry/tools/support/operations.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/tools/support/json.h"
#include "ferry/tools/support/process.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kControlTag = 1;
constexpr std::size_t kMaxControlBytes = 64 * kKiB;
constexpr auto kLastWord = std::chrono::seconds(2);
constexpr auto kGlance = milliseconds(200);  // how often a wait looks for Ctrl-C

}  // namespace

Result<transfer::Connection> ConnectTo(transfer::Endpoint* endpoint, const std::string& address,
                                       Deadline deadline) {
  auto connection = endpoint->Connect(address, deadline);
  if (connection) return connection;
  const Error& error = connection.error();
  switch (error.code()) {
    // To a user of the tools all of these mean that the peer could not be reached (exit code).
    case Code::kInvalidArgument:
    case Code::kTimedOut:
    case Code::kCorrupt: return Error(Code::kPeerLost, error.message(), error.where());
    case Code::kUnsupported:
    case Code::kUnavailable:
    case Code::kRefused:
    case Code::kCancelled:
    case Code::kPeerLost:
    case Code::kDeviceLost:
    case Code::kInternal: break;
  }
  return connection;
}

Result<transfer::Connection> AcceptNext(transfer::Endpoint* endpoint) {
  while (!Interrupted()) {
    auto connection = endpoint->Accept(Deadline::After(kGlance));
    if (connection || connection.error().code() != Code::kTimedOut) return connection;
  }
  return InterruptedError();
}

Status WaitFor(transfer::Operation operation, Deadline deadline,
               const std::function<void()>& glance) {
  for (;;) {
    // Before the wait, too: a signal must also end what never waits for long.
    if (Interrupted()) {
      operation.Cancel();
      (void)operation.Wait();
      return InterruptedError();
    }
    Status status = operation.Wait(Deadline::After(kGlance).Sooner(deadline));
    if (status || status.error().code() != Code::kTimedOut) return status;
    // The timeout may be the operation's own end rather than that of the glance.
    if (operation.Poll()) return operation.Wait();
    if (glance) glance();
    if (!deadline.expired()) continue;
    operation.Cancel();
    (void)operation.Wait();
    return status;
  }
}

InFlight::~InFlight() {
  for (transfer::Operation& operation : operations_) operation.Cancel();
  for (transfer::Operation& operation : operations_) (void)operation.Wait();
}

Status InFlight::FinishOldest(Deadline deadline, const std::function<void()>& glance) {
  const transfer::Operation oldest = std::move(operations_.front());
  operations_.pop_front();
  return WaitFor(oldest, deadline, glance);
}

Control::Control(transfer::Connection connection) : connection_(std::move(connection)) {}

Status Control::Say(const Json& message, Deadline deadline) {
  const std::string text = DumpJson(message);
  FERRY_TRY_ASSIGN(
      const auto operation,
      connection_.Send(kControlTag, std::as_bytes(std::span(text)), {.deadline = deadline}));
  return WaitFor(operation, deadline);
}

Result<Json> Control::Hear(Deadline deadline) {
  std::string text(kMaxControlBytes, '\0');
  FERRY_TRY_ASSIGN(const auto operation,
                   connection_.Recv(kControlTag, kWholeTag, std::as_writable_bytes(std::span(text)),
                                    {.deadline = deadline}));
  FERRY_TRY(WaitFor(operation, deadline));
  return ParseJson(std::string_view(text).substr(0, operation.bytes()));
}

Result<Json> Control::Ask(const Json& question, Deadline deadline) {
  FERRY_TRY(Say(question, deadline));
  return HearAnswer(deadline);
}

Status Control::CauseOf(Status ours) {
  const Deadline timeout = Deadline::After(kLastWord);
  for (;;) {
    const auto message = Hear(timeout);
    if (!message) return ours;
    if (Status theirs = ErrorFromJson(*message); !theirs) return theirs;
  }
}

Result<Json> Control::HearAnswer(Deadline deadline) {
  FERRY_TRY_ASSIGN(Json answer, Hear(deadline));
  FERRY_TRY(ErrorFromJson(answer));
  return answer;
}

}  // namespace ferry::tools
