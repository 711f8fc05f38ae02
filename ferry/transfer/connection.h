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
#include "ferry/transfer/plan.h"
#include "ferry/transfer/readiness.h"
#include "ferry/transfer/region.h"

namespace ferry::transfer {

class ConnectionCore;
class EndpointCore;
struct OperationState;
struct RegionState;

// Memory that transfers may use. Move-only; deregisters when it goes, which waits for the
// operations and peers that are in the memory right now.
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
  // A key that only the peer with this endpoint id may use, for these rights, whatever the region
  // allows others: register with Rights::kNone and give each peer its own. It ends with the region,
  // or by Withdraw(). Errors: kInvalidArgument for a region that was deregistered.
  Result<std::vector<std::byte>> KeyFor(const Uuid& peer, Rights rights);
  // Refuses what the peer begins from now on by keys of its own; what is under way goes on.
  void Withdraw(const Uuid& peer);
  // Refuses further use by anybody, then waits until nobody touches the memory: after kOk it may be
  // freed. kTimedOut leaves it refused but perhaps still touched; call again.
  Status Deregister(Deadline deadline = Deadline::Never());
  const std::shared_ptr<RegionState>& state() const noexcept { return state_.get(); }

 private:
  ProcessShared<RegionState> state_;      // with the table
  ProcessShared<EndpointCore> endpoint_;  // with its other handles
};

// Blocks between one region here and one at the peer; offsets count from the regions' starts. For a
// write `dst` is the peer's side, for a read it is ours.
struct TransferPart {
  const Region* local = nullptr;
  const RemoteRegion* remote = nullptr;
  BlockList blocks;
};

// A checked transfer, for any number of posts on connections to its peer; cheap to copy. The
// regions must stay registered while posts of it are under way.
class PreparedTransfer {
 public:
  explicit PreparedTransfer(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  std::uint64_t bytes() const noexcept { return plan_->bytes; }
  // How its bytes go, and why. Posted on another connection it may be another way: ask the
  // operation.
  PathReport path() const { return PathOf(*plan_); }
  std::size_t slices() const noexcept { return plan_->slices.size(); }
  const std::shared_ptr<const Plan>& plan() const noexcept { return plan_; }

 private:
  std::shared_ptr<const Plan> plan_;  // with its posts
};

struct PostOptions {
  // The operation's own: it ends config.drain_grace after it at the latest, or, while the peer
  // acknowledges more, config.peer_timeout after it. Without one it is config.operation_timeout
  // from now.
  std::optional<Deadline> deadline;
  // With a write: delivered to the peer after all its bytes are in place. At most 64 KiB; empty:
  // none.
  std::span<const std::byte> notification;
  // Of a write or read: every slice carries a CRC32C, which its receiver checks. A mismatch ends
  // the operation by kCorrupt. Without it as config.checksum says.
  bool checksum = false;
  // The operation begins when all that is queued on this stream now is done: a kernel that still
  // writes what is sent, or reads what is overwritten. Until then it can be cancelled, and its
  // deadline counts. The call fails where the stream's device does, or there is none; an operation
  // whose device is lost later ends by kDeviceLost.
  std::optional<cuda::StreamRef> after = std::nullopt;
};

struct ConnectionInfo {
  std::string provider;
  std::string peer;      // address
  std::string endpoint;  // the peer's id
  std::vector<net::LaneInfo> lanes;
  std::size_t bulk_lanes =
      0;  // of them, that carry large transfers: of three or more not the first
  std::uint64_t refused_accesses = 0;  // of the peer, by our checks
  bool checksums = false;              // agreed for everything, by config.checksum of either side
};

// A connection to one peer; copyable handle, any thread. Closed by Close(), or with its endpoint;
// not by letting go of the handle: the peer may still be using it one-sidedly.
//
// Every operation that a call returns ends exactly once, in bounded time: ok, kCancelled,
// kTimedOut, kRefused or kPeerLost. Memory given to it must stay valid, and for a write or send
// unchanged, until then; after the end nothing here touches it.
class Connection {
 public:
  Connection(std::shared_ptr<ConnectionCore> core, std::shared_ptr<EndpointCore> endpoint);

  // Errors: kInvalidArgument for bytes that are no key, or the key of another endpoint than the
  // peer.
  Result<RemoteRegion> Import(std::span<const std::byte> key) const;

  // Checks blocks and rights, merges neighbours, cuts into slices. Errors: kInvalidArgument naming
  // part and block; kRefused for a right that the key does not have.
  Result<PreparedTransfer> PrepareWrite(std::vector<TransferPart> parts) const;
  Result<PreparedTransfer> PrepareRead(std::vector<TransferPart> parts) const;

  // Errors here: kInvalidArgument (another peer's or direction's transfer, a closed region),
  // kUnavailable (config.max_operations under way), kPeerLost. Later ones are the operation's.
  Result<Operation> Write(const PreparedTransfer& transfer, const PostOptions& options = {});
  Result<Operation> Read(const PreparedTransfer& transfer, const PostOptions& options = {});
  // One contiguous piece, prepared and posted.
  Result<Operation> Write(const Region& local, std::uint64_t local_offset,
                          const RemoteRegion& remote, std::uint64_t remote_offset,
                          std::uint64_t bytes);
  Result<Operation> Read(const Region& local, std::uint64_t local_offset,
                         const RemoteRegion& remote, std::uint64_t remote_offset,
                         std::uint64_t bytes);

  // Ends when the peer has the whole message (for a large one: when its receive has). Empty
  // messages are allowed.
  Result<Operation> Send(std::uint64_t tag, std::span<const std::byte> message,
                         const PostOptions& options = {});
  // Takes the oldest message whose tag agrees with `tag` in the bits of `mask`. Errors of the
  // operation: kInvalidArgument for a message larger than the buffer, which is dropped.
  Result<Operation> Recv(std::uint64_t tag, std::uint64_t mask, std::span<std::byte> buffer,
                         const PostOptions& options = {});
  // 1 byte to 64 KiB, copied here. Ends when the peer's queue has it; kUnavailable when that is
  // full.
  Result<Operation> Notify(std::span<const std::byte> bytes, const PostOptions& options = {});
  // The oldest notification. Errors: kTimedOut, kPeerLost (after the last one was taken).
  Result<std::vector<std::byte>> TakeNotification(Deadline deadline);
  // Readable while TakeNotification() would not wait. Errors: kUnavailable (descriptors).
  Result<Readiness> NotificationReadiness() const;

  ConnectionInfo Info() const;
  // The id of the endpoint at the other end, which it has introduced itself by.
  const Uuid& peer() const noexcept;
  // What has gone through it so far; see counters.h. Also after its end.
  ConnectionCounters Counters() const;
  // The last things that happened to it, the oldest first: lanes lost, suspected and replaced,
  // links that changed, accesses refused, operations that ended badly. Of what repeats the 1st,
  // 2nd, 4th, 8th time is kept. The log has them, too, where the connection is lost.
  std::vector<ConnectionEvent> Events() const;
  bool lost() const noexcept;
  // Ends every operation by kCancelled, then closes; the peer sees kPeerLost. Returns when nothing
  // touches memory any more.
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

  ProcessShared<ConnectionCore> core_;    // with the endpoint's table until it is closed
  ProcessShared<EndpointCore> endpoint_;  // with its other handles
};

}  // namespace ferry::transfer
