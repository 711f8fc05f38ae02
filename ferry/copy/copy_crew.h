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

// Copies host memory by several threads at once: a core alone moves less than a GPU's bus does. One
// thread at a time calls it. In a forked child, which has none of the threads, the caller copies
// alone.
class CopyCrew {
 public:
  // As many threads copy, the calling one among them; at least 1. Errors: kUnavailable (threads).
  static Result<std::unique_ptr<CopyCrew>> Create(int threads);
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // Returns when all is copied. The two do not overlap.
  void Copy(void* dst, const void* src, std::size_t bytes);

 private:
  struct Task {
    std::byte* dst = nullptr;
    const std::byte* src = nullptr;
    std::size_t bytes = 0;
    std::size_t part = 0;  // bytes of each member
    bool last = false;     // nothing to copy: members end
  };

  CopyCrew();
  void Work(std::size_t member);
  void CopyPart(std::size_t member) const;
  void Begin(const Task& task);

  Task task_;  // changes only while all members wait for a round
  std::atomic<std::uint32_t> round_{0};
  std::atomic<std::size_t> copying_{0};  // members, other than the calling thread
  const ProcessShared<std::vector<std::thread>> members_;
};

}  // namespace ferry
