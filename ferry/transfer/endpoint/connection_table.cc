// The open connections of an endpoint, and those that wait to be accepted.
#include "ferry/transfer/endpoint/connection_table.h"

#include <algorithm>
#include <utility>

#include "ferry/transfer/connection/connection_core.h"

namespace ferry::transfer {

bool ConnectionTable::Keep(const Connection& connection) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (free_numbers_.empty()) {
    free_numbers_.push_back(static_cast<std::uint32_t>(by_number_.size()));
    by_number_.emplace_back();
  }
  connection->SetNumber(free_numbers_.back());
  free_numbers_.pop_back();
  by_number_[connection->number()] = connection;
  connections_.insert(connection);
  aggregator_.OnBegin(connection->peer_name(), !connection->monitor().called());
  return true;
}

void ConnectionTable::Forget(const ConnectionCore* connection) {
  Connection last;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(connections_.begin(), connections_.end(),
                               [&](const auto& kept) { return kept.get() == connection; });
  if (it == connections_.end()) return;
  last = *it;
  connections_.erase(it);
  by_number_[last->number()].reset();
  free_numbers_.push_back(last->number());
  aggregator_.OnEnd(last->Counters(), last->was_lost());
  // Gone before anybody took it.
  accepted_.erase(std::remove(accepted_.begin(), accepted_.end(), last), accepted_.end());
  changed_.notify_all();
}

ConnectionTable::Connection ConnectionTable::Find(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  return number < by_number_.size() ? by_number_[number] : nullptr;
}

// Compares tokens in constant time. Only connections that the peer has dialed can be rejoined by
// it.
ConnectionTable::Connection ConnectionTable::FindAgreed(std::uint32_t number,
                                                        const Uuid& token) const {
  const std::lock_guard lock(mutex_);
  for (const Connection& connection : connections_) {
    const Peer& peer = connection->peer();
    const bool same =
        peer.connection == number && EqualInConstantTime(peer.token.bytes, token.bytes);
    if (same && !connection->monitor().called() && !connection->lost()) return connection;
  }
  return nullptr;
}

std::vector<ConnectionTable::Connection> ConnectionTable::All() const {
  const std::lock_guard lock(mutex_);
  return {connections_.begin(), connections_.end()};
}

std::size_t ConnectionTable::FromOutside() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& connection) { return !connection->monitor().called(); }));
}

// Under the mutex, so that a connection is counted either as open or as ended, and totals never
// decrease.
EndpointCounters ConnectionTable::Counters() const {
  const std::lock_guard lock(mutex_);
  std::vector<ConnectionCounters> open;
  std::uint64_t lost = 0;
  open.reserve(connections_.size());
  for (const Connection& connection : connections_) {
    if (connection->was_lost()) ++lost;
    open.push_back(connection->Counters());
  }
  return aggregator_.Snapshot(std::move(open), lost);
}

void ConnectionTable::Enqueue(const Connection& connection) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  accepted_.push_back(connection);
  accept_ready_.Set(true);
}

ConnectionTable::Connection ConnectionTable::TakeAccepted() {
  const std::lock_guard lock(mutex_);
  Connection connection;
  if (!accepted_.empty()) {
    connection = std::move(accepted_.front());
    accepted_.pop_front();
  }
  if (accepted_.empty() && !closed_) accept_ready_.Set(false);
  return connection;
}

Result<UniqueFd> ConnectionTable::AcceptDescriptor() {
  const std::lock_guard lock(mutex_);
  return accept_ready_.Descriptor(!accepted_.empty() || closed_);
}

void ConnectionTable::Close() {
  const std::lock_guard lock(mutex_);
  accepted_.clear();
  closed_ = true;
  accept_ready_.Set(true);
}

void ConnectionTable::AwaitEmpty() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return connections_.empty(); });
}

}  // namespace ferry::transfer
