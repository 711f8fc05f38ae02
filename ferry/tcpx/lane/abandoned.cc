// The thread that completes and closes connections that nobody wants any more.
#include "ferry/tcpx/lane/abandoned.h"

#include <fmt/core.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/log_limiter.h"
#include "ferry/core/loop/thread.h"

namespace ferry::tcpx {
namespace {

// Nobody waits for the outcome, so polls are rarer than those of a set-up.
constexpr std::chrono::milliseconds kAbandonedPollInterval{10};
// A poll that takes longer hangs in the plugin, and the process exits all the same.
constexpr std::chrono::seconds kExitTimeout{2};

// One half of a connection, or both.
struct Abandoned {
  LaneGpu gpu;
  std::unique_ptr<Listening> listening;
  std::unique_ptr<Connecting> connecting;
  Deadline accept_by;
  Deadline connect_by;

  std::size_t halves() const {
    return (listening != nullptr ? std::size_t{1} : 0) +
           (connecting != nullptr ? std::size_t{1} : 0);
  }
  const Plugin& plugin() const {
    return listening != nullptr ? listening->plugin() : connecting->plugin();
  }
  // Asks the plugin once. Comms that are ready close when they go out of scope, and errors are what
  // is wanted, because the plugin has then ended the connection itself.
  void Poll(LogLimiter* log) {
    const auto current = gpu.MakeCurrent();
    if (listening != nullptr) {
      const auto accepted = listening->Accept();
      const bool ended = !accepted || *accepted != nullptr;
      if (!ended && accept_by.expired()) WarnLate(log, "accept", kAbandonedAcceptTimeout);
      if (ended || accept_by.expired()) listening.reset();
    }
    if (connecting != nullptr) {
      const auto connected = connecting->Connect();
      const bool ended = !connected || *connected != nullptr;
      if (!ended && connect_by.expired()) WarnLate(log, "connect", kAbandonedConnectTimeout);
      if (ended || connect_by.expired()) connecting.reset();
    }
  }
  // Peers can cause these lines, so they are limited.
  void WarnLate(LogLimiter* log, const char* call, std::chrono::seconds timeout) const {
    log->Write(LogLevel::kWarn, "plugin", call, {},
               fmt::format("{} of network plugin {} was given up and did not end within {} s more; "
                           "sockets that the plugin has opened for it stay open until the process "
                           "ends; see that the interfaces of both sides reach each other",
                           call, plugin().name(), timeout.count()));
  }
};

// All of the process. Never destroyed, because its thread may run while the process ends.
class AbandonedList {
 public:
  static AbandonedList& Get() {
    static PerProcess<AbandonedList> all;
    return all.Get();
  }

  void Add(Abandoned one) {
    const std::lock_guard lock(mutex_);
    // Once for each plugin, because handlers run before the destructors of static objects that
    // were constructed before: a plugin may have been loaded after the last handler was added.
    if (plugins_.insert(&one.plugin()).second) {
      (void)std::atexit([] { AbandonedList::Get().StopAtExit(); });
    }
    count_ += one.halves();
    added_.push_back(std::move(one));
    if (running_ || stopping_) return;
    auto thread = StartThread("closing connections that were given up", [this] { Run(); });
    if (!thread) {
      // They wait for the thread of a later one.
      log_.Write(LogLevel::kWarn, "plugin", "thread", {}, thread.error().message());
      return;
    }
    thread->detach();
    running_ = true;
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  // When it returns, the plugin is not called, and is not called again.
  void StopAtExit() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    // Plugins call exit() where they find an error, also on this list's thread.
    if (polling_ == std::this_thread::get_id()) return;
    changed_.wait_for(lock, kExitTimeout, [this] { return polling_ == std::thread::id(); });
  }

  void Run() {
    // The plugin is called without the mutex.
    for (std::vector<Abandoned> list; BeginPoll(&list); EndPoll(list)) {
      for (Abandoned& one : list) {
        if (stopping_) break;
        one.Poll(&log_);
      }
      std::erase_if(list, [](const Abandoned& one) { return one.halves() == 0; });
    }
  }
  // False where nothing is left to do, after which the thread ends.
  bool BeginPoll(std::vector<Abandoned>* list) {
    const std::lock_guard lock(mutex_);
    for (Abandoned& one : added_) list->push_back(std::move(one));
    added_.clear();
    // Kept, because the destructors of what is left call the plugin.
    if (stopping_) added_ = std::move(*list);
    running_ = !stopping_ && !list->empty();
    if (running_) polling_ = std::this_thread::get_id();
    return running_;
  }
  void EndPoll(const std::vector<Abandoned>& list) {
    std::unique_lock lock(mutex_);
    count_ = 0;
    for (const Abandoned& one : list) count_ += one.halves();
    for (const Abandoned& one : added_) count_ += one.halves();
    polling_ = std::thread::id();
    changed_.notify_all();
    changed_.wait_for(lock, kAbandonedPollInterval, [this] { return stopping_.load(); });
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;    // stopping_, polling_
  std::atomic<bool> stopping_{false};  // the process exits; written under mutex_
  // Under mutex_.
  std::vector<Abandoned> added_;     // not seen by the thread yet
  std::set<const Plugin*> plugins_;  // that it was asked to close connections of
  std::size_t count_ = 0;
  bool running_ = false;
  std::thread::id polling_;  // the thread, while it calls the plugin
  LogLimiter log_;
};

}  // namespace

void CloseInBackground(const LaneGpu& gpu, std::unique_ptr<Listening> listening,
                       std::unique_ptr<Connecting> connecting) {
  if (listening != nullptr && !listening->pending()) listening.reset();
  if (connecting != nullptr && !connecting->pending()) connecting.reset();
  if (listening == nullptr && connecting == nullptr) return;
  // Without the buffers, which must not outlive their provider by minutes.
  const LaneGpu only_gpu{gpu.api, gpu.ordinal, nullptr, gpu.by};
  AbandonedList::Get().Add({only_gpu, std::move(listening), std::move(connecting),
                            Deadline::After(kAbandonedAcceptTimeout),
                            Deadline::After(kAbandonedConnectTimeout)});
}

Status CheckAbandoned(const Plugin& plugin, std::size_t most) {
  const std::size_t count = AbandonedConnections();
  if (count < most) return Ok();
  return Error(Code::kUnavailable,
               fmt::format("no lane is set up over network plugin {} now: {} connections that were "
                           "given up are still being closed, and {} may be; try again in {} s, and "
                           "see that the interfaces of both sides reach each other",
                           plugin.name(), count, most, kAbandonedConnectTimeout.count()));
}

std::size_t AbandonedConnections() { return AbandonedList::Get().count(); }

}  // namespace ferry::tcpx
