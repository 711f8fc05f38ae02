// Named time ranges for NVIDIA's profilers.
#pragma once

namespace ferry::cuda {

// A named time range of this thread for NVIDIA's profilers, in the domain "ferry" (NVTX 3); does
// nothing without a profiler, or in builds without CUDA. Create and destroy on one thread, in
// nested scopes.
class ProfileRange {
 public:
  // Copies the name if it is needed.
  explicit ProfileRange(const char* name) noexcept;
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
  ~ProfileRange();  // NOLINT(performance-trivially-destructible): not in builds with CUDA
};

}  // namespace ferry::cuda
