// Tagged messages (eager and rendezvous) and notifications of a connection.
#pragma once
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/fd.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/number_map.h"
#include "ferry/core/result.h"
#include "ferry/core/seeded_hash.h"
#include "ferry/transfer/gpu/stager.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/operation_state.h"
#include "ferry/transfer/lane/ready_flag.h"
#include "ferry/transfer/memory/held_memory.h"

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

// Notifications of the peer, in their order, until the application takes them. Any thread.
class NotificationQueue {
 public:
  // `memory` is charged for what is kept. Both must outlive the queue.
  NotificationQueue(const Config* config, HeldMemory* memory) : config_(config), memory_(memory) {}

  // Whether there is room for a notification of this size.
  bool HasRoom(std::uint64_t bytes) const;
  void Add(std::vector<std::byte> bytes);
  // Returns false if there is none.
  bool Take(std::vector<std::byte>* bytes);
  // Readable while Take() would return true, and for good after Close(). Errors: kUnavailable
  // (descriptors).
  Result<UniqueFd> Descriptor();
  // None will come any more.
  void Close();

 private:
  const Config* const config_;
  HeldMemory* const memory_;
  mutable std::mutex mutex_;
  std::deque<std::vector<std::byte>> queue_;  // this and the following: under mutex_
  std::uint64_t bytes_ = 0;
  bool closed_ = false;
  ReadyFlag ready_;
};

// Tagged messages and notifications of a connection. A small message is sent at once (eager). A
// large one, or one that finds no room, uses a rendezvous: the sender sends an RTS, the receiver
// answers with a CTS once the receive is posted, and all lanes write the message into the receive's
// buffer like any other write. A FIN ends it. While the peer leaves too many answers
// unacknowledged, further ones wait without their text. Home loop only, except notifications().
class MessageQueue final {
 public:
  // Both must outlive the queue. The context has its pointers already, except to the lanes' owner
  // and to this queue.
  MessageQueue(const LaneContext* context, EventLoop* home);

  void BeginSend(const OperationRef& operation);
  void BeginReceive(const OperationRef& operation);
  // Ends a receive that was cancelled or is late, once nothing writes into its buffer.
  void AbortReceive(const OperationRef& operation, const Error& error);
  // Tells the receiver of an RTS how the message has ended.
  void SendFin(std::uint64_t operation_id, const Status& status);
  // The connection is about to end: a message that still arrives finds no receive, and messages
  // that were kept are dropped.
  void Stop();
  // No lane touches memory any more.
  void Close();

  // Any thread.
  NotificationQueue& notifications() noexcept { return notifications_; }

  // ---- What happens on the first lane.
  //
  // A control frame of a message. An error ends the connection.
  Status OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader);
  // Takes the receive that matches the tag. Null if no receive matches; kInvalidArgument if its
  // buffer is too small.
  Result<OperationRef> TakeReceive(std::uint64_t tag, std::uint64_t bytes);
  // Requeues a receive whose message did not arrive completely; the sender will resend it.
  void PutBackReceive(const OperationRef& receive);
  // Whether there is room for a message without a receive.
  bool MayKeep(std::uint64_t bytes) const;
  // An RTS arrived: a message that waits at the peer.
  void TakeRts(std::uint64_t peer_operation, const wire::TagBody& body);
  // A whole message arrived. `receive`: the receive whose buffer holds it; null if `message` holds
  // its data.
  void OnWholeMessage(const OperationRef& receive, ArrivedMessage message, const Status& intact);
  void OnNotification(std::vector<std::byte> bytes);
  // The peer has acknowledged frames that were kept for that: others may be.
  void OnAcknowledged();
  // The peer has no room for this eager message, which is settled: it waits here as after an RTS.
  void BecomesRts(const OperationRef& operation);

 private:
  // An answer to an RTS that has to wait.
  struct LateAnswer {
    std::uint64_t peer_operation = 0;
    bool cts = false;
    std::uint8_t code = 0;  // of a refusal, as in its frame
  };

  Status OnRts(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnCts(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnFin(const wire::MessageHeader& header, wire::MetaReader* reader);
  Status OnDeclined(const wire::MessageHeader& header, wire::MetaReader* reader);
  Error Malformed(const char* what) const;
  void WriteRequested(const OperationRef& operation, const wire::CtsBody& asked);
  void SendOutcome(wire::Type type, std::uint64_t operation_id, const Status& status);
  void SendDeclined(std::uint64_t operation_id, const Status& status);
  void BeginLanding(const OperationRef& receive, const ArrivedMessage& message);
  void SendCts(std::uint64_t peer_operation, const OperationState& receive);
  bool MustWait(const LateAnswer& answer);

  void TakeMessage(const OperationRef& receive, ArrivedMessage message);
  void TakeOrKeep(ArrivedMessage message);
  // Copies a message that arrived before its receive into GPU memory.
  void LandEarly(const OperationRef& receive);
  void LandPart(const OperationRef& receive, StageSlot slot);
  void OnPartLanded(const OperationRef& receive, std::uint64_t bytes);
  void DropEarly(OperationState* receive);
  bool DeclineForWantOfRoom(std::uint64_t peer_operation);
  // Call after each change of the matcher or early_bytes_.
  void CountKept();

  const LaneContext* const context_;
  EventLoop* const home_;
  OperationHost* const host_;
  NotificationQueue notifications_;
  Matcher matcher_;
  std::uint64_t early_bytes_ = 0;  // of messages that LandEarly copies
  std::uint64_t kept_bytes_ = 0;   // bytes of the matcher and those, as charged to the peer
  std::deque<LateAnswer> late_answers_;
  // Receives in progress, by the sender's operation id.
  std::unordered_map<std::uint64_t, OperationRef, SeededHash> landing_;
};

}  // namespace ferry::transfer
