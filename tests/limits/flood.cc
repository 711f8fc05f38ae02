// Implements floods of connects from many addresses.

#include "tests/limits/flood.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "ferry/net/address.h"
#include "tests/links/network_pair.h"
#include "tests/support/peer_process.h"

namespace ferry::tests {

Flood::Flood(const FloodOptions& options)
    : options_(options), thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void Flood::AwaitBegun() const {
  const Deadline deadline = TestDeadline();
  while (connects() < options_.at_first) {
    if (deadline.expired()) throw std::runtime_error("the flood did not begin in time");
    std::this_thread::yield();
  }
}

void Flood::Run(const std::stop_token& stop) {
  EnterNetwork(options_.network);
  for (int i = 0; i < options_.at_first && !stop.stop_requested(); ++i) ConnectOne(i);
  const auto pause = std::chrono::nanoseconds(std::chrono::seconds(1)) / options_.per_second;
  auto due = Clock::now();
  // Missed connects are not caught up.
  for (int i = options_.at_first; !stop.stop_requested(); ++i) {
    ConnectOne(i);
    due = std::max(due + pause, Clock::now() - std::chrono::milliseconds(100));
    std::this_thread::sleep_until(due);
  }
}

void Flood::ConnectOne(int number) {
  const int source = number % options_.addresses;
  const std::string host =
      fmt::format("{}.{}.{}", options_.sources, source / 250, source % 250 + 1);
  const auto from = net::ToRaw({host, 0});
  const auto to = net::ToRaw({options_.host, options_.port});
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || !from || !to || ::bind(fd.get(), from->get(), from->length) != 0) return;
  if (::connect(fd.get(), to->get(), to->length) != 0 && errno != EINPROGRESS) return;
  if (!options_.words.empty()) {
    pollfd ready{fd.get(), POLLOUT, 0};
    (void)::poll(&ready, 1, 1000);
    (void)::send(fd.get(), options_.words.data(), options_.words.size(), MSG_NOSIGNAL);
  }
  open_.push_back(std::move(fd));
  if (open_.size() > kMaxOpen) open_.pop_front();
  connects_.fetch_add(1);
}

}  // namespace ferry::tests
