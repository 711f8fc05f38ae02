// Waits, queues of operations and JSON control messages that the tools share.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string_view>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/tools/json_fwd.h"
#include "ferry/transfer/connection.h"
#include "ferry/transfer/endpoint.h"

namespace ferry::tools {

// The mask of a receive that takes one tag only.
inline constexpr std::uint64_t kWholeTag = ~std::uint64_t{0};

// Connect for a command line: whatever keeps the peer from being reached is kPeerLost, a name that
// cannot be resolved and silence among it.
Result<transfer::Connection> ConnectTo(transfer::Endpoint* endpoint, const std::string& address,
                                       Deadline deadline);
// The next peer; kCancelled when interrupted.
Result<transfer::Connection> AcceptNext(transfer::Endpoint* endpoint);

// Waits for an operation's end. At the deadline (kTimedOut) or when interrupted (kCancelled) the
// operation is cancelled: it has ended in any case.
// `glance`, if any, is called several times a second meanwhile.
Status WaitFor(transfer::Operation operation, Deadline deadline,
               const std::function<void()>& glance = nullptr);

// Operations under way, oldest first. What is left at its end is cancelled and waited for, so
// declare it after the memory that they use.
class InFlight {
 public:
  InFlight() = default;
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight();

  std::size_t size() const noexcept { return operations_.size(); }
  void Add(transfer::Operation operation) { operations_.push_back(std::move(operation)); }
  // Waits for the oldest, as WaitFor.
  Status FinishOldest(Deadline deadline, const std::function<void()>& glance = nullptr);

 private:
  std::deque<transfer::Operation> operations_;
};

// How the two sides of a command talk to each other: JSON messages on the connection itself.
class Control {
 public:
  explicit Control(transfer::Connection connection);

  Status Say(const Json& message, Deadline deadline);
  Result<Json> Hear(Deadline deadline);
  // Says, then hears; an answer that reports an error becomes that error.
  Result<Json> Ask(const Json& question, Deadline deadline);
  Result<Json> HearAnswer(Deadline deadline);
  // Of a failure of this side's: what the other side says of it, if it has or does within two
  // seconds, since that is the cause then; otherwise the failure itself.
  Status CauseOf(Status ours);

 private:
  transfer::Connection connection_;
};

}  // namespace ferry::tools
