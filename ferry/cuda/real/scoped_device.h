// Makes a device current for a scope.
#pragma once
#include <utility>

#include "ferry/core/result.h"

namespace ferry::cuda::real {

// Makes a device current on this thread for a scope, then gives the thread back what it had, be it
// nothing. By the driver's stack of contexts: cudaSetDevice() would make a context on whatever
// device it is told to go back to. The first one for a device makes its context (the primary one,
// which everybody in the process shares), some hundred milliseconds and some hundred MiB of it.
class ScopedDevice {
 public:
  static Result<ScopedDevice> Enter(int ordinal);
  ScopedDevice(ScopedDevice&& other) noexcept : entered_(std::exchange(other.entered_, false)) {}
  ScopedDevice& operator=(ScopedDevice&&) = delete;
  ~ScopedDevice();

 private:
  ScopedDevice() = default;
  bool entered_ = true;
};

// Whether one was ever entered.
bool HasContext(int ordinal) noexcept;

}  // namespace ferry::cuda::real
