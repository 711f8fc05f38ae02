// Watching descriptors, waiting for their events and waking up.
#include "ferry/core/loop/epoll_set.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <ctime>

namespace ferry {
namespace {

constexpr int kMaxEvents = 64;

// The epoll data of a descriptor. The generation distinguishes events that were fetched before the
// handler was removed from those of the descriptor's next handler.
std::uint64_t EpollKey(int fd, std::uint32_t generation) {
  return std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(fd);
}

timespec LeftUntil(Clock::time_point when) {
  const auto left = std::max<std::chrono::nanoseconds>(when - Clock::now(), {});
  return {.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000),
          .tv_nsec = static_cast<long>(left.count() % 1'000'000'000)};
}

// epoll_wait() takes milliseconds. epoll_pwait2() is called by number: the C library of some
// systems that this runs on has no function for it. Its kernel may not know it, or a filter of
// system calls denies what it does not know, by whatever error; ppoll() is everywhere, and costs
// another call.
int WaitPrecisely(int epoll, epoll_event* events, Clock::time_point when) {
  static std::atomic<bool> is_known{true};
  const timespec timeout = LeftUntil(when);
  if (is_known.load(std::memory_order_relaxed)) {
    const long count = ::syscall(SYS_epoll_pwait2, epoll, events, kMaxEvents, &timeout, nullptr, 0);
    if (count >= 0 || errno == EINTR) return static_cast<int>(count);
    is_known.store(false, std::memory_order_relaxed);
  }
  pollfd ready{.fd = epoll, .events = POLLIN, .revents = 0};
  return ::ppoll(&ready, 1, &timeout, nullptr) > 0 ? ::epoll_wait(epoll, events, kMaxEvents, 0) : 0;
}

}  // namespace

Status EpollSet::Open() {
  epoll_ = ClosedInChildren(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll_) return ErrnoError("epoll_create1", errno);
  FERRY_TRY_ASSIGN(wake_, MakeEventFd());
  epoll_event event{};
  // Edge-triggered: each write wakes, and the count never has to be read.
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = EpollKey(wake_.get(), 0);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return ErrnoError("epoll_ctl for the wake-up descriptor", errno);
  }
  events_.resize(kMaxEvents);
  return Ok();
}

Status EpollSet::Watch(int fd, std::uint32_t events, Handler* handler) {
  const std::uint32_t generation = next_generation_++;
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = EpollKey(fd, generation);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError("epoll_ctl add", errno);
  }
  watched_[fd] = {handler, generation};
  return Ok();
}

void EpollSet::Unwatch(int fd, Handler* handler) {
  const auto it = watched_.find(fd);
  if (it == watched_.end() || it->second.handler != handler) return;
  watched_.erase(it);
  epoll_event event{};
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &event);
}

int EpollSet::Look() {
  sleeping_.store(false, std::memory_order_relaxed);
  return ::epoll_wait(epoll_.get(), events_.data(), kMaxEvents, /*timeout=*/0);
}

int EpollSet::Wait(Deadline wake) {
  const int count = wake.never()
                        ? ::epoll_wait(epoll_.get(), events_.data(), kMaxEvents, /*timeout=*/-1)
                        : WaitPrecisely(epoll_.get(), events_.data(), wake.when());
  sleeping_.store(false, std::memory_order_relaxed);
  return count;
}

bool EpollSet::Handle(int count, FunctionRef<void()> after_each) {
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<std::size_t>(i)];
    const auto it = watched_.find(static_cast<int>(event.data.u64 & 0xffffffff));
    // No such watch: the wake-up descriptor, or a descriptor that was unwatched since.
    if (it == watched_.end() || it->second.generation != event.data.u64 >> 32) continue;
    it->second.handler->OnEvents(event.events);
    after_each();
    any = true;
  }
  return any;
}

void EpollSet::Wake() noexcept {
  if (sleeping_.exchange(false)) Interrupt();
}

void EpollSet::Interrupt() noexcept { SignalEventFd(wake_.get()); }

}  // namespace ferry
