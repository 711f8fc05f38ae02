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
#include "ferry/net/lane_info.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/operation.h"
#include "ferry/transfer/options.h"
#include "ferry/transfer/path.h"
#include "ferry/transfer/readiness.h"
#include "ferry/transfer/region.h"

namespace ferry::transfer {

class ConnectionCore;
class EndpointCore;
struct Plan;
struct PlanPart;
struct OperationState;
struct RegionState;

// Registered memory that transfers may use. Move-only. The destructor deregisters, which blocks
// until operations and peers that are inside the memory have left it. All methods may be called
// from any thread.
class Region {
 public:
  Region(std::shared_ptr<RegionState> state, std::shared_ptr<EndpointCore> endpoint);
  Region(Region&&) = default;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::span<std::byte> memory() const noexcept;
  // What a peer gives to Connection::Import; send it by any way. Whoever has it, and a connection
  // to this endpoint, may use the region as its rights say.
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
  // passes. After kOk the memory may be freed, or registered again: what peers have sent for the
  // former keys is refused. kTimedOut: new accesses stay refused but the memory may still be
  // touched; call again.
  Status Deregister(Deadline deadline = Deadline::Never());

 private:
  friend class Connection;
  ProcessShared<RegionState> state_;      // with the table
  ProcessShared<EndpointCore> endpoint_;  // with its other handles
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
  Direction direction() const noexcept;
  std::uint64_t bytes() const noexcept;
  // How its bytes go, and why. Posted on another connection it may be another way: ask the
  // operation.
  PathReport path() const;

 private:
  friend class Connection;
  explicit PreparedTransfer(std::shared_ptr<const Plan> plan);

  std::shared_ptr<const Plan> plan_;  // with its posts
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
//
// That is the memory of this side. If the connection is lost, bytes of its writes that are on their
// way may still be placed in the peer's memory, also after later writes over another connection.
// They no longer are once the peer has deregistered the region, or its own handle of this
// connection is closed (docs/reliability.md, "After a lost connection").
class Connection {
 public:
  Connection(std::shared_ptr<ConnectionCore> core, std::shared_ptr<EndpointCore> endpoint);

  // Parses a key that the peer made with Region::key() or KeyFor(). Errors: kInvalidArgument for
  // malformed bytes or the key of another endpoint.
  Result<RemoteRegion> Import(std::span<const std::byte> key) const;

  // Checks blocks and rights, merges neighbours, cuts into slices. Can block where both regions are
  // GPU memory: the first transfer between two of them asks the peer whether they can be copied
  // directly, and waits for the answer until `deadline`, at most config.handshake_timeout. Without
  // an answer the transfer takes the path over the network; that is not an error. Errors:
  // kInvalidArgument naming part and block; kRefused for a right that the key does not have.
  Result<PreparedTransfer> PrepareWrite(std::vector<TransferPart> parts,
                                        Deadline deadline = Deadline::Never()) const;
  Result<PreparedTransfer> PrepareRead(std::vector<TransferPart> parts,
                                       Deadline deadline = Deadline::Never()) const;

  // Errors here: kInvalidArgument (another peer's or direction's transfer, a closed region),
  // kUnavailable (config.max_operations in flight), kPeerLost. Later ones are the operation's. Can
  // block, like PrepareWrite and until options.deadline, only for a transfer that was prepared on
  // another connection or whose GPU memory is no longer shared with the peer.
  Result<Operation> Write(const PreparedTransfer& transfer, const WriteOptions& options = {});
  Result<Operation> Read(const PreparedTransfer& transfer, const ReadOptions& options = {});
  // One contiguous piece, prepared and posted; can block like PrepareWrite, until options.deadline.
  Result<Operation> Write(const Region& local, std::uint64_t local_offset,
                          const RemoteRegion& remote, std::uint64_t remote_offset,
                          std::uint64_t bytes, const WriteOptions& options = {});
  Result<Operation> Read(const Region& local, std::uint64_t local_offset,
                         const RemoteRegion& remote, std::uint64_t remote_offset,
                         std::uint64_t bytes, const ReadOptions& options = {});

  // Ends when the peer has the whole message; a large message ends when its receive has it. Empty
  // messages are allowed.
  Result<Operation> Send(std::uint64_t tag, std::span<const std::byte> message,
                         const SendOptions& options = {});
  // Takes the oldest message whose tag agrees with `tag` in the bits of `mask`. Errors of the
  // operation: kInvalidArgument for a message larger than the buffer, which is dropped.
  Result<Operation> Recv(std::uint64_t tag, std::uint64_t mask, std::span<std::byte> buffer,
                         const RecvOptions& options = {});
  // 1 byte to 64 KiB, copied here. Ends when the peer's queue has it; kUnavailable when that is
  // full.
  Result<Operation> Notify(std::span<const std::byte> bytes, const NotifyOptions& options = {});
  // The oldest notification. Errors: kTimedOut, kPeerLost (after the last one was taken).
  Result<std::vector<std::byte>> TakeNotification(Deadline deadline);
  // A descriptor that is readable while TakeNotification() would not block. Errors: kUnavailable
  // (out of file descriptors).
  Result<Readiness> NotificationReadiness() const;

  ConnectionInfo Info() const;
  // Endpoint id of the peer, as it gave it in the handshake.
  const Uuid& peer() const noexcept;
  // How the peer has identified itself, which the endpoint's check has accepted; a view that lives
  // as long as this handle. Empty where this side has dialed.
  std::span<const std::byte> identity() const noexcept;
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
  Result<PreparedTransfer> Prepare(Direction direction, std::vector<TransferPart> parts,
                                   Deadline deadline) const;
  Result<std::shared_ptr<const Plan>> Route(Direction direction, std::vector<PlanPart> parts,
                                            Deadline deadline) const;
  Result<std::shared_ptr<const Plan>> UseShares(std::shared_ptr<const Plan> plan,
                                                Deadline deadline) const;
  Result<Operation> Post(Direction direction, const PreparedTransfer& transfer,
                         const WriteOptions& options);
  Result<Operation> Submit(std::shared_ptr<OperationState> state, std::optional<Deadline> deadline,
                           std::optional<cuda::StreamRef> after);

  ProcessShared<ConnectionCore> core_;    // shared with the endpoint's table until closed
  ProcessShared<EndpointCore> endpoint_;  // shared with other handles of the endpoint
};

}  // namespace ferry::transfer
