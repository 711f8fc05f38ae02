// The sockets of a stand-in connection, over 127.0.0.1.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ferry/core/unique_handle.h"

namespace ferry::standin {

struct SocketTraits {
  using Handle = int;
  static constexpr Handle kInvalid = -1;
  static void Destroy(Handle fd) noexcept;
};
using Socket = UniqueHandle<SocketTraits>;

struct Link {
  Socket control;
  std::vector<Socket> data;
};

// Identifies a listener and the number of data sockets that it expects.
struct Rendezvous {
  std::uint64_t id = 0;
  std::uint32_t port = 0;
  std::uint32_t sockets = 0;
};

// Block until all is moved. False at the end of the stream, after an error, or once another thread
// has called shutdown().
bool SendAll(int fd, const std::byte* from, std::size_t bytes);
bool ReceiveAll(int fd, std::byte* to, std::size_t bytes);

// Listens on a port chosen by the system and writes it to `*port`. On failure it logs the reason
// and returns an invalid descriptor.
Socket ListenOnLoopback(std::uint32_t* port);
// Block until the other side has all its sockets. Failures are logged.
std::optional<Link> ConnectLink(const Rendezvous& rendezvous);
std::optional<Link> AcceptLink(int listener, const Rendezvous& rendezvous);

// A connection that a thread of its own is making, for a caller that polls. Any thread.
class Attempt {
 public:
  enum class State { kRunning, kReady, kFailed };

  // The thread is nobody's, as in the original: it ends when `make` does, and shares the attempt
  // with whoever polls.
  static std::shared_ptr<Attempt> Start(std::function<std::optional<Link>()> make);
  // For an injected fault: an attempt that never becomes ready.
  static std::shared_ptr<Attempt> Never();

  State state();
  // Takes the result of an attempt that is kReady. Call once.
  Link TakeLink();

 private:
  void Finish(std::optional<Link> link);

  std::mutex mutex_;
  State state_ = State::kRunning;
  Link link_;
};

}  // namespace ferry::standin
