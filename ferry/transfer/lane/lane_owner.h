// What a lane knows of its connection, and what it reports to it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/matcher.h"
#include "ferry/transfer/lane/operation_state.h"
#include "ferry/transfer/memory/held_memory.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

class GpuSharing;

inline constexpr std::uint64_t kMaxEagerBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxNotificationBytes = 64 * 1024;

// What is constant for all lanes of a connection, from before the first lane is adopted. Owned by
// the connection. What the pointers refer to may be used on any thread.
struct LaneContext {
  const Config* config = nullptr;
  RegionTable* regions = nullptr;
  HeldMemory* memory = nullptr;   // held for the peer
  GpuSharing* sharing = nullptr;  // with the peer
  // Identifies the connection (Accessor::connection, RegionState::only_for).
  const void* connection = nullptr;
  std::uint32_t number = kNoConnection;  // of the connection, in the endpoint (region_openers.h)
  Uuid peer;                             // its endpoint
  net::ProcessHint process;              // that the peer says it is
  std::string peer_name;                 // its address, for messages
  std::uint64_t window_bytes = 0;        // limit of a lane's bytes in flight
  bool checksums = false;                // every frame carries them
  std::size_t lanes = 0;
  std::size_t bulk_lanes = 0;  // those of `lanes` that carry bulk data
};

// The connection as its lanes see it: events of a lane, and what all lanes have in common. Called
// on the lane's loop; none of these blocks or calls back into the lane.
class LaneOwner {
 public:
  // Keeps the connection, and thus its lanes, alive. Shared between the connection's handles and
  // tasks that call into a lane later.
  virtual std::shared_ptr<void> KeepAlive() = 0;

  // ---- What happens to the lane.
  virtual void OnLaneUp(std::uint32_t index, net::LaneInfo info) = 0;
  // The network dropped the lane; a replacement may follow. `loss` is nullopt if the lane was given
  // up before any frame had arrived over it, which says nothing new about its network path.
  virtual void LaneLost(std::uint32_t index, const Error& error,
                        std::optional<net::LaneLoss> loss) = 0;
  // The lane is frozen and will be replaced. `was_heard`: the peer has used it.
  virtual void LaneFrozen(std::uint32_t index, bool was_heard) = 0;
  // Fails the connection because one lane failed. Data that has already arrived on the other lanes
  // is processed first: it may complete operations.
  virtual void LaneFailed(const Error& error) = 0;
  // The peer closed this lane in order. Data still to come on the other lanes is processed first,
  // until they end or drain_grace passes.
  virtual void PeerClosedLane(std::uint32_t index, const Error& error) = 0;
  // The peer, which accepted the connection and cannot dial, requests a replacement for this lane.
  virtual void PeerGaveUpLane(std::uint32_t index) = 0;
  // The lane is closed and everything that waited on it has been resolved.
  virtual void PostLaneClosed(std::uint32_t index) = 0;
  virtual void SetLanePath(std::uint32_t index, const net::PathStats& path) = 0;

  // ---- Operations.
  //
  // The operation's current round of slices is complete.
  virtual void PostRoundDone(const OperationRef& operation) = 0;
  // Hands the operation's remaining slices, some of which were returned, to all lanes that may
  // carry them.
  virtual void DealAgain(const OperationRef& operation) = 0;
  // Fraction (0 to 1) of all bulk data that this lane carries, from measured rates.
  virtual double ShareOf(std::uint32_t index) const = 0;

  // ---- Counters.
  virtual void CountRefusal(const Error& error) = 0;
  virtual void CountMismatch() = 0;

 protected:
  ~LaneOwner() = default;
};

// Where the first lane delivers messages and notifications. Called on that lane's loop, which is
// the connection's home loop.
class MessageSink {
 public:
  // A control frame of a message. An error ends the connection.
  virtual Status OnMessage(const wire::MessageHeader& header, wire::MetaReader* reader) = 0;
  // Takes the receive that matches the tag. Null if no receive matches; kInvalidArgument if its
  // buffer is too small.
  virtual Result<OperationRef> TakeReceive(std::uint64_t tag, std::uint64_t bytes) = 0;
  // Requeues a receive whose message did not arrive completely; the sender will resend it.
  virtual void PutBackReceive(const OperationRef& receive) = 0;
  // Whether there is room for a message without a receive.
  virtual bool MayKeep(std::uint64_t bytes) const = 0;
  // An RTS arrived: a message that waits at the peer.
  virtual void TakeRts(std::uint64_t peer_operation, const wire::TagBody& body) = 0;
  // A whole message arrived. `receive`: the receive whose buffer holds it; null if `message` holds
  // its data.
  virtual void OnWholeMessage(const OperationRef& receive, ArrivedMessage message,
                              const Status& intact) = 0;
  virtual bool MayNotify(std::uint64_t bytes) const = 0;
  virtual void OnNotification(std::vector<std::byte> bytes) = 0;
  // The peer has acknowledged frames that were kept for that: others may be.
  virtual void OnAcknowledged() = 0;
  // The peer has no room for this eager message, which is settled: it waits here as after an RTS.
  virtual void BecomesRts(const OperationRef& operation) = 0;

 protected:
  ~MessageSink() = default;
};

}  // namespace ferry::transfer
