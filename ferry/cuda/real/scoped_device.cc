// Pushes and pops a device's primary context.
#include "ferry/cuda/real/scoped_device.h"

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <mutex>

#include "ferry/core/log.h"
#include "ferry/cuda/error.h"
#include "ferry/cuda/real/driver.h"

namespace ferry::cuda::real {
namespace {

constexpr int kMaxDevices = 64;

// Never released, because making a primary context again is expensive.
// Contexts that are retained forever.
struct Contexts {
  std::mutex making;
  std::array<std::atomic<CUcontext>, kMaxDevices> made{};
};

Contexts& TheContexts() {
  static auto* const contexts = new Contexts;
  return *contexts;
}

Result<CUcontext> ContextOf(const Driver& driver, int ordinal) {
  if (ordinal < 0 || ordinal >= kMaxDevices) {
    return NoSuchDevice(ordinal, kMaxDevices, "cuDevicePrimaryCtxRetain");
  }
  Contexts& contexts = TheContexts();
  std::atomic<CUcontext>& made = contexts.made[static_cast<std::size_t>(ordinal)];
  // The common case takes no lock: Enter() runs for each call.
  if (CUcontext context = made.load(std::memory_order_acquire)) return context;
  const std::lock_guard lock(contexts.making);
  if (CUcontext context = made.load(std::memory_order_acquire)) return context;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUresult result = driver.device_get(&device, ordinal);
  if (result == CUDA_SUCCESS) result = driver.primary_context_retain(&context, device);
  if (result != CUDA_SUCCESS) {
    return DriverError(driver, result, fmt::format("making a context on device {}", ordinal));
  }
  made.store(context, std::memory_order_release);
  return context;
}

}  // namespace

Result<ScopedDevice> ScopedDevice::Enter(int ordinal) {
  FERRY_TRY_ASSIGN(const Driver* const driver, LoadDriver());
  FERRY_TRY_ASSIGN(CUcontext const context, ContextOf(*driver, ordinal));
  if (const CUresult result = driver->context_push(context); result != CUDA_SUCCESS) {
    return DriverError(*driver, result, fmt::format("making device {} current", ordinal));
  }
  return ScopedDevice();
}

void ScopedDevice::Leave() noexcept {
  const auto driver = LoadDriver();
  CUcontext context = nullptr;
  const CUresult result = (*driver)->context_pop(&context);
  // At process exit there is no context to restore.
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED) return;
  Log(LogLevel::kWarn, "cuda", "cuCtxPopCurrent failed with error {}", static_cast<int>(result));
}

bool HasContext(int ordinal) noexcept {
  return ordinal >= 0 && ordinal < kMaxDevices &&
         TheContexts().made[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire) !=
             nullptr;
}

}  // namespace ferry::cuda::real
