// What all communicators of a process share.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "bindings/nccl_net/door.h"
#include "bindings/nccl_net/nic.h"
#include "bindings/nccl_net/settings.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"

namespace ferry::nccl_net {

class Attempt;

// What all communicators of the process share: threads, a listening port, the network interface as
// NCCL sees it, and the connections that are being made. Any thread, but for Create() and its end.
class Engine {
 public:
  // Errors: kInvalidArgument (settings), kUnavailable (ports, descriptors).
  static Result<std::shared_ptr<Engine>> Create(Settings settings);
  // When no comm is left; not on a loop.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Settings& settings() const noexcept { return settings_; }
  net::Provider& provider() noexcept { return *provider_; }
  Door& door() noexcept { return *door_; }
  const Nic& nic() const noexcept { return nic_; }

  // A loop for small messages, credits and beats. NCCL's threads drive it while they poll, so that
  // those pass without waking anybody; large messages would keep them from it. One after another,
  // for each context: of a process with several GPUs each communicator's thread has one to itself,
  // where they are no more than the loops.
  EventLoop* NextSwift() noexcept;
  // One after another, from the first again; each has a thread.
  EventLoop* Bulk(std::size_t turn) noexcept;
  std::size_t NextComm() noexcept { return next_comm_.fetch_add(1, std::memory_order_relaxed); }

  // Connections under way, by what stands in the handle.
  std::uint64_t AddAttempt(const void* owner, std::unique_ptr<Attempt> attempt);
  // Null where there is none of this number (any more).
  std::shared_ptr<Attempt> FindAttempt(std::uint64_t id);
  void DropAttempt(std::uint64_t id);
  // Gives up those of one owner.
  void DropAttempts(const void* owner);

 private:
  struct OwnedAttempt {
    const void* owner = nullptr;
    std::shared_ptr<Attempt> attempt;  // with who polls it
  };

  explicit Engine(Settings settings);
  Status Start();
  static Status AddLoops(std::size_t count, std::vector<std::unique_ptr<EventLoop>>* loops);

  const Settings settings_;
  const std::unique_ptr<net::Provider> provider_;
  Nic nic_;
  SpinPermits spin_permits_;  // of the loops
  std::vector<std::unique_ptr<EventLoop>> swift_;
  std::vector<std::unique_ptr<EventLoop>> bulk_;
  std::unique_ptr<Door> door_;
  std::atomic<std::size_t> next_comm_{0};
  std::atomic<std::size_t> next_swift_{0};
  std::mutex mutex_;
  std::map<std::uint64_t, OwnedAttempt> attempts_;  // under mutex_
  std::uint64_t next_attempt_ = 1;                  // likewise
};

}  // namespace ferry::nccl_net
