// Makes a device current for a scope.
#pragma once
#include <utility>

#include "ferry/core/result.h"

namespace ferry::cuda::real {

// Makes a device current on this thread for a scope, then restores the previous context, or none.
// Uses the driver's context stack: cudaSetDevice() would create a context on the device that it
// switches back to. The first use of a device creates its primary context, which the whole process
// shares; that takes some hundred milliseconds and some hundred MiB of its memory.
class ScopedDevice {
 public:
  static Result<ScopedDevice> Enter(int ordinal);
  ScopedDevice(ScopedDevice&& other) noexcept : entered_(std::exchange(other.entered_, false)) {}
  ScopedDevice& operator=(ScopedDevice&&) = delete;
  ~ScopedDevice() {
    if (entered_) Leave();
  }
  // The device stays current until Leave().
  void Keep() noexcept { entered_ = false; }
  static void Leave() noexcept;

 private:
  ScopedDevice() = default;
  bool entered_ = true;
};

// Whether the device was ever entered.
bool HasContext(int ordinal) noexcept;

}  // namespace ferry::cuda::real
