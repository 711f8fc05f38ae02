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
#include "ferry/core/errands.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"
#include "ferry/cuda/resources.h"
#include "ferry/transfer/plan.h"
#include "ferry/transfer/region_table.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

class DeviceMemory;
class SharingHost;

// GPU memory of a peer's that one GPU of this process reaches. Shared between the connection and
// the copies under way; unmapped, by an errand, when the last of them lets go.
class PeerMemory {
 public:
  struct Mapped {
    int gpu = 0;  // that reaches it: ordinal
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;             // that may be used
    cuda::ImportedBuffer imported = {};  // of another process
    // Of this process: the peer's region, for as long as the peer shares it.
    std::optional<std::weak_ptr<const RegionPin>> here = {};
  };
  // `gone` is called by the errand, when nothing here reaches the memory any more.
  PeerMemory(Mapped mapped, Errands* errands, UniqueFunction<void()> gone);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int gpu() const noexcept { return mapped_.gpu; }
  std::uint64_t address() const noexcept { return mapped_.address; }
  std::uint64_t bytes() const noexcept { return mapped_.bytes; }
  // What a copy keeps until its end, so that a region of this process stays. False: it is shared no
  // more.
  bool Keep(std::shared_ptr<const RegionPin>* keeper) const;

 private:
  Mapped mapped_;
  Errands* const errands_;
  UniqueFunction<void()> gone_;
};

// Makes a region known to this process by a token that nobody can guess: a peer in the same process
// has no need, and no way, to map it. Any thread.
class LocalShare {
 public:
  explicit LocalShare(const std::shared_ptr<const RegionPin>& region);
  LocalShare(const LocalShare&) = delete;
  LocalShare& operator=(const LocalShare&) = delete;
  ~LocalShare();

  const Uuid& token() const noexcept { return token_; }
  // Null: no share of this process has it.
  static std::shared_ptr<const RegionPin> Find(const Uuid& token);

 private:
  const Uuid token_ = Uuid::Random();
};

// What both sides of a connection know of each other's GPU memory on one machine, so that bytes
// between GPUs need not pass through TCP. Whoever begins an operation lets the peer map its memory
// (CUDA IPC), and the peer, whose region the operation is about, checks rights and bounds as ever
// and copies. So nobody reaches a region whose owner does not let him.
class GpuSharing {
 public:
  explicit GpuSharing(SharingHost* connection);
  // Of this connection and no other that this process has, or had; not 0.
  std::uint64_t id() const noexcept { return id_; }
  // Before the connection is started. Outlives it.
  void SetMemory(DeviceMemory* memory) { memory_ = memory; }

  // ---- Own memory.
  // What the peer knows it by, or why bytes go over the lanes.
  struct Route {
    std::uint32_t share = 0;  // 0: over the lanes
    std::string why;
  };
  // Any thread. Asks the peer at the first use of a region and a GPU of the peer's (as in a key).
  void Ask(const std::shared_ptr<RegionState>& local, std::uint8_t remote_gpu);
  // Any thread but a loop's driver. Waits for the answer to Ask(), and then no more for one that
  // did not come.
  Route RouteTo(const std::shared_ptr<RegionState>& local, std::uint8_t remote_gpu,
                Deadline deadline);
  // Any thread. While an operation uses a share it is not taken back. False where one is gone.
  bool BeginUse(const Plan& plan);
  // Home loop, when the operation has ended.
  void EndUseOnLoop(const Plan& plan);
  // Home loop. Makes the peer let go of the region's memory, when no operation uses it.
  void TakeBackOnLoop(const RegionState* region);

  // ---- The peer's memory.
  // Any lane's loop. Null: there is no such share, or no more.
  std::shared_ptr<const PeerMemory> Find(std::uint32_t share) const;

  // Home loop.
  Status OnFrameOnLoop(const wire::MessageHeader& header, wire::MetaReader* reader);
  // Home loop, when no lane carries anything any more.
  void EndOnLoop();

 private:
  enum class State : std::uint8_t { kNew, kAsked, kShared, kRefused, kEnding };
  struct Own {
    std::uint32_t share = 0;
    std::uint32_t region = 0;      // id and
    std::uint32_t generation = 0;  // generation
    std::uint8_t gpu = 0;          // as in the key
    State state = State::kNew;
    bool take_back = false;  // as soon as nobody uses it
    bool silent = false;     // the peer did not answer in time
    std::uint64_t users = 0;
    std::string why;  // kShared, kRefused
    // Until the peer does not reach it any more; with its copies where it is in this process.
    std::shared_ptr<const RegionPin> pin;
    std::unique_ptr<LocalShare> local;  // while there is a pin
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
  // Gives a peer that owes an answer about memory that is taken back drain_grace for it.
  void LimitOnLoop(std::uint32_t share);
  // Whether the peer is to let go of it now.
  bool EndsLocked(Own* own) const;
  void SendUnshares(const std::vector<std::uint32_t>& shares);
  void Send(wire::Type type, std::span<const std::byte> body);

  Status OnShareOnLoop(const wire::ShareBody& body);
  void MapOnLoop(const wire::ShareBody& body);
  void AnswerOnLoop(std::uint32_t share, const Status& status, bool for_good);
  void MappedOnLoop(std::uint32_t share, Result<std::shared_ptr<const PeerMemory>> mapped);
  void GoneOnLoop(std::uint32_t share);
  Status OnSharedOnLoop(wire::MetaReader* reader);
  Status OnUnshareOnLoop(std::uint32_t share);
  Status OnUnsharedOnLoop(std::uint32_t share);

  SharingHost* const connection_;
  const std::uint64_t id_;
  DeviceMemory* memory_ = nullptr;

  // Loops' mutexes are held where this one is taken: nothing is sent or posted under it.
  mutable std::mutex own_mutex_;
  std::uint32_t last_share_ = 0;  // these under own_mutex_
  std::vector<std::unique_ptr<Own>> own_;
  std::string never_;  // why, whatever the memory; empty: nothing against it is known
  bool over_ = false;  // the connection has ended

  mutable std::mutex peers_mutex_;
  // By share; under peers_mutex_. Null: it is being mapped, or was taken back and copies still use
  // it. With the copies.
  std::map<std::uint32_t, std::shared_ptr<const PeerMemory>> peers_;
};

}  // namespace ferry::transfer
