// Implements the file window through which a file passes GPU or host memory.

#include "tools/transfer/file_window.h"

#include <algorithm>

#include "ferry/core/check.h"

namespace ferry::tools {

Result<FileWindow> FileWindow::Of(std::uint64_t size, MemoryChoice choice, const Config& config,
                                  std::uint64_t most) {
  FileWindow file_window;
  // For an empty file, too, so that a GPU that does not exist is reported.
  FERRY_TRY(choice.Open(config));
  const std::uint64_t window = std::min(size, most);
  if (window == 0) return file_window;
  if (choice.is_host()) {
    FERRY_TRY_ASSIGN(file_window.host_, MapHugePages(window));
  } else {
    FERRY_TRY_ASSIGN(file_window.gpu_, GpuMirror::Allocate(choice, window, config));
  }
  return file_window;
}

Status FileWindow::InParts(
    std::uint64_t at, std::uint64_t bytes,
    const std::function<Status(std::uint64_t, std::uint64_t, std::uint64_t)>& pass) {
  FERRY_CHECK(bytes <= window(), at, bytes, window());
  for (const std::uint64_t end = at + bytes; at < end;) {
    const std::uint64_t place = at % window();
    const std::uint64_t part = std::min(end - at, window() - place);
    FERRY_TRY(pass(at, place, part));
    at += part;
  }
  return Ok();
}

Status FileWindow::Load(std::uint64_t at, std::uint64_t bytes, const Fill& fill) {
  return InParts(at, bytes,
                 [&](std::uint64_t from, std::uint64_t place, std::uint64_t part) -> Status {
                   FERRY_TRY(fill(from, host().subspan(place, part)));
                   if (gpu_) FERRY_TRY(gpu_.Move(cuda::CopyKind::kHostToDevice, place, part));
                   return Ok();
                 });
}

Status FileWindow::Store(std::uint64_t at, std::uint64_t bytes, const Drain& drain) {
  return InParts(at, bytes,
                 [&](std::uint64_t to, std::uint64_t place, std::uint64_t part) -> Status {
                   if (gpu_) FERRY_TRY(gpu_.Move(cuda::CopyKind::kDeviceToHost, place, part));
                   return drain(to, host().subspan(place, part));
                 });
}

}  // namespace ferry::tools
