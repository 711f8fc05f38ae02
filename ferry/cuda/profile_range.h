// Named time ranges for NVIDIA's profilers.
#pragma once

namespace ferry::cuda {

// A named stretch of this thread's time for NVIDIA's profilers, under the domain "ferry" (NVTX 3);
// nothing where no profiler watches, or in builds without CUDA. Of one thread, in nested scopes.
class ProfileRange {
 public:
  // The name is copied if it is needed.
  explicit ProfileRange(const char* name) noexcept;
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
  ~ProfileRange();
};

}  // namespace ferry::cuda
