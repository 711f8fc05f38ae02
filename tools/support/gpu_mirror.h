// GPU memory paired with pinned host memory, for tools that fill and check it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "tools/support/mapping.h"
#include "tools/support/memory_choice.h"

namespace ferry::tools {

// GPU memory with pinned host memory of the same size, through which its bytes are copied. For one
// thread.
class GpuMirror {
 public:
  GpuMirror() = default;
  GpuMirror(GpuMirror&&) = default;
  GpuMirror& operator=(GpuMirror&& other) noexcept;
  ~GpuMirror() = default;
  // `choice` must name a GPU. Errors: those of MemoryChoice::Open(), kUnavailable if memory is
  // short.
  static Result<GpuMirror> Allocate(MemoryChoice choice, std::uint64_t bytes, const Config& config);

  explicit operator bool() const noexcept { return static_cast<bool>(device_); }
  // The GPU memory to transfer, page-aligned as plugins require; the CPU must not access it.
  std::span<std::byte> device() const noexcept;
  std::span<std::byte> host() const noexcept { return host_.bytes(); }

  // Copies `bytes` bytes at offset `at` from host() to device() or back; blocks until they are
  // there. Errors: those of DeviceApi::Wait().
  Status Move(cuda::CopyKind kind, std::uint64_t at, std::uint64_t bytes);

 private:
  HostBuffer host_;
  cuda::DeviceApi* api_ = nullptr;
  cuda::HostRegistration pinned_;  // host_; goes before it
  cuda::DeviceBuffer device_;
  cuda::Stream stream_;
};

}  // namespace ferry::tools
