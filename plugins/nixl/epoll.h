// What the two threads that sleep in epoll_wait(2) have in common.
#pragma once
#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "ferry/core/fd.h"
#include "ferry/core/result.h"

namespace ferry::nixl {

// The number by which epoll knows the eventfd that ends a thread's sleep.
inline constexpr std::uint64_t kWake = 0;

// Watches a descriptor, by a number. Errors: kUnavailable.
inline Status AddToEpoll(int epoll, int fd, std::uint64_t id, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return Ok();
  return ErrnoError("epoll_ctl", errno);
}

}  // namespace ferry::nixl
