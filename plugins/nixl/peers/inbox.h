// Accepts the connections of peers and collects their notifications.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/transfer/endpoint.h"
#include "plugins/nixl/abi.h"
#include "plugins/nixl/peers/wire.h"
#include "plugins/nixl/tasks.h"

namespace ferry::nixl {

// Limits of memory and time. Unread bytes in the connections are not included.
struct InboxLimits {
  std::uint64_t sender_bytes = 28 << 20;  // for one sender; its notifications may not be longer
  std::uint64_t total_bytes = 256 << 20;  // for all senders, approximately
  Clock::duration silence = std::chrono::seconds(30);  // between two pieces of a notification
  Clock::duration claim = std::chrono::seconds(5);     // to a name that is another's so far
};

// A thread that takes notifications as they arrive, joins their pieces, and keeps them until they
// are asked for. Senders take turns, and each may fill its share of the memory: of one that has
// filled it nothing more is taken, so that it gets no answer and waits for the program.
//
// A sender may exceed its share by one long notification if the inbox holds nothing else from it.
// If unfinished notifications need too much memory, the sender that began first is closed, so that
// nobody waits for a slow one. A sender that stops in the middle of a notification is closed after
// InboxLimits::silence.
//
// The identity of each connection has the name of an agent and the key that signed it (identity.h).
// A name is proved by the key of the metadata that is loaded of that agent. One that is not loaded
// belongs to the key that was the first to claim it, until the connections of that have ended. Who
// claims a name that is another's waits for InboxLimits::claim, since its metadata may be on its
// way here, and the other may be gone without a word.
class Inbox {
 public:
  // The endpoint, which has CheckOfIdentities(), and the tasks outlive it. Errors: kUnavailable
  // (descriptors, threads).
  static Result<std::unique_ptr<Inbox>> Create(transfer::Endpoint* endpoint, Tasks* tasks,
                                               const InboxLimits& limits = {});
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Moves what has arrived to the end of `out`. Any thread; does not block.
  void Take(abi::Notifications* out);
  // From now on only the owner of this key may use the name, until UnbindName(). Connections of
  // others that use it are closed soon. Any thread; neither blocks.
  void BindName(const std::string& agent, const PublicKey& key);
  void UnbindName(const std::string& agent);
  // The connections that were closed because their name is another's. Any thread.
  std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Sender {
    transfer::Connection connection;
    transfer::Readiness readiness;
    std::string agent;                       // the name that it claims
    PublicKey key{};                         // the key that signed this name
    bool named = false;                      // the name is not another's
    Clock::time_point since = Clock::now();  // accepted, or sent the last piece
    Joiner joiner;
    Clock::time_point begun{};  // the notification that the joiner has a part of
    bool paused = false;        // there is no room for more of it
    std::uint64_t arrived = 0;  // bytes in arrived_, since that number of takes
    std::uint64_t takes = 0;
  };
  using Senders = std::map<std::uint64_t, Sender>;
  enum class Next { kGoOn, kEmpty, kWait, kForget };

  Inbox(transfer::Endpoint* endpoint, Tasks* tasks, const InboxLimits& limits, UniqueFd epoll,
        UniqueFd wake)
      : endpoint_(endpoint),
        tasks_(tasks),
        limits_(limits),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)) {}

  Status Start();
  void Run();
  // Returns false once the inbox ends. Throws where there is no memory.
  bool Turn();
  void AcceptAll();
  void Admit(const transfer::Connection& connection);
  Status TryAdmit(const transfer::Connection& connection);
  // Takes one turn's share of what is there of one sender; forgets the sender if that is over.
  void Drain(std::uint64_t id);
  // Whether there is room for a piece of this sender: kGoOn, kWait, or kForget where it was closed.
  Next RoomFor(Sender* sender);
  // The same for one that exceeds its share by a long notification, or where all is full. What of
  // others is shorter than `share` is left alone.
  Next MakeRoom(Sender* sender, std::uint64_t share);
  void Watch(std::uint64_t id, std::uint32_t events);
  void ResumePaused();
  Next TakeOne(Sender* sender);
  Status OnFrame(Sender* sender, const std::vector<std::byte>& frame);
  // Errors: kRefused where the name is another key's.
  Status CheckName(const Sender& sender);
  // Lets the sender be heard, unless its name is another's.
  void TakeName(Sender* sender);
  // Whether the name is bound to another key.
  bool IsBoundToOther(const std::string& agent, const PublicKey& key);
  // Where names have changed, and now and then: closes connections whose name was bound to another
  // key, and lets those go on whose claim is good now.
  void CheckNames();
  void Close(const Sender& sender, const Error& reason);
  void Deliver(Sender* sender, std::string message);
  // Closes the connections that have said nothing for too long. Returns whether connections remain
  // that may become late.
  bool CloseSilent();
  // Returns whether the connection has ended, by this call or before.
  bool CloseIfLate(Sender* sender);
  void CloseInBackground(transfer::Connection connection);

  transfer::Endpoint* const endpoint_;
  Tasks* const tasks_;
  const InboxLimits limits_;
  const UniqueFd epoll_;
  const UniqueFd wake_;  // an eventfd
  std::optional<transfer::Readiness> to_accept_;
  Senders senders_;                 // this and what follows: the thread's
  std::uint64_t next_ = 2;          // 0 is wake_, 1 to_accept_
  bool silent_ = false;             // connections may become late
  bool crowded_ = false;            // a sender waits for room that a slow one has
  Clock::time_point next_check_{};  // of names

  std::mutex mutex_;
  abi::Notifications arrived_;              // under mutex_
  std::uint64_t arrived_bytes_ = 0;         // under mutex_: of arrived_
  std::uint64_t takes_ = 0;                 // under mutex_
  bool room_wanted_ = false;                // under mutex_: wake the thread after a take
  bool stopping_ = false;                   // under mutex_
  std::map<std::string, PublicKey> names_;  // under mutex_: of agents that are loaded
  bool names_changed_ = false;              // under mutex_
  std::atomic<std::uint64_t> refused_{0};
  std::thread thread_;
};

}  // namespace ferry::nixl
