// Threads that copy host memory in parallel.
#include "ferry/copy/parallel_memcpy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "ferry/core/check.h"
#include "ferry/core/deadline.h"
#include "ferry/core/loop/thread.h"
#include "ferry/core/units.h"

namespace ferry {
namespace {

// Waking a thread, and waiting for it, costs about as much as copying this many bytes.
constexpr std::size_t kMinPart = 128 * kKiB;
constexpr std::size_t kPage = 4 * kKiB;
// How long a thread polls for the next call before it sleeps.
constexpr auto kAwake = std::chrono::microseconds(200);

}  // namespace

ParallelMemcpy::ParallelMemcpy() : members_(std::make_shared<std::vector<std::thread>>()) {}

Result<std::unique_ptr<ParallelMemcpy>> ParallelMemcpy::Create(int threads) {
  FERRY_CHECK(threads >= 1, threads);
  std::unique_ptr<ParallelMemcpy> parallel_memcpy(new ParallelMemcpy);
  for (int i = 1; i < threads; ++i) {
    FERRY_TRY_ASSIGN(std::thread member,
                     StartThread("copies of host memory", [self = parallel_memcpy.get(), i] {
                       self->Work(static_cast<std::size_t>(i));
                     }));
    parallel_memcpy->members_->push_back(std::move(member));
  }
  return parallel_memcpy;
}

ParallelMemcpy::~ParallelMemcpy() {
  // A child of fork() has none of the threads, so there is nobody to join.
  if (members_.forked()) return;
  Begin({.last = true});
  for (std::thread& member : *members_) member.join();
}

void ParallelMemcpy::Copy(void* dst, const void* src, std::size_t bytes) {
  const std::size_t share = bytes / (members_->size() + 1);
  if (members_->empty() || share < kMinPart || members_.forked()) {
    if (bytes > 0) std::memcpy(dst, src, bytes);
    return;
  }
  Begin({.dst = static_cast<std::byte*>(dst),
         .src = static_cast<const std::byte*>(src),
         .bytes = bytes,
         // Whole pages, so that no two threads write the same page or cache line; the last part is
         // shorter.
         .part = (share + kPage) / kPage * kPage});
  CopyPart(0);
  // Acquire: what the members have copied is visible to the caller afterwards.
  while (copying_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
}

void ParallelMemcpy::Begin(const Task& task) {
  // Plain: the members have finished the previous round, and read this after the release below.
  task_ = task;
  copying_.store(members_->size(), std::memory_order_relaxed);
  // Release: a thread that sees the new round also sees the task.
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
}

void ParallelMemcpy::CopyPart(std::size_t member) const {
  const std::size_t at = std::min(member * task_.part, task_.bytes);
  const std::size_t bytes = std::min(task_.part, task_.bytes - at);
  if (bytes > 0) std::memcpy(task_.dst + at, task_.src + at, bytes);
}

// No round begins before all threads have finished the previous one, so none is missed.
void ParallelMemcpy::Work(std::size_t member) {
  for (std::uint32_t seen = 0;; ++seen) {
    const Deadline sleep = Deadline::After(kAwake);
    while (round_.load(std::memory_order_acquire) == seen && !sleep.expired()) {
      std::this_thread::yield();
    }
    round_.wait(seen, std::memory_order_acquire);
    if (task_.last) return;
    CopyPart(member);
    copying_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace ferry
