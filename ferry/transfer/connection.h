// Public handles for registered memory, prepared transfers and connections.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/event_ring.h"
#include "ferry/transfer/operation.h"
#include "ferry/transfer/readiness.h"
#include "ferry/transfer/region.h"

namespace ferry::transfer {

class EndpointCore;

// Registered memory that transfers may use. Move-only. The destructor deregisters, which blocks
// until operations and peers that are inside the memory have left it. All methods may be called
// from any thread.
class Region {
 public:
  Region(std::shared_ptr<RegionState> state, std::shared_ptr<EndpointCore> endpoint);
  Region(Region&&) = default;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::span<std::byte> memory() const noexcept { return state_->memory; }
  // Serialized key for Connection::Import on the peer; send it by any channel. Whoever has it, and
  // a connection to this endpoint, may use the region within its rights: treat it as a secret.
  std::vector<std::byte> key() const;
  RemoteRegion remote() const;
  // A key that only the peer with this endpoint id may use, limited to `rights`, independent of the
  // rights that the region grants to all peers: register with Rights::kNone and give each peer its
  // own key. The key is valid until the region is deregistered or Withdraw() is called. Errors:
  // kInvalidArgument if the region was deregistered.
  Result<std::vector<std::byte>> KeyFor(const Uuid& peer, Rights rights);
  // Revokes all keys that KeyFor() made for `peer`: accesses that begin later are refused, accesses
  // in flight continue.
  void Withdraw(const Uuid& peer);
  // Refuses further use of the region, then blocks until nobody touches the memory or `deadline`
  // passes. After kOk the memory may be freed. kTimedOut: new accesses stay refused but the memory
  // may still be touched; call again.
  Status Deregister(Deadline deadline = Deadline::Never());
  const std::shared_ptr<RegionState>& state() const noexcept { return state_.get(); }

 private:
  ProcessShared<RegionState> state_;      // shared with the region table
  ProcessShared<EndpointCore> endpoint_;  // shared with other handles of the endpoint
};

// Blocks between one local and one remote region. Offsets are in bytes from the start of each
// region. For a write `dst` is the remote side, for a read the local side.
struct TransferPart {
  const Region* local = nullptr;
  const RemoteRegion* remote = nullptr;
  BlockList blocks;
};

// A validated transfer that can be posted any number of times on connections to the same peer.
// Cheap to copy. Its regions must stay registered while an operation that uses it is in flight.
class PreparedTransfer {
 public:
  explicit PreparedTransfer(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  std::uint64_t bytes() const noexcept { return plan_->bytes; }
  // The path that its bytes take, and why. Posted on another connection it may take another path:
  // ask Operation::path().
  PathReport path() const { return PathOf(*plan_); }
  std::size_t slices() const noexcept { return plan_->slices.size(); }
  const std::shared_ptr<const Plan>& plan() const noexcept { return plan_; }

 private:
  std::shared_ptr<const Plan> plan_;  // shared with the operations that use it
};

struct PostOptions {
  // Deadline of this operation. It ends at most config.drain_grace after the deadline, or, while
  // the peer keeps acknowledging, at most config.peer_timeout after it. Default:
  // config.operation_timeout from now.
  std::optional<Deadline> deadline;
  // Write only: delivered to the peer's notification queue after all bytes are in place. At most 64
  // KiB; empty: no notification.
  std::span<const std::byte> notification;
  // Write or read only: every slice carries a CRC32C that its receiver checks. A mismatch ends the
  // operation with kCorrupt. Default: config.checksum.
  bool checksum = false;
  // The operation begins once all work queued on this stream so far is complete, such as a kernel
  // that writes the source or reads the destination. Until then it can be cancelled, and its
  // deadline already runs. The call fails if the stream's device fails or does not exist; an
  // operation whose device is lost later ends with kDeviceLost.
  std::optional<cuda::StreamRef> after = std::nullopt;
};

struct ConnectionInfo {
  std::string provider;
  std::string peer;      // address of the peer
  std::string endpoint;  // the peer's id
  std::vector<net::LaneInfo> lanes;
  std::size_t bulk_lanes = 0;  // lanes for large transfers: all but the first of three or more
  std::uint64_t refused_accesses = 0;  // accesses of the peer that our checks refused
  bool checksums = false;              // on for all transfers: config.checksum of either side
};

// A connection to one peer. A copyable handle; all methods may be called from any thread. Close()
// or the end of the endpoint closes it; dropping the handle does not, because the peer may still be
// using one-sided operations.
//
// Every operation that a call returns ends exactly once, in bounded time: ok, or with an error such
// as kCancelled, kTimedOut, kRefused or kPeerLost. Its memory must stay valid until then, and for a
// write or send unchanged; afterwards the library no longer touches it.
class Connection {
 public:
  Connection(std::shared_ptr<ConnectionCore> core, std::shared_ptr<EndpointCore> endpoint);

  // Parses a key that the peer made with Region::key() or KeyFor(). Errors: kInvalidArgument for
  // malformed bytes or the key of another endpoint.
  Result<RemoteRegion> Import(std::span<const std::byte> key) const;

  // Checks blocks and rights, merges adjacent blocks and cuts them into slices. If GPU memory is
  // involved the call may block, for at most config.handshake_timeout, while it asks the peer how
  // to reach that memory. Errors: kInvalidArgument naming part and block; kRefused if the key does
  // not grant the right.
  Result<PreparedTransfer> PrepareWrite(std::vector<TransferPart> parts) const;
  Result<PreparedTransfer> PrepareRead(std::vector<TransferPart> parts) const;

  // Posts a prepared transfer; does not wait for the peer. Errors of the call: kInvalidArgument
  // (transfer to another peer or in the other direction, closed region), kUnavailable
  // (config.max_operations in flight), kPeerLost. Later errors are reported by the operation.
  Result<Operation> Write(const PreparedTransfer& transfer, const PostOptions& options = {});
  Result<Operation> Read(const PreparedTransfer& transfer, const PostOptions& options = {});
  // Prepares and posts one contiguous block. Offsets and length in bytes; blocks and errors as for
  // PrepareWrite and Write.
  Result<Operation> Write(const Region& local, std::uint64_t local_offset,
                          const RemoteRegion& remote, std::uint64_t remote_offset,
                          std::uint64_t bytes);
  Result<Operation> Read(const Region& local, std::uint64_t local_offset,
                         const RemoteRegion& remote, std::uint64_t remote_offset,
                         std::uint64_t bytes);

  // Ends when the peer has the whole message; a large message ends when its receive has it. Empty
  // messages are allowed.
  Result<Operation> Send(std::uint64_t tag, std::span<const std::byte> message,
                         const PostOptions& options = {});
  // Receives the oldest message whose tag equals `tag` in the bits set in `mask`. The operation
  // ends with kInvalidArgument if the message is larger than the buffer; the message is dropped
  // then.
  Result<Operation> Recv(std::uint64_t tag, std::uint64_t mask, std::span<std::byte> buffer,
                         const PostOptions& options = {});
  // Sends a notification of 1 byte to 64 KiB; the bytes are copied before the call returns. Ends
  // when the peer has queued it, or with kUnavailable if that queue is full.
  Result<Operation> Notify(std::span<const std::byte> bytes, const PostOptions& options = {});
  // Takes the oldest notification; blocks until there is one or the deadline passes. Errors:
  // kTimedOut, kPeerLost (once the queue is empty).
  Result<std::vector<std::byte>> TakeNotification(Deadline deadline);
  // A descriptor that is readable while TakeNotification() would not block. Errors: kUnavailable
  // (out of file descriptors).
  Result<Readiness> NotificationReadiness() const;

  ConnectionInfo Info() const;
  // Endpoint id of the peer, as it gave it in the handshake.
  const Uuid& peer() const noexcept;
  // Counters of this connection so far (counters.h); valid after it has ended, too.
  ConnectionCounters Counters() const;
  // The latest events of this connection, oldest first: lanes lost, suspected and replaced, link
  // changes, refused accesses, operations that failed. Of a repeated event the 1st, 2nd, 4th, 8th
  // ... are kept. They are also logged when the connection is lost.
  std::vector<ConnectionEvent> Events() const;
  bool lost() const noexcept;
  // Ends every operation with kCancelled, then closes; the peer sees kPeerLost. Blocks until
  // nothing touches memory any more.
  void Close();

 private:
  Result<PreparedTransfer> Prepare(Direction direction, std::vector<TransferPart> parts) const;
  Result<std::shared_ptr<const Plan>> Route(Direction direction, std::vector<PlanPart> parts,
                                            Deadline deadline) const;
  Result<std::shared_ptr<const Plan>> UseShares(std::shared_ptr<const Plan> plan,
                                                Deadline deadline) const;
  Result<Operation> Post(Direction direction, const PreparedTransfer& transfer,
                         const PostOptions& options);
  Result<Operation> Submit(std::shared_ptr<OperationState> state, const PostOptions& options);

  ProcessShared<ConnectionCore> core_;    // shared with the endpoint's table until closed
  ProcessShared<EndpointCore> endpoint_;  // shared with other handles of the endpoint
};

}  // namespace ferry::transfer
