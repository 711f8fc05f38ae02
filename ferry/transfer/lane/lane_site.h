// What surrounds a lane: its limits, what it shares with its connection, and what it reports to it.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/core/units.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/operation_state.h"
#include "ferry/transfer/memory/held_memory.h"
#include "ferry/transfer/memory/region_openers.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

class GpuSharing;
class LaneOwner;
class MessageQueue;
class OperationHost;

// ---- Costs and limits, in bytes, of the memory that a lane holds for its peer and asks its peer
// to hold. Both sides count the same way, so a peer of this release never asks for more than it is
// guaranteed.
//
// Cost of an answer to a read of `blocks` blocks, from the request until the answer is sent: the
// frame and its block list, counted twice because GPU memory needs a second list.
constexpr std::uint64_t AnswerCost(std::uint64_t blocks) { return 640 + 24 * blocks; }
// A read is requested only while those in flight cost less than this.
constexpr std::uint64_t AskBudget(std::size_t lanes) {
  return std::max<std::uint64_t>(6 * kKiB, 192 * kKiB / lanes);
}
// A peer may have at most twice this many reads in flight on one lane.
inline constexpr std::size_t kMaxReplies = 64;
// Cost of the record of an answer, until the peer acknowledges the answer.
inline constexpr std::uint64_t kRecordBytes = 128;
// Cost of a frame without its metadata, and of one that is kept, with its record.
inline constexpr std::uint64_t kPlainBytes = 256;
inline constexpr std::uint64_t kKeptFrameBytes = 384;
// What a lane may need at once for its receive buffer, free frames, answers, refusals and the lists
// of the frame that is arriving. A connection has that much room for each of its lanes, whatever
// else it holds.
inline constexpr std::uint64_t kLaneReserve = 256 * kKiB;
// Refusals queued with their text; further ones wait in the RefusalLog without it.
inline constexpr std::size_t kMaxNacks = 8;
inline constexpr std::size_t kMaxRefusalText = 320;
// Sequenced frames that a lane leaves unacknowledged, apart from messages and answers.
inline constexpr std::size_t kMaxUnacked = 4096;
// Refusals sent to a replacement; they fit one frame.
inline constexpr std::size_t kMaxRefusals = 4096;
// After this many slices an acknowledgement is no longer delayed until the loop is idle, so a
// sender needs twice as many in flight.
inline constexpr std::uint64_t kAckSlices = 2;
// Frames that wait for an earlier copy. Further ones wait in the socket: copies end whatever the
// peer does.
inline constexpr std::size_t kMaxLandingFrames = 1024;
// Capacity that the buffers of a free frame, and of a lane between two payloads, may keep.
inline constexpr std::size_t kSmallMeta = 512;
inline constexpr std::size_t kSmallList = 256;
// Bytes of all free frames of a lane.
inline constexpr std::size_t kMaxFreeBytes = 64 * kKiB;
// With this many plain frames queued, frames that are repeated anyway are skipped.
inline constexpr std::size_t kMaxPlain = 256;

// ---- The connection and its lanes.

inline constexpr std::uint64_t kMaxEagerBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxNotificationBytes = 64 * 1024;

// How the lanes of a connection share bulk data, by their rates. Any thread.
class LaneShares {
 public:
  // Lanes before `first_bulk` carry bulk only while they replace all others.
  LaneShares(std::size_t lanes, std::size_t first_bulk);

  // The lane's rate has been measured anew, in bytes per second; not 0.
  void SetRate(std::size_t lane, std::uint64_t rate);
  // Fraction (0 to 1) of all bulk data that this lane carries. Lanes whose rate is not known count
  // as the mean of the others. Cheap: for each slice that is pulled.
  double ShareOf(std::size_t lane) const noexcept {
    return shares_[lane].load(std::memory_order_relaxed);
  }

 private:
  const std::size_t first_bulk_;
  std::mutex mutex_;
  std::vector<std::uint64_t> rates_;         // under mutex_; 0: not known
  std::vector<std::atomic<double>> shares_;  // written under mutex_
};

// What is constant for all lanes of a connection, from before the first lane is adopted. Owned by
// the connection. What the pointers refer to may be used on any thread, but for the interfaces and
// the messages, which say their threads.
struct LaneContext {
  const Config* config = nullptr;
  RegionTable* regions = nullptr;
  HeldMemory* memory = nullptr;   // held for the peer
  GpuSharing* sharing = nullptr;  // with the peer
  LaneShares* shares = nullptr;
  LaneOwner* owner = nullptr;
  OperationHost* operations = nullptr;
  MessageQueue* messages = nullptr;  // used by the first lane only, on the home loop
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

// What happens to the connection's operations because of their slices and messages. None of these
// blocks.
class OperationHost {
 public:
  // ---- Slices. On the loop of any lane, into which they do not call back.
  //
  // The operation's current round of slices is complete.
  virtual void PostRoundDone(const OperationRef& operation) = 0;
  // Hands the operation's remaining slices, some of which were returned, to all lanes that may
  // carry them.
  virtual void DealAgain(const OperationRef& operation) = 0;

  // ---- Messages. On the home loop; they may call the first lane, and others that live there.
  //
  // Null if it has ended.
  virtual OperationRef Find(std::uint64_t operation_id) const = 0;
  // Ends an operation; does nothing if it has ended.
  virtual void End(OperationState& operation, Status status) = 0;
  // Sends the operation's plan, slice by slice.
  virtual void BeginSlices(const OperationRef& operation) = 0;
  virtual void Fail(const Error& error) = 0;
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

 protected:
  ~OperationHost() = default;
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

  // ---- Counters.
  virtual void CountRefusal(const Error& error) = 0;
  virtual void CountMismatch() = 0;

 protected:
  ~LaneOwner() = default;
};

// Incremented on the lane's loop, read by any thread. Fields as in LaneTraffic.
struct LaneCounts {
  LoopCounter bytes_sent;
  LoopCounter bytes_received;
  LoopCounter frames_sent;
  LoopCounter frames_received;
  LoopCounter payload_bytes_sent;
  LoopCounter payload_bytes_received;
  LoopCounter retries;
  LoopCounter retransmits;
};

// Where a lane is. The same for all its parts, which outlive neither the lane nor its connection.
struct LaneSite {
  const LaneContext& context;
  EventLoop* loop;
  std::uint32_t index;
  LaneCounts* counts;
  OpenedRegions* opened;  // by this lane

  Accessor accessor() const {
    return {context.connection, context.peer, context.number, index, opened};
  }
  // Limit of the sequenced frames that a peer with our settings has in flight on this lane. The
  // first lane has the messages, too.
  std::size_t max_sequenced() const;
};

// The error that ends the connection because of a frame that no peer of this release sends.
Error MalformedFrame(const LaneSite& site, const char* what);

}  // namespace ferry::transfer
