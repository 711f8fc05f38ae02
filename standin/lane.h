// A data socket with the thread that moves its bytes.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "standin/link.h"

namespace ferry::standin {

// A chunk of a message on its way over a data socket.
struct Task {
  std::size_t slot = 0;  // of the comm's requests
  std::size_t lane = 0;
  std::uint64_t offset = 0;  // in the message
  std::uint32_t bytes = 0;
  bool failed = false;  // set when it has been done
};

// Tasks that lanes have done, for the comm's next test(). Any thread.
class DoneTasks {
 public:
  void Add(const Task& task);
  std::vector<Task> TakeAll();

 private:
  std::mutex mutex_;
  std::vector<Task> tasks_;
};

// A data socket and the thread that moves its bytes, one task after the other. After one that has
// failed all others fail.
class Lane {
 public:
  // `work` moves a task's bytes, on the thread; false if it cannot.
  Lane(Socket socket, std::function<bool(Lane&, const Task&)> work, DoneTasks* done);
  // Interrupts the task in flight.
  ~Lane();

  int fd() const { return socket_.get(); }
  void Push(const Task& task);

  // For `work`: false if the lane ends meanwhile.
  bool Sleep(std::chrono::milliseconds time);
  // For `work`: nothing passes any more, in neither direction.
  void HalfClose();

 private:
  void Run();

  Socket socket_;
  std::function<bool(Lane&, const Task&)> work_;
  DoneTasks* done_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool ending_ = false;
  std::thread thread_;  // last: it begins at once
};

}  // namespace ferry::standin
