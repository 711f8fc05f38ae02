// Moves a connection from state to state.
#include "ferry/transfer/connection/connection_state.h"

#include <utility>

#include "ferry/core/check.h"

namespace ferry::transfer {

void ConnectionState::MoveTo(State to) {
  const State from = state_.load();
  bool allowed = false;
  switch (to) {
    case State::kStarting: break;
    // A lane that is already adopted may fail before the others are.
    case State::kLostEarly:
    // Only now are there lanes for operations.
    case State::kUp: allowed = from == State::kStarting; break;
    case State::kLost: allowed = from == State::kUp || from == State::kLostEarly; break;
    // Never without kLost before: an operation that began meanwhile would miss the end.
    case State::kEnding: allowed = from == State::kLost; break;
    // Only after every lane was told: nobody else ends the operations that wait for one.
    case State::kClosed: allowed = from == State::kEnding; break;
  }
  FERRY_CHECK(allowed, static_cast<int>(from), static_cast<int>(to));
  state_.store(to);
}

void ConnectionState::Start() {
  const std::lock_guard lock(mutex_);
  MoveTo(state_.load() == State::kLostEarly ? State::kLost : State::kUp);
}

bool ConnectionState::Lose(const Error& error, std::optional<std::string> unlogged) {
  const std::lock_guard lock(mutex_);
  if (lost()) return false;
  error_ = error;
  unlogged_ = std::move(unlogged);
  MoveTo(starting() ? State::kLostEarly : State::kLost);
  return true;
}

void ConnectionState::End() {
  const std::lock_guard lock(mutex_);
  MoveTo(State::kEnding);
}

void ConnectionState::Close() {
  const std::lock_guard lock(mutex_);
  MoveTo(State::kClosed);
}

Error ConnectionState::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::optional<std::string> ConnectionState::unlogged() const {
  const std::lock_guard lock(mutex_);
  return unlogged_;
}

}  // namespace ferry::transfer
