// GPU memory paired with pinned host memory, for tools that fill and check it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tools/mapping.h"
#include "ferry/tools/memory_choice.h"

namespace ferry::tools {

// GPU memory with as much pinned host memory beside it, by which its bytes come and go. One thread.
class GpuMirror {
 public:
  GpuMirror() = default;
  GpuMirror(GpuMirror&&) = default;
  GpuMirror& operator=(GpuMirror&& other) noexcept;
  ~GpuMirror() = default;
  // `choice` is no host memory. Errors: those of MemoryChoice::Open(), kUnavailable for more than
  // there is.
  static Result<GpuMirror> Allocate(MemoryChoice choice, std::uint64_t bytes, const Config& config);

  explicit operator bool() const noexcept { return static_cast<bool>(device_); }
  // What is transferred, from a page's beginning on, as plugins want it; not for the CPU.
  std::span<std::byte> device() const noexcept;
  std::span<std::byte> host() const noexcept { return host_.bytes(); }

  // Of `bytes` from `at` on, from host() to device() or back; returns when they are there. Errors:
  // those of DeviceApi::Wait().
  Status Move(cuda::CopyKind kind, std::uint64_t at, std::uint64_t bytes);

 private:
  HostBuffer host_;
  cuda::DeviceApi* api_ = nullptr;
  cuda::HostRegistration pinned_;  // host_; goes before it
  cuda::DeviceBuffer device_;
  cuda::Stream stream_;
};

}  // namespace ferry::tools
