// Tagged messages (eager and rendezvous) and notifications of a connection.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ferry/core/event_loop.h"
#include "ferry/core/seeded_hash.h"
#include "ferry/transfer/connection/notification_queue.h"
#include "ferry/transfer/gpu/stager.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/lane_owner.h"
#include "ferry/transfer/lane/matcher.h"
#include "ferry/transfer/lane/operation_state.h"

namespace ferry::transfer {

// The connection as its messages see it. Home loop.
class MessageHost {
 public:
  // Keeps the connection alive.
  virtual std::shared_ptr<void> KeepAlive() = 0;
  // Sends a sequenced frame over the first lane (LaneEngine::SendSequenced).
  virtual void Send(wire::Type type, std::uint64_t operation_id, std::span<const std::byte> body,
                    std::span<const std::byte> payload, OperationRef operation) = 0;
  // Whether a further RTS may be sent (LaneEngine::MaySendRts).
  virtual bool MaySendRts() const = 0;
  // Whether a further CTS or refusal may be sent (LaneEngine::MayAnswer).
  virtual bool MayAnswer() const = 0;
  // Stops writing an arriving message into the receive's buffer.
  virtual void DropMessage(const OperationState& receive) = 0;
  // Makes the lanes that have opened the region, which was removed, stop receiving into it, then
  // runs `then`.
  virtual void Revoke(const std::shared_ptr<RegionState>& region, EventLoop::Task then) = 0;

  // Null if it has ended.
  virtual OperationRef Find(std::uint64_t operation_id) const = 0;
  // Ends an operation; does nothing if it has ended.
  virtual void End(OperationState& operation, Status status) = 0;
  // Sends the operation's plan, slice by slice.
  virtual void BeginSlices(const OperationRef& operation) = 0;
  virtual void Fail(const Error& error) = 0;

 protected:
  ~MessageHost() = default;
};

// Tagged messages and notifications of a connection. A small message is sent at once (eager). A
// large one, or one that finds no room, uses a rendezvous: the sender sends an RTS, the receiver
// answers with a CTS once the receive is posted, and all lanes write the message into the receive's
// buffer like any other write. A FIN ends it. While the peer leaves too many answers
// unacknowledged, further ones wait without their text. Home loop only, except notifications().
class MessageQueue final : public MessageSink {
 public:
  // All must outlive the queue.
  MessageQueue(const LaneContext* context, EventLoop* home, MessageHost* host);

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

  // MessageSink
  Status OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader) override;
  Result<OperationRef> TakeReceive(std::uint64_t tag, std::uint64_t bytes) override;
  void PutBackReceive(const OperationRef& receive) override;
  bool MayKeep(std::uint64_t bytes) const override;
  void TakeRts(std::uint64_t peer_operation, const wire::TagBody& body) override;
  void OnWholeMessage(const OperationRef& receive, ArrivedMessage message,
                      const Status& intact) override;
  bool MayNotify(std::uint64_t bytes) const override { return notifications_.HasRoom(bytes); }
  void OnNotification(std::vector<std::byte> bytes) override;
  void OnAcknowledged() override;
  void BecomesRts(const OperationRef& operation) override;

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
  MessageHost* const host_;
  NotificationQueue notifications_;
  Matcher matcher_;
  std::uint64_t early_bytes_ = 0;  // of messages that LandEarly copies
  std::uint64_t kept_bytes_ = 0;   // bytes of the matcher and those, as charged to the peer
  std::deque<LateAnswer> late_answers_;
  // Receives in progress, by the sender's operation id.
  std::unordered_map<std::uint64_t, OperationRef, SeededHash> landing_;
};

}  // namespace ferry::transfer
