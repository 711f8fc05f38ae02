// Matches receives with messages by tag and mask.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/number_map.h"
#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

// Bytes charged for keeping a message or notification, beyond its data and what finds it.
inline constexpr std::uint64_t kKeptRecordBytes = 128;
// Bytes charged for an entry of a table of messages, which is a quarter full after it has grown.
inline constexpr std::uint64_t kTableEntryBytes = 160;

// A message that arrived before its receive was posted.
struct ArrivedMessage {
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t peer_operation = 0;
  bool announced = false;       // an RTS: the data is still at the sender
  std::vector<std::byte> data;  // the data, unless `announced`
};

// Matches receives with messages: receives in posting order, messages in arrival order. A receive
// takes a message whose tag equals its own tag in the bits of its mask. Not thread-safe.
//
// Receives with the same mask are in a table keyed by the masked tag, so a message costs one
// look-up per mask in use, however many receives there are. Messages are in such a table for each
// of the first kMaxIndexes masks of receives that were posted while many messages waited; a receive
// with another mask scans the messages.
class Matcher {
 public:
  using Receive = OperationRef;  // shared with the connection's table
  static constexpr std::size_t kMaxIndexes = 8;
  // Up to this many messages are scanned without a table.
  static constexpr std::size_t kFewMessages = 8;

  // Takes the oldest message that matches `receive`; if there is none, queues `receive`.
  // `may_index`: there is memory for a second or further table of messages.
  std::optional<ArrivedMessage> Post(const Receive& receive, bool may_index = true);
  // Takes the oldest receive that matches `tag`; null if there is none.
  Receive TakeReceive(std::uint64_t tag);
  // Reverts TakeReceive: the receive returns to its old place in the order.
  void PutBack(const Receive& receive) { Enqueue(receive); }
  // Queues a message for which TakeReceive returned null.
  void Keep(ArrivedMessage message);
  bool RemoveReceive(const OperationState* receive);
  bool RemoveRts(std::uint64_t peer_operation);

  std::uint64_t kept_bytes() const noexcept { return kept_bytes_; }
  std::size_t kept_messages() const noexcept { return arrived_.size(); }
  // Memory that the messages take, with what finds them: an upper bound.
  std::uint64_t held_bytes() const;
  // What one more would add to that, apart from its data.
  std::uint64_t CostOfNext(bool announced) const;

 private:
  // Position in the order: what was posted, or arrived, earlier has the smaller number.
  using Sequence = std::uint64_t;
  // A queue in sequence order. Most have one item, which needs no allocation.
  template <class T>
  class Queue {
   public:
    bool empty() const noexcept { return first_sequence_ == 0; }
    Sequence first_sequence() const noexcept { return first_sequence_; }  // 0: empty
    const T& first() const noexcept { return first_; }
    void Add(Sequence sequence, T item);
    // Removes the item; returns T() if there is none.
    T Take(Sequence sequence);

   private:
    using Rest = std::map<Sequence, T>;

    Sequence first_sequence_ = 0;
    T first_{};
    std::unique_ptr<Rest> rest_;  // items after the first; null or not empty
  };
  // Queues by a number, such as a masked tag; empty queues are removed.
  template <class T>
  using Queues = NumberMap<Queue<T>>;
  struct Kept {
    ArrivedMessage message;
    Sequence sequence = 0;
  };
  using Arrived = std::list<Kept>;
  struct Index {
    std::uint64_t mask = 0;
    Queues<Arrived::iterator> queues;
  };

  void Enqueue(const Receive& receive);
  // Null if it is not queued.
  Receive Dequeue(const OperationState* receive);
  Arrived::iterator FindMessage(const OperationState& receive, bool may_index);
  Index* IndexOf(std::uint64_t mask, bool may_index);
  std::uint64_t CostOf(std::uint64_t messages, std::uint64_t announced) const;
  static void AddTo(Index* index, Arrived::iterator message);
  static void RemoveFrom(Queues<Arrived::iterator>* queues, std::uint64_t key, Sequence sequence);
  ArrivedMessage Take(Arrived::iterator message);

  std::map<std::uint64_t, Queues<Receive>> posted_;  // by mask
  Sequence last_posted_ = 0;
  Arrived arrived_;
  Sequence last_arrived_ = 0;
  std::vector<Index> indexes_;     // of arrived_
  Queues<Arrived::iterator> rts_;  // by peer_operation, which a faulty peer may repeat
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t announced_ = 0;  // messages in arrived_
};

}  // namespace ferry::transfer
