// Parallel memcpy over several threads.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "ferry/core/fork.h"
#include "ferry/core/result.h"

namespace ferry {

// Parallel memcpy: copies host memory with several threads at once, because one core moves less
// than a GPU's bus does. One thread at a time may call it. In a forked child, which has none of the
// threads, the caller copies alone.
class ParallelMemcpy {
 public:
  // `threads` threads copy, including the calling one; at least 1. Errors: kUnavailable (threads).
  static Result<std::unique_ptr<ParallelMemcpy>> Create(int threads);
  ~ParallelMemcpy();
  ParallelMemcpy(const ParallelMemcpy&) = delete;
  ParallelMemcpy& operator=(const ParallelMemcpy&) = delete;

  // Blocks until all bytes are copied. The ranges must not overlap.
  void Copy(void* dst, const void* src, std::size_t bytes);

 private:
  struct Task {
    std::byte* dst = nullptr;
    const std::byte* src = nullptr;
    std::size_t bytes = 0;
    std::size_t part = 0;  // bytes of each thread
    bool last = false;     // no copy: threads end
  };

  ParallelMemcpy();
  void Work(std::size_t member);
  void CopyPart(std::size_t member) const;
  void Begin(const Task& task);

  Task task_;  // changes only while all threads wait for a round
  std::atomic<std::uint32_t> round_{0};
  std::atomic<std::size_t> copying_{0};  // threads still copying, other than the caller
  const ProcessShared<std::vector<std::thread>> members_;
};

}  // namespace ferry
