// The open connections of an endpoint, and those that wait to be accepted.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/lane/ready_flag.h"
#include "ferry/transfer/stats/counter_aggregator.h"

namespace ferry::transfer {

class ConnectionCore;

// The open connections of an endpoint, by number, and the queue of those that peers have made and
// nobody has accepted yet. Counts those that have ended. Any thread.
class ConnectionTable {
 public:
  using Connection = std::shared_ptr<ConnectionCore>;  // with handles and tasks

  // Gives the connection a number and keeps it until Forget(). False after Close(): then All() may
  // have been asked already, and nobody would close the connection.
  [[nodiscard]] bool Keep(const Connection& connection);
  // The connection is closed: also leaves the queue.
  void Forget(const ConnectionCore* connection);
  // Null if the connection has closed.
  Connection Find(std::uint32_t number) const;
  // The one that a peer has dialed and that was agreed to have this number and token; null if there
  // is none or if it is lost.
  Connection FindAgreed(std::uint32_t number, const Uuid& token) const;
  // A copy: connections leave the table meanwhile.
  std::vector<Connection> All() const;
  // How many of them peers have dialed.
  std::size_t FromOutside() const;
  // Fills in only what concerns connections. Locks the table while it sums up, which takes
  // microseconds per connection.
  EndpointCounters Counters() const;

  // Queues a kept connection for TakeAccepted(); not after Close().
  void Enqueue(const Connection& connection);
  // The oldest in the queue, or null.
  Connection TakeAccepted();
  // A descriptor that is readable while the queue holds a connection, and from Close() on. Errors:
  // kUnavailable (descriptors).
  Result<UniqueFd> AcceptDescriptor();

  // Empties the queue. From here on no connection is kept or queued.
  void Close();
  // Blocks until every connection has closed.
  void AwaitEmpty();

 private:
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::unordered_set<Connection> connections_;  // until closed
  std::vector<Connection> by_number_;           // the same connections; null: free
  std::vector<std::uint32_t> free_numbers_;     // free indexes in by_number_
  std::deque<Connection> accepted_;             // until taken
  ReadyFlag accept_ready_;                      // set for good once closed
  bool closed_ = false;
  CounterAggregator aggregator_;
};

}  // namespace ferry::transfer
