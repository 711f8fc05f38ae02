// Sleeps on the completion descriptors of operations.
#include "plugins/nixl/peers/courier.h"

#include <fmt/core.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ferry/core/loop/thread.h"
#include "plugins/nixl/epoll.h"
#include "plugins/nixl/log.h"

namespace ferry::nixl {
namespace {

// Between two looks at operations that have no descriptor.
constexpr auto kPollPause = milliseconds(1);

}  // namespace

Result<std::unique_ptr<Courier>> Courier::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    return Error(Code::kUnavailable,
                 fmt::format("no descriptor for the thread that sends notifications: {}; raise the "
                             "limit of open files",
                             std::strerror(errno)));
  }
  FERRY_TRY_ASSIGN(UniqueFd wake, MakeEventFd());
  FERRY_TRY(AddToEpoll(epoll.get(), wake.get(), kWake, EPOLLIN));
  std::unique_ptr<Courier> courier(new Courier(std::move(epoll), std::move(wake)));
  FERRY_TRY_ASSIGN(courier->thread_, StartThread("the sender of notifications",
                                                 [raw = courier.get()] { raw->Run(); }));
  return courier;
}

Courier::~Courier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void Courier::Wake() const noexcept { SignalEventFd(wake_.get()); }

void Courier::Watch(std::shared_ptr<Job> job, transfer::Operation operation) {
  Result<int> fd = operation.CompletionFd();
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_++;
  // Entered first: the thread may be told of the end at once.
  const auto entry = watched_.emplace(id, Watched{std::move(job), std::move(operation)}).first;
  // Once is enough: the descriptor stays readable after the end, and would wake the thread again
  // and again. Without a descriptor, the thread polls.
  if (fd && AddToEpoll(epoll_.get(), *fd, id, EPOLLIN | EPOLLONESHOT)) return;
  undescribed_.push_back(std::move(entry->second));
  watched_.erase(entry);
  Wake();
}

void Courier::Retry(std::shared_ptr<Job> job, Clock::duration pause) {
  const std::lock_guard lock(mutex_);
  if (to_retry_.emplace(std::move(job), Clock::now() + pause).second) Wake();
}

Deadline Courier::NextRetryLocked(Deadline due) const {
  Deadline next = Deadline::Never();
  // From the first operation on: those that come later do not put it off.
  if (!undescribed_.empty()) next = Deadline::After(kPollPause).Sooner(due.expired() ? next : due);
  for (const auto& entry : to_retry_) next = next.Sooner(Deadline::At(entry.second));
  return next;
}

void Courier::WaitIdle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto idle = [this] {
    return watched_.empty() && undescribed_.empty() && to_retry_.empty() && advancing_ == 0;
  };
  (void)changed_.wait_until(lock, deadline.when(), idle);
}

std::shared_ptr<Job> Courier::TakeWatched(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = watched_.find(id);
  if (found == watched_.end()) return nullptr;
  std::shared_ptr<Job> job = std::move(found->second.job);  // with its poster
  watched_.erase(found);
  ++advancing_;
  return job;
}

std::vector<std::shared_ptr<Job>> Courier::TakeDue() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Job>> due;  // with their posters
  const Clock::time_point now = Clock::now();
  for (auto entry = to_retry_.begin(); entry != to_retry_.end();) {
    if (entry->second > now) {
      ++entry;
      continue;
    }
    due.push_back(entry->first);
    entry = to_retry_.erase(entry);
  }
  for (std::size_t i = 0; i < undescribed_.size();) {
    if (!undescribed_[i].operation.Poll()) {
      ++i;
      continue;
    }
    due.push_back(std::move(undescribed_[i].job));
    std::swap(undescribed_[i], undescribed_.back());
    undescribed_.pop_back();
  }
  // Under the same lock as the removal, so that WaitIdle() never misses a job on its way.
  advancing_ += due.size();
  return due;
}

void Courier::Run() {
  std::array<epoll_event, 64> events{};
  Deadline due = Deadline::Never();  // when jobs are retried
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), due.PollMillis());
    std::vector<std::shared_ptr<Job>> jobs;                      // with their posters
    for (std::size_t i = 0; static_cast<int>(i) < count; ++i) {  // -1 where a signal came
      if (events[i].data.u64 == kWake) {
        DrainEventFd(wake_.get());
      } else if (auto job = TakeWatched(events[i].data.u64)) {
        jobs.push_back(std::move(job));
      }
    }
    if (due.expired()) {
      for (auto& job : TakeDue()) jobs.push_back(std::move(job));
    }
    // Without mutex_: a job holds its own mutex when it calls Watch() or Retry(). Lock order: the
    // job's mutex, then ours.
    for (const auto& job : jobs) job->Advance();
    const std::lock_guard lock(mutex_);
    advancing_ -= jobs.size();
    if (stopping_) return;
    changed_.notify_all();
    due = NextRetryLocked(due);
  }
}

}  // namespace ferry::nixl
