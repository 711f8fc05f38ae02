// Another agent: how it is reached, and the connection to it.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ferry/core/deadline.h"
#include "ferry/transfer/endpoint.h"
#include "plugins/nixl/job.h"
#include "plugins/nixl/peers/courier.h"
#include "plugins/nixl/peers/identity.h"
#include "plugins/nixl/peers/outbox.h"
#include "plugins/nixl/peers/wire.h"
#include "plugins/nixl/tasks.h"

namespace ferry::nixl {

// One agent that was loaded, until it is disconnected. Its own operations use the connection that
// this side dials; the peer dials another one for those of its own. Any thread.
class Peer final : public std::enable_shared_from_this<Peer> {
 public:
  // What peers have in common; outlives them.
  struct Context {
    transfer::Endpoint* endpoint = nullptr;
    Tasks* tasks = nullptr;
    Courier* courier = nullptr;
    std::string agent;  // our own name
    SecretText secret;  // that the settings give to all agents; may be empty
    const SigningKey* key = nullptr;
    microseconds dial_timeout{0};
  };

  Peer(std::string name, ConnectionInfo info, const Context* context)
      : name_(std::move(name)),
        info_(std::move(info)),
        context_(context),
        outbox_(std::make_shared<Outbox>(name_, context->courier)) {}

  const std::string& name() const noexcept { return name_; }
  // Whether it is this agent itself.
  bool own() const noexcept { return info_.address.endpoint == context_->endpoint->id(); }
  const ConnectionInfo& info() const noexcept { return info_; }

  // Begins to connect unless this has begun; does not block. `urgent`: somebody waits for it.
  void Dial(bool urgent);
  // Starts the job, now or once the connection is up; a failure to connect fails it. Errors:
  // kPeerLost (the connection was lost; only an own one is dialed again), kCancelled
  // (disconnected).
  Status Submit(const std::shared_ptr<Job>& job);
  // nullopt while it is not up.
  std::optional<transfer::Connection> connection();
  // Whether the connection was up and was lost, or the peer has refused it.
  bool lost();
  // Fails jobs that wait, and closes the connection on another thread.
  void Disconnect();

  // Shared with the courier.
  const std::shared_ptr<Outbox>& outbox() const noexcept { return outbox_; }

  // Measured by transfers that ended: bytes per second, 0 if there was none yet.
  double rate() const noexcept { return rate_.load(std::memory_order_relaxed); }
  void Measured(std::uint64_t bytes, Clock::duration took) noexcept;
  // Whether the loss of the connection has to be logged: once for each.
  bool FirstLoss() noexcept { return !loss_logged_.exchange(true); }

 private:
  enum class State { kIdle, kDialing, kUp, kLost, kDisconnected };

  // Whether it is dialed, or was before. Otherwise there is no thread that could.
  bool DialLocked(bool urgent);
  void FindLossLocked();
  // On a thread of the tasks.
  void Connect();
  Result<transfer::Connection> TryConnect();
  // Starts the jobs that wait; closes the connection if the peer was disconnected meanwhile.
  void OnUp(transfer::Connection connection);
  void OnFailure(const Error& error);
  void CloseInBackground(transfer::Connection connection);

  const std::string name_;
  const ConnectionInfo info_;
  const Context* const context_;
  const std::shared_ptr<Outbox> outbox_;  // as in outbox()
  std::atomic<double> rate_{0};
  std::atomic<bool> loss_logged_{false};
  std::mutex mutex_;
  State state_ = State::kIdle;  // under mutex_
  bool urgent_ = false;         // under mutex_: somebody waits for the dial
  bool connecting_ = false;     // under mutex_: a thread dials, or starts what waits
  std::optional<transfer::Connection> connection_;  // under mutex_
  std::deque<std::shared_ptr<Job>> waiting_;        // under mutex_; shared with their posters
};

}  // namespace ferry::nixl
