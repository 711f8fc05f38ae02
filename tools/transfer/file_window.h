// A file window: bounded memory through which a file of any size is transferred.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/mapping.h"
#include "ferry/core/result.h"
#include "ferry/core/units.h"
#include "tools/support/gpu_mirror.h"
#include "tools/support/memory_choice.h"

namespace ferry::tools {

// Size of the window of a file, by the kind of its memory, and of the pieces in which it is copied:
// the network transfers one piece while those before and after it are read or written.
inline constexpr std::uint64_t kGpuWindowBytes = 128 * kMiB;
inline constexpr std::uint64_t kHostWindowBytes = 64 * kMiB;
inline constexpr std::uint64_t kPiecesOfWindow = 4;

// The memory that a transfer reads a file's bytes from, or writes them to: a window of GPU or host
// memory that the whole file passes through. Byte n of the file is at n % window(). For one thread.
class FileWindow {
 public:
  // Reads or writes the file's bytes from an offset on; in order.
  using Fill = std::function<Status(std::uint64_t at, std::span<std::byte> into)>;
  using Drain = std::function<Status(std::uint64_t at, std::span<const std::byte> from)>;

  FileWindow() = default;
  // For a file of `size` bytes; of at most `most` bytes. Errors: those of GpuMirror::Allocate().
  static Result<FileWindow> Of(std::uint64_t size, MemoryChoice choice, const Config& config,
                               std::uint64_t most);
  static Result<FileWindow> Of(std::uint64_t size, MemoryChoice choice, const Config& config) {
    return Of(size, choice, config, choice.is_host() ? kHostWindowBytes : kGpuWindowBytes);
  }

  // The memory to register or send; empty for an empty file.
  std::span<std::byte> memory() const noexcept { return gpu_ ? gpu_.device() : host(); }
  std::uint64_t window() const noexcept { return host().size(); }
  // The largest number of bytes to transfer at once.
  std::uint64_t piece_bytes() const noexcept {
    return std::max<std::uint64_t>(window() / kPiecesOfWindow, 1);
  }

  // Load() brings bytes of the file into the window, Store() those of the window into the file:
  // `bytes` bytes from file offset `at` on, at most window(). Both block. Errors: those of the
  // function and of GpuMirror::Move().
  Status Load(std::uint64_t at, std::uint64_t bytes, const Fill& fill);
  Status Store(std::uint64_t at, std::uint64_t bytes, const Drain& drain);

 private:
  std::span<std::byte> host() const noexcept { return gpu_ ? gpu_.host() : host_.bytes; }
  // Calls `pass(at, place in the window, bytes)` for each contiguous part.
  Status InParts(std::uint64_t at, std::uint64_t bytes,
                 const std::function<Status(std::uint64_t, std::uint64_t, std::uint64_t)>& pass);

  GpuMirror gpu_;    // none for host memory
  HugeMemory host_;  // none for GPU memory
};

}  // namespace ferry::tools
