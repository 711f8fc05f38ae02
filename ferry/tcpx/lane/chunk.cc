// The names of chunks in errors and in the log.
#include "ferry/tcpx/lane/chunk.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "ferry/core/log.h"

namespace ferry::tcpx {
namespace {

std::string NameOf(const char* doing, const Chunk& chunk, int device) {
  return fmt::format("{} chunk {} (offset {}, {} bytes, tag {}) over device {}", doing,
                     chunk.number, chunk.offset, chunk.message.bytes, chunk.message.tag, device);
}

}  // namespace

Error ChunkReporter::Named(const Chunk& chunk, const Error& error) const {
  return Error(error.code(),
               fmt::format("{}: {}", NameOf(doing_, chunk, device_), error.message()));
}

void ChunkReporter::ReportIfLate(const Chunk& oldest, const char* what, std::size_t in_flight) {
  if (!LogEnabled(level_)) return;
  const auto now = Clock::now();
  if (std::exchange(oldest_, oldest.number) != oldest.number) {
    since_ = now;
    logged_ = false;
  }
  if (logged_ || now - since_ < late_after_) return;
  logged_ = true;
  Log(level_, "plugin", "{}: {} for {:.1f} s, with {} chunks in flight",
      NameOf(doing_, oldest, device_), what, Seconds(now - since_), in_flight);
}

}  // namespace ferry::tcpx
