// What all communicators of a process share.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"
#include "plugins/nccl/acceptor.h"
#include "plugins/nccl/setup/settings.h"

namespace ferry::nccl_net {

class Attempt;

// The resources that all communicators of a process share: threads, the listening port, the network
// interface as NCCL sees it, and connection attempts. Any thread, except Create() and the
// destructor.
class Engine {
 public:
  // Errors: kInvalidArgument (settings), kUnavailable (ports, descriptors).
  static Result<std::shared_ptr<Engine>> Create(Settings settings);
  // Destroy when no comm is left; not on a loop.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Settings& settings() const noexcept { return settings_; }
  net::Provider& provider() noexcept { return *provider_; }
  Acceptor& acceptor() noexcept { return *acceptor_; }
  const Nic& nic() const noexcept { return settings_.nic; }

  // A loop for small messages, credits and heartbeats. NCCL's threads drive it while they poll, so
  // that these messages wake no other thread; large messages would delay them. Assigned round-robin
  // to contexts: in a process with several GPUs, each communicator's thread gets a loop of its own
  // if there are enough.
  EventLoop* NextSwift() noexcept;
  // The loops for large messages, numbered cyclically; each has a worker thread.
  EventLoop* Bulk(std::size_t turn) noexcept;
  std::size_t NextComm() noexcept { return next_comm_.fetch_add(1, std::memory_order_relaxed); }

  // Connection attempts in progress, by the number stored in NCCL's handle.
  std::uint64_t AddAttempt(const void* owner, std::unique_ptr<Attempt> attempt);
  // Null if there is no attempt of this number (any longer).
  std::shared_ptr<Attempt> FindAttempt(std::uint64_t id);
  void DropAttempt(std::uint64_t id);
  // Ends the attempts of one owner.
  void DropAttempts(const void* owner);

 private:
  struct OwnedAttempt {
    const void* owner = nullptr;
    std::shared_ptr<Attempt> attempt;  // shared with its poller
  };

  explicit Engine(Settings settings);
  Status Start();
  static Status AddLoops(std::size_t count, std::vector<std::unique_ptr<EventLoop>>* loops);

  const Settings settings_;
  const std::unique_ptr<net::Provider> provider_;
  SpinPermits spin_permits_;  // of the loops
  std::vector<std::unique_ptr<EventLoop>> swift_;
  std::vector<std::unique_ptr<EventLoop>> bulk_;
  std::unique_ptr<Acceptor> acceptor_;
  std::atomic<std::size_t> next_comm_{0};
  std::atomic<std::size_t> next_swift_{0};
  std::mutex mutex_;
  std::map<std::uint64_t, OwnedAttempt> attempts_;  // under mutex_
  std::uint64_t next_attempt_ = 1;                  // under mutex_
};

}  // namespace ferry::nccl_net
