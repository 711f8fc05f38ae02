// A file window: bounded memory through which a file of any size is transferred.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/core/units.h"
#include "ferry/tools/gpu_mirror.h"
#include "ferry/tools/mapping.h"
#include "ferry/tools/memory_choice.h"

namespace ferry::tools {

// Of a file of any size so much is on a GPU at once, and in so many pieces it comes and goes: what
// the network needs while the pieces before and behind are copied.
inline constexpr std::uint64_t kGpuWindowBytes = 128 * kMiB;
inline constexpr std::uint64_t kGpuPieceBytes = 32 * kMiB;

// The memory that a transfer finds a file's bytes in, or puts them into: the mapped file itself, or
// a window of GPU memory, or of host memory beside the file, that all of it passes. Byte n of the
// file is at n % window(). One thread.
class Passage {
 public:
  Passage() = default;
  // Of `file`, which the caller keeps. Errors: those of GpuMirror::Allocate().
  static Result<Passage> Of(std::span<std::byte> file, MemoryChoice choice, const Config& config);

  // Always by a window, of at most so many bytes: for those that cannot register any file.
  static Result<Passage> Through(std::span<std::byte> file, MemoryChoice choice, std::uint64_t most,
                                 const Config& config);

  // To be registered, or sent; empty for an empty file.
  std::span<std::byte> memory() const noexcept {
    return gpu_ ? gpu_.device() : beside_.bytes().empty() ? file_ : beside_.bytes();
  }
  std::uint64_t window() const noexcept { return memory().size(); }
  // The most that should pass at once.
  std::uint64_t piece_bytes() const noexcept { return gpu_ ? kGpuPieceBytes : file_.size(); }

  // The file's bytes from `at` on, at most as many as the window has, come into it; or out of it
  // into the file. Errors: those of GpuMirror::Move().
  Status Load(std::uint64_t at, std::uint64_t bytes);
  Status Store(std::uint64_t at, std::uint64_t bytes);

 private:
  Status Pass(cuda::CopyKind kind, std::uint64_t at, std::uint64_t bytes);

  std::span<std::byte> file_;
  GpuMirror gpu_;      // none for host memory
  HostBuffer beside_;  // a window of host memory, or none
};

}  // namespace ferry::tools
