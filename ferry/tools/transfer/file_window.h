// A file window: bounded memory through which a file of any size is transferred.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/core/units.h"
#include "ferry/tools/support/gpu_mirror.h"
#include "ferry/tools/support/mapping.h"
#include "ferry/tools/support/memory_choice.h"

namespace ferry::tools {

// Size of the window of a file in GPU memory, and of the pieces in which it is copied: the network
// transfers one piece while those before and after it are copied.
inline constexpr std::uint64_t kGpuWindowBytes = 128 * kMiB;
inline constexpr std::uint64_t kGpuPieceBytes = 32 * kMiB;

// The memory that a transfer reads a file's bytes from, or writes them to: the mapped file itself,
// or a window of GPU or host memory that the whole file passes through. Byte n of the file is at n
// % window(). For one thread.
class FileWindow {
 public:
  FileWindow() = default;
  // Chooses the memory for `file`, which the caller keeps alive. Errors: those of
  // GpuMirror::Allocate().
  static Result<FileWindow> Of(std::span<std::byte> file, MemoryChoice choice,
                               const Config& config);

  // Always uses a window, of at most `most` bytes: for providers that cannot register mapped files.
  static Result<FileWindow> Through(std::span<std::byte> file, MemoryChoice choice,
                                    std::uint64_t most, const Config& config);

  // The memory to register or send; empty for an empty file.
  std::span<std::byte> memory() const noexcept {
    return gpu_ ? gpu_.device() : beside_.bytes().empty() ? file_ : beside_.bytes();
  }
  std::uint64_t window() const noexcept { return memory().size(); }
  // The largest number of bytes to transfer at once.
  std::uint64_t piece_bytes() const noexcept { return gpu_ ? kGpuPieceBytes : file_.size(); }

  // Load() copies bytes of the file into the window, Store() from the window into the file: `bytes`
  // bytes from file offset `at` on, at most window(). Both block. Errors: those of
  // GpuMirror::Move().
  Status Load(std::uint64_t at, std::uint64_t bytes);
  Status Store(std::uint64_t at, std::uint64_t bytes);

 private:
  Status Pass(cuda::CopyKind kind, std::uint64_t at, std::uint64_t bytes);

  std::span<std::byte> file_;
  GpuMirror gpu_;      // none for host memory
  HostBuffer beside_;  // a window of host memory, or none
};

}  // namespace ferry::tools
