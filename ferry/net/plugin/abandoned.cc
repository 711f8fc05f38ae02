// The thread that completes and closes connections that nobody wants any more.
#include "ferry/net/plugin/abandoned.h"

#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/log.h"

namespace ferry::net::plugin {
namespace {

// Nobody waits for the outcome, so polls are rarer than those of a set-up.
constexpr std::chrono::milliseconds kAbandonedPollInterval{10};

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
  // Asks the plugin once. Comms that are ready close when they go out of scope, and errors are what
  // is wanted, because the plugin has then ended the connection itself.
  void Poll() {
    const auto current = gpu.MakeCurrent();
    if (listening != nullptr) {
      const auto accepted = listening->Accept();
      if (!accepted || *accepted != nullptr || accept_by.expired()) listening.reset();
    }
    if (connecting != nullptr) {
      const auto connected = connecting->Connect();
      if (!connected || *connected != nullptr) {
        connecting.reset();
      } else if (connect_by.expired()) {
        Log(LogLevel::kWarn, "plugin",
            "a connect that was given up had no answer for {} s more; what the plugin has opened "
            "for it stays open",
            kAbandonedConnectTimeout.count());
        connecting.reset();
      }
    }
  }
};

// All of the process. Never destroyed, because its thread may run while the process ends.
class AbandonedList {
 public:
  static AbandonedList& Get() {
    static auto* const list = new AbandonedList;
    return *list;
  }

  void Add(Abandoned one) {
    const std::lock_guard lock(mutex_);
    count_ += one.halves();
    added_.push_back(std::move(one));
    if (running_) return;
    try {
      std::thread([this] { Run(); }).detach();
      running_ = true;
    } catch (const std::system_error& error) {
      // They wait for the thread of a later one.
      Log(LogLevel::kWarn, "plugin", "no thread to close connections that were given up: {}",
          error.what());
    }
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  void Run() {
    // The plugin is called without the mutex.
    for (std::vector<Abandoned> list; TakeAdded(&list);) {
      for (Abandoned& one : list) one.Poll();
      std::erase_if(list, [](const Abandoned& one) { return one.halves() == 0; });
      Recount(list);
      std::this_thread::sleep_for(kAbandonedPollInterval);
    }
  }
  // False where nothing is left, after which the thread ends.
  bool TakeAdded(std::vector<Abandoned>* list) {
    const std::lock_guard lock(mutex_);
    for (Abandoned& one : added_) list->push_back(std::move(one));
    added_.clear();
    running_ = !list->empty();
    return running_;
  }
  void Recount(const std::vector<Abandoned>& list) {
    const std::lock_guard lock(mutex_);
    count_ = 0;
    for (const Abandoned& one : list) count_ += one.halves();
    for (const Abandoned& one : added_) count_ += one.halves();
  }

  mutable std::mutex mutex_;
  // Under mutex_.
  std::vector<Abandoned> added_;  // not seen by the thread yet
  std::size_t count_ = 0;
  bool running_ = false;
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

std::size_t AbandonedConnections() { return AbandonedList::Get().count(); }

}  // namespace ferry::net::plugin
