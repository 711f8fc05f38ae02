// The event loops of an endpoint, and their distribution to lanes.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"

namespace ferry::transfer {

// The event loops of an endpoint. Create() first; afterwards Choose() and front() from any thread.
class LoopSet {
 public:
  // Makes `count` > 0 loops without workers. Errors: kUnavailable (descriptors).
  Status Create(int count);
  // Starts the worker of the front loop last: whoever listens on it meets loops that run. Errors:
  // kUnavailable (threads).
  Status StartWorkers();
  // Stops and joins all workers; see EventLoop::Stop().
  void Stop();

  EventLoop* front() const noexcept { return loops_.front().get(); }
  // A loop for each lane of a new connection, home loop first. Connections take turns.
  std::vector<EventLoop*> Choose(std::size_t lanes);

 private:
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace ferry::transfer
