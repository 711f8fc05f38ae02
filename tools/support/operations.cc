// Implements connecting, waiting and control messages for the tools.

#include "tools/support/operations.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "tools/support/json.h"
#include "tools/support/process.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kMaxControlBytes = 64 * kKiB;
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

namespace {

// Asks `deadline_now()` for the deadline a few times a second. A std::function would allocate for
// each operation that is measured.
template <class DeadlineNow>
Status WaitWith(transfer::Operation operation, const DeadlineNow& deadline_now) {
  for (;;) {
    // Before the wait, too: a signal must also end what never waits for long.
    if (Interrupted()) {
      operation.Cancel();
      (void)operation.Wait();
      return InterruptedError();
    }
    const Deadline deadline = deadline_now();
    Status status = operation.Wait(Deadline::After(kGlance).Sooner(deadline));
    if (status || status.error().code() != Code::kTimedOut) return status;
    // The timeout may be the operation's own end rather than that of the glance.
    if (operation.Poll()) return operation.Wait();
    if (!deadline.expired() || !deadline_now().expired()) continue;
    operation.Expire();
    Status own = operation.Wait();
    if (own) return status;
    if (own.error().code() == Code::kTimedOut) return own;
    return Error(Code::kTimedOut, fmt::format("{}; it ended with: {}", status.error().message(),
                                              own.error().message()));
  }
}

// "127.0.0.1:7471 has not answered for 30 s": `wait` is how long this side really waited.
Error Silent(const transfer::Connection& connection, const char* what, Clock::duration wait) {
  return Error(Code::kTimedOut, fmt::format("{} {} for {:.3g} s; check that its process runs",
                                            connection.Info().peer, what, Seconds(wait)));
}

}  // namespace

Status WaitFor(transfer::Operation operation, Deadline deadline,
               const std::function<void()>& glance) {
  bool first = true;
  return WaitWith(std::move(operation), [&] {
    if (!std::exchange(first, false) && glance) glance();
    return deadline;
  });
}

ReceivePace::ReceivePace(transfer::Connection connection, Clock::duration timeout)
    : connection_(std::move(connection)),
      timeout_(timeout),
      due_(1 + static_cast<std::uint64_t>(Seconds(timeout) * kMinBytesPerSecond)),
      before_(Received()),
      left_(timeout) {}

std::uint64_t ReceivePace::Received() const {
  return connection_.Counters().traffic.lanes.payload_bytes_received;
}

Status ReceivePace::Wait(const transfer::Operation& operation) {
  Deadline deadline = Deadline::After(left_);
  Status status = WaitWith(operation, [&] {
    const std::uint64_t received = Received();
    if (received - before_ >= due_) {
      before_ = received;
      deadline = Deadline::After(timeout_);
    }
    return deadline;
  });
  if (!deadline.never()) left_ = deadline.when() - Clock::now();
  if (status || status.error().code() != Code::kTimedOut) return status;
  const std::uint64_t bytes = Received() - before_;
  if (bytes == 0) return Silent(connection_, "has sent nothing", timeout_);
  return Error(Code::kTimedOut,
               fmt::format("{} has sent {} bytes in {:.3g} s, of at least {}; send faster, or give "
                           "the server a longer --timeout",
                           connection_.Info().peer, bytes, Seconds(timeout_), due_));
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
  const auto since = Clock::now();
  const std::string text = DumpJson(message);
  FERRY_TRY_ASSIGN(
      const auto operation,
      connection_.Send(kControlTag, std::as_bytes(std::span(text)), {.deadline = deadline}));
  Status said = WaitFor(operation, deadline);
  if (said || said.error().code() != Code::kTimedOut) return said;
  return Silent(connection_, "has not taken a message", Clock::now() - since);
}

Result<Json> Control::HearWith(const std::function<Status(transfer::Operation)>& wait) {
  std::string text(kMaxControlBytes, '\0');
  FERRY_TRY_ASSIGN(const auto operation, connection_.Recv(kControlTag, kWholeTag,
                                                          std::as_writable_bytes(std::span(text))));
  FERRY_TRY(wait(operation));
  return ParseJson(std::string_view(text).substr(0, operation.bytes()));
}

Result<Json> Control::Hear(Deadline deadline) {
  const auto since = Clock::now();
  auto message = HearWith([&](const auto& operation) { return WaitFor(operation, deadline); });
  if (message || message.error().code() != Code::kTimedOut) return message;
  return Silent(connection_, "has not answered", Clock::now() - since);
}

Result<Json> Control::Hear(ReceivePace* pace) {
  return HearWith([&](const auto& operation) { return pace->Wait(operation); });
}

Result<Json> Control::Ask(const Json& question, Deadline deadline) {
  FERRY_TRY(Say(question, deadline));
  return HearAnswer(deadline);
}

Result<Json> Control::HearAnswer(Deadline deadline) {
  FERRY_TRY_ASSIGN(Json answer, Hear(deadline));
  FERRY_TRY(ErrorFromJson(answer));
  return answer;
}

}  // namespace ferry::tools
