// Dials a peer and starts the jobs that wait for it.
#include "plugins/nixl/peers/peer.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "plugins/nixl/log.h"

namespace ferry::nixl {
namespace {

// Shorter transfers measure the latency.
constexpr std::uint64_t kMinMeasuredBytes = 1 << 20;

}  // namespace

void Peer::Dial(bool urgent) {
  const std::lock_guard lock(mutex_);
  (void)DialLocked(urgent);  // a later job dials again
}

bool Peer::DialLocked(bool urgent) {
  const bool begins = state_ == State::kIdle;
  // One that was queued behind others is queued again before them; what comes second finds that
  // another has begun.
  if (!begins && !(state_ == State::kDialing && urgent && !urgent_)) return true;
  state_ = State::kDialing;
  urgent_ = urgent;
  const bool runs = context_->tasks->Run([self = shared_from_this()] { self->Connect(); }, urgent);
  if (!runs && begins) state_ = State::kIdle;
  return runs || !begins;
}

Status Peer::Submit(const std::shared_ptr<Job>& job) {
  std::optional<transfer::Connection> connection;
  {
    const std::lock_guard lock(mutex_);
    FindLossLocked();
    switch (state_) {
      case State::kDisconnected:
        return Error(Code::kCancelled, fmt::format("agent '{}' was disconnected", name_));
      case State::kLost:
        return Error(Code::kPeerLost,
                     fmt::format("the connection to agent '{}' was lost; remove the agent and load "
                                 "its metadata anew",
                                 name_));
      case State::kIdle:
      case State::kDialing:
        if (!DialLocked(true)) {
          return Error(Code::kUnavailable,
                       fmt::format("no thread could be started to connect to agent '{}'", name_));
        }
        waiting_.push_back(job);
        return Ok();
      case State::kUp: connection = connection_; break;
    }
  }
  // Without the mutex: a job may end here, and calls the peer back.
  job->Start(*connection);
  return Ok();
}

std::optional<transfer::Connection> Peer::connection() {
  const std::lock_guard lock(mutex_);
  return state_ == State::kUp ? connection_ : std::nullopt;
}

bool Peer::lost() {
  const std::lock_guard lock(mutex_);
  FindLossLocked();
  return state_ == State::kLost;
}

void Peer::FindLossLocked() {
  if (state_ != State::kUp || !connection_->lost()) return;
  state_ = State::kLost;
  if (!own()) return;
  // Nobody can load this agent's metadata anew, and its endpoint is still the same.
  CloseInBackground(*std::exchange(connection_, std::nullopt));
  state_ = State::kIdle;
}

void Peer::Disconnect() {
  std::deque<std::shared_ptr<Job>> waiting;  // with their posters
  std::optional<transfer::Connection> connection;
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kDisconnected;
    waiting.swap(waiting_);
    connection.swap(connection_);
  }
  // Without the mutex, as each job takes its own.
  for (const auto& job : waiting) {
    job->Fail(Error(Code::kCancelled, fmt::format("agent '{}' was disconnected", name_)));
  }
  outbox_->Fail(Error(Code::kCancelled, fmt::format("agent '{}' was disconnected", name_)));
  if (connection) CloseInBackground(*std::move(connection));
}

void Peer::CloseInBackground(transfer::Connection connection) {
  context_->tasks->Run([connection]() mutable { connection.Close(); }, true);
}

void Peer::Connect() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kDialing || connecting_) return;
    connecting_ = true;
  }
  auto connected = TryConnect();
  if (connected) {
    OnUp(*std::move(connected));
  } else {
    OnFailure(connected.error());
  }
}

Result<transfer::Connection> Peer::TryConnect() {
  return context_->endpoint->Connect(
      info_.address, Deadline::After(context_->dial_timeout),
      ConnectionSecret(context_->secret, info_.secret),
      [this](std::span<const std::byte> transcript) {
        return context_->key->Identify(context_->agent, name_, transcript).Serialize();
      });
}

void Peer::OnUp(transfer::Connection connection) {
  while (true) {
    std::shared_ptr<Job> job;  // shared with its poster
    {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kDisconnected) break;
      // Up only when nobody waits: until then Submit() adds to the queue, so that jobs start in the
      // order in which they came.
      if (waiting_.empty()) {
        state_ = State::kUp;
        connecting_ = false;
        connection_ = connection;
        loss_logged_ = false;
        return;
      }
      job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    job->Start(connection);
  }
  connection.Close();
}

void Peer::OnFailure(const Error& error) {
  std::deque<std::shared_ptr<Job>> waiting;  // with their posters
  // The metadata is not the peer's any more, or the settings differ.
  const bool refused = error.code() == Code::kRefused && !own();
  {
    const std::lock_guard lock(mutex_);
    connecting_ = false;
    if (state_ == State::kDisconnected) return;
    // Otherwise a later job dials again.
    state_ = refused ? State::kLost : State::kIdle;
    waiting.swap(waiting_);
  }
  Log(waiting.empty() && !refused ? LogLevel::kInfo : LogLevel::kError,
      fmt::format("cannot connect to agent '{}': {}{}", name_, error.ToString(),
                  refused ? "; if that agent was restarted, load its new metadata" : ""),
      error.where());
  // For the agent, a peer that cannot be reached is as one that is gone.
  const Error lost(Code::kPeerLost,
                   fmt::format("cannot connect to agent '{}': {}", name_, error.message()));
  for (const auto& job : waiting) job->Fail(lost);
}

void Peer::Measured(std::uint64_t bytes, Clock::duration took) noexcept {
  if (bytes < kMinMeasuredBytes || took <= Clock::duration::zero()) return;
  const double now = static_cast<double>(bytes) / Seconds(took);
  const double before = rate();
  rate_.store(before == 0 ? now : before + (now - before) / 8, std::memory_order_relaxed);
}

}  // namespace ferry::nixl
