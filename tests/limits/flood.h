// A flood of TCP connects from many addresses.
#pragma once
#include <netinet/in.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"

namespace ferry::tests {

struct FloodOptions {
  std::string network = {};  // the namespace to connect from; "" for this one
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string sources = "127.1";  // the first half of the addresses to connect from
  int addresses = 400;
  int at_first = 300;  // connects at once
  int per_second = 100;
  std::vector<std::byte> words = {};  // what each says; nothing more follows
};

// Connects from many addresses in turn, on its own thread, until it is destroyed; keeps the latest
// connections open.
class Flood {
 public:
  explicit Flood(const FloodOptions& options);

  int connects() const noexcept { return connects_.load(); }
  // Blocks until the initial connects have been made.
  void AwaitBegun() const;

 private:
  static constexpr std::size_t kMaxOpen = 1000;

  void Run(const std::stop_token& stop);
  void ConnectOne(int number);

  const FloodOptions options_;
  std::atomic<int> connects_{0};
  std::deque<UniqueFd> open_;  // the thread's
  std::jthread thread_;
};

}  // namespace ferry::tests
