// Waits, queues of operations and JSON control messages that the tools share.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string_view>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/transfer/connection.h"
#include "ferry/transfer/endpoint.h"
#include "tools/support/json_fwd.h"

namespace ferry::tools {

// The mask of a receive that matches one tag only.
inline constexpr std::uint64_t kWholeTag = ~std::uint64_t{0};
// The tag of control messages.
inline constexpr std::uint64_t kControlTag = 1;

// Connects for a command line. Every reason why the peer cannot be reached becomes kPeerLost,
// including an unresolvable name and a timeout.
Result<transfer::Connection> ConnectTo(transfer::Endpoint* endpoint, const std::string& address,
                                       Deadline deadline);
// Blocks until an operation ends. At the deadline it expires (kTimedOut, with what the lanes wait
// for), and when interrupted (kCancelled) it is cancelled, so it has ended in any case. `glance`,
// if any, is called several times a second meanwhile.
Status WaitFor(transfer::Operation operation, Deadline deadline,
               const std::function<void()>& glance = nullptr);

// The pace that a peer has to keep while this side waits for it: kMinBytesPerSecond of payload, on
// average over a window of `timeout`. The window goes on from one wait to the next, and the time
// between them does not count. For one thread.
class ReceivePace {
 public:
  static constexpr std::uint64_t kMinBytesPerSecond = 8 << 10;
  ReceivePace(transfer::Connection connection, Clock::duration timeout);
  // Blocks until an operation ends. Where a window ends with too few bytes, the operation is
  // cancelled: kTimedOut.
  Status Wait(const transfer::Operation& operation);

 private:
  std::uint64_t Received() const;

  const transfer::Connection connection_;
  const Clock::duration timeout_;
  const std::uint64_t due_;  // in each window; at least 1
  std::uint64_t before_;     // what the connection had received when the window began
  Clock::duration left_;     // of the window
};

// Operations in flight, oldest first. The destructor cancels the remaining ones and waits for them,
// so declare it after the memory that they use.
class InFlight {
 public:
  InFlight() = default;
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight();

  std::size_t size() const noexcept { return operations_.size(); }
  const transfer::Operation& oldest() const noexcept { return operations_.front(); }
  void Add(transfer::Operation operation) { operations_.push_back(std::move(operation)); }
  // Waits for the oldest as WaitFor() does.
  Status FinishOldest(Deadline deadline, const std::function<void()>& glance = nullptr);

 private:
  std::deque<transfer::Operation> operations_;
};

// The control channel between the two sides of a command: JSON messages on the connection itself.
// For one thread; calls block until their deadline.
class Control {
 public:
  explicit Control(transfer::Connection connection);

  // A deadline that passes is kTimedOut with the peer and the time that it had.
  Status Say(const Json& message, Deadline deadline);
  Result<Json> Hear(Deadline deadline);
  // Waits as ReceivePace::Wait() does.
  Result<Json> Hear(ReceivePace* pace);
  // Sends a message and receives the answer; an answer that reports an error becomes that error.
  Result<Json> Ask(const Json& question, Deadline deadline);
  Result<Json> HearAnswer(Deadline deadline);

 private:
  Result<Json> HearWith(const std::function<Status(transfer::Operation)>& wait);

  transfer::Connection connection_;
};

}  // namespace ferry::tools
