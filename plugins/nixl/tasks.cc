// Starts and joins the threads of tasks.
#include "plugins/nixl/tasks.h"

#include <utility>

#include "ferry/core/loop/thread.h"
#include "plugins/nixl/log.h"

namespace ferry::nixl {
namespace {

constexpr std::size_t kMaxThreads = 8;
constexpr std::size_t kMaxUrgentThreads = 64;

}  // namespace

bool Tasks::Run(std::function<void()> task, bool urgent) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return false;
  JoinEndedLocked();
  if (urgent) {
    tasks_.push_front(std::move(task));
  } else {
    tasks_.push_back(std::move(task));
  }
  if (running_ >= (urgent ? kMaxUrgentThreads : kMaxThreads)) return true;
  // The address stays valid in the list, also when Stop() splices it. The thread begins with
  // mutex_, so `entry` is complete when it comes to read it.
  Thread& entry = threads_.emplace_back();
  auto started = StartThread("a thread that connects to agents", [this, &entry] { Work(&entry); });
  if (started) {
    entry.thread = *std::move(started);
    ++running_;
    return true;
  }
  threads_.pop_back();
  Log(running_ == 0 ? LogLevel::kError : LogLevel::kInfo, started.error().ToString());
  // The task stays in the queue for the threads that run.
  if (running_ != 0) return true;
  tasks_.clear();  // this one: threads end only when there are no others
  return false;
}

void Tasks::JoinEndedLocked() {
  threads_.remove_if([](Thread& entry) {
    if (!entry.ended) return false;
    entry.thread.join();  // does not take the mutex any more
    return true;
  });
}

void Tasks::Work(Thread* self) {
  std::unique_lock lock(mutex_);
  while (!tasks_.empty()) {
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
  --running_;
  self->ended = true;
}

void Tasks::Stop() {
  std::list<Thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    tasks_.clear();
    threads.splice(threads.end(), threads_);
  }
  for (Thread& entry : threads) entry.thread.join();
}

}  // namespace ferry::nixl
