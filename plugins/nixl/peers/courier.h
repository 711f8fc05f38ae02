// The thread that lets jobs go on when their operations end, whether or not anybody polls.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/transfer/operation.h"
#include "plugins/nixl/job.h"

namespace ferry::nixl {

// Calls Job::Advance() at the end of the operations that jobs wait for. Any thread.
class Courier {
 public:
  // Errors: kUnavailable (descriptors, threads).
  static Result<std::unique_ptr<Courier>> Create();
  // Drops the jobs that still wait.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // Advances the job once, when the operation has ended.
  void Watch(std::shared_ptr<Job> job, transfer::Operation operation);
  // Advances the job once, after the pause, however often this is asked until then.
  void Retry(std::shared_ptr<Job> job, Clock::duration pause = milliseconds(1));
  // Waits until no job waits any more, or until the deadline.
  void WaitIdle(Deadline deadline);

 private:
  // An operation and the job that waits for it, which its poster may have dropped.
  struct Watched {
    std::shared_ptr<Job> job;
    transfer::Operation operation;  // keeps its descriptor open
  };

  Courier(UniqueFd epoll, UniqueFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  void Run();
  void Wake() const noexcept;
  std::shared_ptr<Job> TakeWatched(std::uint64_t id);
  std::vector<std::shared_ptr<Job>> TakeDue();
  Deadline NextRetryLocked(Deadline due) const;

  const UniqueFd epoll_;
  const UniqueFd wake_;  // an eventfd
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Watched> watched_;  // under mutex_, by the number epoll knows
  std::vector<Watched> undescribed_;          // under mutex_: no descriptor was to be had
  // Under mutex_: when; shared with their posters.
  std::map<std::shared_ptr<Job>, Clock::time_point> to_retry_;
  std::uint64_t next_ = 1;     // under mutex_; 0 is wake_
  std::size_t advancing_ = 0;  // under mutex_
  bool stopping_ = false;      // under mutex_
  std::thread thread_;
};

}  // namespace ferry::nixl
