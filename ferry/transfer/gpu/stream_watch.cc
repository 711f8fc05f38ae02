// Polls the marks of GPU streams.
#include "ferry/transfer/gpu/stream_watch.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "ferry/core/loop/thread.h"
#include "ferry/cuda/open_devices.h"

namespace ferry::transfer {
namespace {

constexpr auto kLookEvery = std::chrono::microseconds(20);

}  // namespace

// std::jthread joins; watches that are not over are dropped without a call.
StreamWatch::~StreamWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

Result<cuda::Event> StreamWatch::Mark(cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi* const api, cuda::OpenDevices(config_));
  cuda::Event mark;
  {
    const std::lock_guard lock(mutex_);
    api_ = api;
    if (!thread_.joinable()) {
      FERRY_TRY_ASSIGN(thread_,
                       StartThread<std::jthread>("watching GPU streams", [this] { Run(); }));
    }
    auto& events = events_[stream.ordinal()];
    if (!events.empty()) {
      mark = std::move(events.back());
      events.pop_back();
    }
  }
  // Without the mutex: a call to the device may block until other operations have begun and ended.
  if (!mark) {
    FERRY_TRY_ASSIGN(mark, api->CreateEvent(stream.ordinal(), cuda::EventTiming::kOff));
  }
  FERRY_TRY(api->Record(mark, stream));
  return mark;
}

void StreamWatch::When(cuda::Event mark, Reached reached) {
  const std::lock_guard lock(mutex_);
  asked_.push_back({std::move(mark), std::move(reached)});
  changed_.notify_one();
}

void StreamWatch::Run() {
  std::vector<Watch> waiting;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::move(asked_.begin(), asked_.end(), std::back_inserter(waiting));
    asked_.clear();
    cuda::DeviceApi* const api = api_;
    lock.unlock();
    const auto over = std::stable_partition(waiting.begin(), waiting.end(),
                                            [&](Watch& watch) { return !Look(api, &watch); });
    // Destroyed before the lock is taken: they may own the last reference to a connection.
    std::vector<cuda::Event> done;
    for (auto watch = over; watch != waiting.end(); ++watch) done.push_back(std::move(watch->mark));
    waiting.erase(over, waiting.end());
    lock.lock();
    for (cuda::Event& mark : done) events_[mark.ordinal()].push_back(std::move(mark));
    if (stopping_ || !asked_.empty()) continue;
    if (waiting.empty()) {
      changed_.wait(lock, [this] { return stopping_ || !asked_.empty(); });
    } else {
      changed_.wait_for(lock, kLookEvery);
    }
  }
}

// Returns whether the watch is over.
bool StreamWatch::Look(cuda::DeviceApi* api, Watch* watch) {
  const auto over = api->Query(watch->mark);
  if (over && !*over) return false;
  watch->reached(over ? Ok() : Status(over.error()));
  return true;
}

}  // namespace ferry::transfer
