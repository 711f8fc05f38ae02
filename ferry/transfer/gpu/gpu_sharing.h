// GPU memory shared between the two sides of a connection on one machine, by CUDA IPC.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/loop/background_tasks.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"
#include "ferry/cuda/resources.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/memory/plan.h"
#include "ferry/transfer/memory/region_table.h"

namespace ferry::transfer {

class DeviceMemory;
class SharingHost;

// Memory of a peer that one GPU of this process can access. Owners: the connection and the copies
// in flight; when the last of them releases it, a background task unmaps it.
class PeerMemory {
 public:
  struct Mapped {
    int gpu = 0;  // ordinal of the GPU that can access it
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;             // usable size
    cuda::ImportedBuffer imported = {};  // if it belongs to another process
    // If it belongs to this process: the peer's region, for as long as the peer shares it.
    std::optional<std::weak_ptr<const RegionPin>> here = {};
  };
  // The background task calls `gone` after unmapping, when nothing here accesses the memory any
  // more.
  PeerMemory(Mapped mapped, BackgroundTasks* background_tasks, UniqueFunction<void()> gone);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int gpu() const noexcept { return mapped_.gpu; }
  std::uint64_t address() const noexcept { return mapped_.address; }
  std::uint64_t bytes() const noexcept { return mapped_.bytes; }
  // Sets `owner` to an owner that a copy holds until its end, so that a region of this process
  // stays registered. Returns false if the memory is no longer shared.
  bool Keep(std::shared_ptr<const RegionPin>* owner) const;

 private:
  Mapped mapped_;
  BackgroundTasks* const background_tasks_;
  UniqueFunction<void()> gone_;
};

// Publishes a region within this process under an unguessable token, for the other end of one
// connection: a peer in the same process cannot map the memory by CUDA IPC and does not need to.
// Any thread.
class LocalShare {
 public:
  // `connection`: a secret of the connection, the same at both ends. `end`: GpuSharing::id() of the
  // end that shares.
  LocalShare(const std::shared_ptr<const RegionPin>& region, const Uuid& connection,
             std::uint64_t end);
  LocalShare(const LocalShare&) = delete;
  LocalShare& operator=(const LocalShare&) = delete;
  ~LocalShare();

  const Uuid& token() const noexcept { return token_; }
  // For the end `end` of this connection. Null if the other end has not shared a region under this
  // token.
  static std::shared_ptr<const RegionPin> Find(const Uuid& token, const Uuid& connection,
                                               std::uint64_t end);

 private:
  const Uuid token_ = Uuid::Random();
};

// Why a part of a transfer goes over the lanes.
inline constexpr const char* kHostMemoryHere = "the memory here is host memory";

// Tracks which GPU memory the two sides of a connection on one machine have shared, so that
// transfers between GPUs can bypass TCP. Both sides share only with a process that is proved to be
// our user's on this machine (net/machine/socket_owner.h): a handle opens a whole allocation, and
// whoever has read it can pass it on. The side that begins an operation lets the peer map its
// memory (CUDA IPC). The peer, whose region the operation names, checks rights and bounds as for
// any access and copies. So nobody reaches a region without its owner's consent.
class GpuSharing {
 public:
  explicit GpuSharing(SharingHost* connection);
  // The number of this connection and no other that this process has, or had; not 0.
  std::uint64_t id() const noexcept { return id_; }
  // Call before the connection is started. `memory` must outlive this object.
  void SetMemory(DeviceMemory* memory) { memory_ = memory; }

  // ---- Own memory.
  //
  // The number under which the peer knows the memory, or the reason why bytes use the lanes.
  struct Route {
    std::uint32_t share = 0;  // 0: use the lanes
    std::string why;
  };
  // On the first use of a region together with a GPU of the peer (number as in a key), asks the
  // peer to map it. Does not wait. Any thread.
  void Ask(const std::shared_ptr<RegionState>& local, std::uint8_t remote_gpu);
  // Blocks until the answer to Ask() arrives or the deadline passes; a share whose answer was late
  // is not waited for again. Not for a thread that drives a loop.
  Route RouteTo(const std::shared_ptr<RegionState>& local, std::uint8_t remote_gpu,
                Deadline deadline);
  // Marks the plan's shares as used by an operation, which keeps them from being taken back.
  // Returns false if one of them is gone. Any thread.
  bool BeginUse(const Plan& plan);
  // Counterpart of BeginUse() when the operation has ended. Home loop.
  void EndUseOnLoop(const Plan& plan);
  // Makes the peer unmap the region's memory once no operation uses it. Home loop.
  void TakeBackOnLoop(const RegionState* region);

  // ---- The peer's memory.
  //
  // Null if the share does not exist or was taken back. Any lane's loop.
  std::shared_ptr<const PeerMemory> Find(std::uint32_t share) const;

  // Handles a share frame. An error ends the connection. Home loop.
  Status OnSharingFrame(const wire::MessageHeader& header, wire::MetaReader* reader);
  // Call when no lane carries anything any more. Home loop.
  void EndOnLoop();

 private:
  enum class State : std::uint8_t { kNew, kAsked, kShared, kRefused, kEnding };
  struct Own {
    std::uint32_t share = 0;
    std::uint32_t region = 0;      // region id
    std::uint32_t generation = 0;  // and generation
    std::uint8_t gpu = 0;          // number as in a key
    State state = State::kNew;
    bool take_back = false;  // once nobody uses it
    bool silent = false;     // the peer did not answer in time
    std::uint64_t users = 0;
    std::string why;  // reason, in kShared and kRefused
    // Held until the peer no longer accesses the memory. Shared with the peer's copies if the peer
    // is in this process.
    std::shared_ptr<const RegionPin> pin;
    std::unique_ptr<LocalShare> local;  // exists while `pin` is held
  };
  std::string ReasonAgainst(const RegionState& local, std::uint8_t remote_gpu) const;
  Own* FindLocked(const RegionState& local, std::uint8_t gpu);
  Own* FindLocked(std::uint32_t share);
  Route RouteLocked(const Own& own) const;
  static void RefuseLocked(Own* own, std::string why);
  void EraseLocked(const Own* own);
  static Status Fill(const RegionState& local, wire::ShareBody* body);
  void SendShareOnLoop(const wire::ShareBody& body, const Status& filled);
  Error NotLetGo() const;
  // Limits the wait for a peer's answer about memory that is being taken back to drain_grace.
  void LimitOnLoop(std::uint32_t share);
  // Whether the peer must be told to unmap it now.
  bool EndsLocked(Own* own) const;
  void SendUnshares(const std::vector<std::uint32_t>& shares);
  void Send(wire::Type type, std::span<const std::byte> body);

  Status OnShare(const wire::ShareBody& body);
  std::string ReasonAgainst(const wire::ShareBody& body) const;
  void MapOnLoop(const wire::ShareBody& body);
  void AnswerOnLoop(std::uint32_t share, const Status& status, bool for_good);
  void MappedOnLoop(std::uint32_t share, Result<std::shared_ptr<const PeerMemory>> mapped);
  void GoneOnLoop(std::uint32_t share);
  Status OnShared(wire::MetaReader* reader);
  Status OnUnshare(std::uint32_t share);
  Status OnUnshared(std::uint32_t share);

  SharingHost* const connection_;
  const std::uint64_t id_;
  DeviceMemory* memory_ = nullptr;

  // May be taken while a loop's mutex is held: do not send or post while holding it.
  mutable std::mutex own_mutex_;
  std::uint32_t last_share_ = 0;  // this and the following: under own_mutex_
  std::vector<std::unique_ptr<Own>> own_;
  std::string never_;  // reason against sharing any memory; empty: none known
  bool over_ = false;  // the connection has ended

  mutable std::mutex peers_mutex_;
  // By share number; under peers_mutex_. Null: being mapped, or taken back while copies still use
  // it. Owned together with the copies.
  std::map<std::uint32_t, std::shared_ptr<const PeerMemory>> peers_;
};

}  // namespace ferry::transfer
