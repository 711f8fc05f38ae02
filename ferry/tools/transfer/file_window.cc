// Implements the file window through which a file passes GPU or registered memory.

#include "ferry/tools/transfer/file_window.h"

#include <algorithm>
#include <cstring>

#include "ferry/core/check.h"

namespace ferry::tools {

Result<FileWindow> FileWindow::Of(std::span<std::byte> file, MemoryChoice choice,
                                  const Config& config) {
  if (!choice.is_host()) return Through(file, choice, kGpuWindowBytes, config);
  FileWindow file_window;
  file_window.file_ = file;
  return file_window;
}

Result<FileWindow> FileWindow::Through(std::span<std::byte> file, MemoryChoice choice,
                                       std::uint64_t most, const Config& config) {
  FileWindow file_window;
  file_window.file_ = file;
  // Opens the GPU for an empty file too, so that a GPU that does not exist is reported.
  FERRY_TRY(choice.Open(config));
  if (file.empty()) return file_window;
  const std::uint64_t window = std::min<std::uint64_t>(file.size(), most);
  if (choice.is_host()) {
    FERRY_TRY_ASSIGN(file_window.beside_, HostBuffer::Allocate(window));
  } else {
    FERRY_TRY_ASSIGN(file_window.gpu_, GpuMirror::Allocate(choice, window, config));
  }
  return file_window;
}

Status FileWindow::Load(std::uint64_t at, std::uint64_t bytes) {
  return Pass(cuda::CopyKind::kHostToDevice, at, bytes);
}

Status FileWindow::Store(std::uint64_t at, std::uint64_t bytes) {
  return Pass(cuda::CopyKind::kDeviceToHost, at, bytes);
}

Status FileWindow::Pass(cuda::CopyKind kind, std::uint64_t at, std::uint64_t bytes) {
  if (!gpu_ && beside_.bytes().empty()) return Ok();
  FERRY_CHECK(bytes <= window() && at + bytes <= file_.size(), at, bytes, window());
  for (const std::uint64_t end = at + bytes; at < end;) {
    const std::uint64_t place = at % window();
    const std::uint64_t part = std::min(end - at, window() - place);
    std::byte* const in_file = file_.data() + at;
    std::byte* const beside = (gpu_ ? gpu_.host() : beside_.bytes()).data() + place;
    if (kind == cuda::CopyKind::kHostToDevice) std::memcpy(beside, in_file, part);
    if (gpu_) FERRY_TRY(gpu_.Move(kind, place, part));
    if (kind == cuda::CopyKind::kDeviceToHost) std::memcpy(in_file, beside, part);
    at += part;
  }
  return Ok();
}

}  // namespace ferry::tools
