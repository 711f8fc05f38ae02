// Implements the thread of a data socket.

#include "standin/lane.h"

#include <sys/socket.h>

#include <utility>

namespace ferry::standin {

void DoneTasks::Add(const Task& task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(task);
}

std::vector<Task> DoneTasks::TakeAll() {
  const std::lock_guard lock(mutex_);
  return std::exchange(tasks_, {});
}

Lane::Lane(Socket socket, std::function<bool(Lane&, const Task&)> work, DoneTasks* done)
    : socket_(std::move(socket)), work_(std::move(work)), done_(done), thread_([this] { Run(); }) {}

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  // Interrupts a send() or recv() that blocks. `ending_` is set before, so that the thread starts
  // no other task; those that are queued are dropped.
  HalfClose();
  thread_.join();
}

void Lane::Push(const Task& task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(task);
  }
  wake_.notify_all();
}

bool Lane::Sleep(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_until(lock, std::chrono::steady_clock::now() + time,
                           [this] { return ending_; });
}

void Lane::HalfClose() { (void)::shutdown(socket_.get(), SHUT_RDWR); }

void Lane::Run() {
  bool broken = false;
  for (;;) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (ending_) return;
    Task task = tasks_.front();
    tasks_.pop_front();
    // Without the mutex while the socket blocks, because Push() is called in test(), which must not
    // block.
    lock.unlock();
    // Tasks after a failure are reported as well: the comm counts what its lanes have.
    if (!broken) broken = !work_(*this, task);
    task.failed = broken;
    done_->Add(task);
  }
}

}  // namespace ferry::standin
