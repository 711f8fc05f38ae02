#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/number_map.h"
#include "ferry/transfer/operation_state.h"

namespace ferry::transfer {

// The cost of keeping a message, or a notification, beside its bytes.
inline constexpr std::uint64_t kKeptRecordBytes = 96;

// A message that came before its receive.
struct ArrivedMessage {
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t peer_operation = 0;
  bool offered = false;         // the bytes are still at the sender
  std::vector<std::byte> data;  // otherwise
};

// Pairs receives with messages: first posted, first matched; first arrived, first taken. A receive
// takes a message whose tag agrees with its own in the bits of its mask. One thread.
//
// Receives with the same mask are in a table by the bits that the mask leaves of their tags, so a
// message costs one look-up for each mask in use, however many receives there are. Messages are in
// such a table for each of the first kMaxIndexes masks that receives came with while many messages
// were here; a receive with yet another mask walks the messages.
class Matcher {
 public:
  using Receive = std::shared_ptr<OperationState>;  // with the connection's table
  static constexpr std::size_t kMaxIndexes = 8;
  // So few messages are walked.
  static constexpr std::size_t kFewMessages = 8;

  // The oldest message that `receive` takes, which leaves the queue; else `receive` is queued.
  std::optional<ArrivedMessage> Post(const Receive& receive);
  // The oldest receive that takes `tag`, which leaves the queue; else null.
  Receive TakeReceive(std::uint64_t tag);
  // Undoes TakeReceive: the receive is where it was in the order.
  void PutBack(const Receive& receive) { Enqueue(receive); }
  // Queues a message for which TakeReceive gave null.
  void Keep(ArrivedMessage message);
  bool RemoveReceive(const OperationState* receive);
  bool RemoveOffer(std::uint64_t peer_operation);

  std::uint64_t kept_bytes() const noexcept { return kept_bytes_; }
  std::size_t kept_messages() const noexcept { return arrived_.size(); }

 private:
  // What was posted, or has arrived, before has the smaller one.
  using Sequence = std::uint64_t;
  // In order. Most have one item, which needs no memory of its own.
  template <class T>
  class Queue {
   public:
    bool empty() const noexcept { return first_sequence_ == 0; }
    Sequence first_sequence() const noexcept { return first_sequence_; }  // 0: empty
    const T& first() const noexcept { return first_; }
    void Add(Sequence sequence, T item);
    // The item, or T() where there is none.
    T Take(Sequence sequence);

   private:
    using Rest = std::map<Sequence, T>;

    Sequence first_sequence_ = 0;
    T first_{};
    std::unique_ptr<Rest> rest_;  // those after the first; null or not empty
  };
  // By a number, such as the bits of the tag that a mask leaves; none empty.
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
  // Null where it is not queued.
  Receive Dequeue(const OperationState* receive);
  Arrived::iterator FindMessage(const OperationState& receive);
  Index* IndexOf(std::uint64_t mask);
  static void AddTo(Index* index, Arrived::iterator message);
  static void RemoveFrom(Queues<Arrived::iterator>* queues, std::uint64_t key, Sequence sequence);
  ArrivedMessage Take(Arrived::iterator message);

  std::map<std::uint64_t, Queues<Receive>> posted_;  // by mask
  Sequence last_posted_ = 0;
  Arrived arrived_;
  Sequence last_arrived_ = 0;
  std::vector<Index> indexes_;        // of arrived_
  Queues<Arrived::iterator> offers_;  // by peer_operation, which a faulty peer may use twice
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace ferry::transfer
