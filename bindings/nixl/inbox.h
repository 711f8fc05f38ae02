// Accepts the connections of peers and collects their notifications.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bindings/nixl/abi.h"
#include "bindings/nixl/tasks.h"
#include "bindings/nixl/wire.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/transfer/endpoint.h"

namespace ferry::nixl {

// A thread that takes notifications as they arrive, joins their pieces, and keeps them until they
// are asked for. Connections that do not prove soon that they have our metadata are closed.
class Inbox {
 public:
  // The endpoint and the tasks outlive it. Errors: kUnavailable (descriptors, threads).
  static Result<std::unique_ptr<Inbox>> Create(transfer::Endpoint* endpoint, Tasks* tasks,
                                               const Uuid& secret);
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Moves what has arrived to the end of `out`. Any thread; does not block.
  void Take(abi::Notifications* out);

 private:
  // A message of which pieces are missing.
  struct Joining {
    std::uint64_t total = 0;
    std::uint64_t received = 0;
    std::map<std::uint64_t, std::string> pieces;  // by offset
  };
  struct Sender {
    transfer::Connection connection;
    std::optional<transfer::Readiness> readiness;
    std::optional<std::string> agent;  // once it has said hello
    Clock::time_point since = Clock::now();
    std::map<std::uint64_t, Joining> joining;
  };
  enum class Next { kGoOn, kEmpty, kForget };

  Inbox(transfer::Endpoint* endpoint, Tasks* tasks, const Uuid& secret, UniqueFd epoll,
        UniqueFd wake)
      : endpoint_(endpoint),
        tasks_(tasks),
        secret_(secret),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)) {}

  Status Start();
  void Run();
  void AcceptAll();
  // Takes what is there of one sender; forgets the sender if that is over.
  void Drain(std::uint64_t id);
  Next TakeOne(Sender* sender);
  Status OnFrame(Sender* sender, const std::vector<std::byte>& frame);
  static Result<std::optional<std::string>> Join(Sender* sender, const Piece& piece);
  void Deliver(const std::string& agent, std::string message);
  // Closes the connections that have said nothing for too long. Whether any is left to watch.
  bool CloseSilent();
  void CloseInBackground(transfer::Connection connection);

  transfer::Endpoint* const endpoint_;
  Tasks* const tasks_;
  const Uuid secret_;
  const UniqueFd epoll_;
  const UniqueFd wake_;  // an eventfd
  std::optional<transfer::Readiness> to_accept_;
  std::map<std::uint64_t, Sender> senders_;  // the thread's
  std::uint64_t next_ = 2;                   // the thread's; 0 is wake_, 1 to_accept_

  std::mutex mutex_;
  std::condition_variable room_;
  abi::Notifications arrived_;       // under mutex_
  std::uint64_t arrived_bytes_ = 0;  // under mutex_
  bool stopping_ = false;            // under mutex_
  std::thread thread_;
};

}  // namespace ferry::nixl
