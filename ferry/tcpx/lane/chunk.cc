// The names of chunks in errors and in the log.
#include "ferry/tcpx/lane/chunk.h"

#include <fmt/core.h>

#include <string>

#include "ferry/core/log.h"

namespace ferry::tcpx {

std::string ChunkReporter::NameOf(const Chunk& chunk) const {
  return fmt::format("chunk={} tag={} size={} offset={} (payload {}, channel {}, device {})",
                     chunk.index, chunk.message.tag, chunk.message.bytes, chunk.offset,
                     chunk.payload, channel_, device_);
}

Error ChunkReporter::Named(const Chunk& chunk, const Error& error) const {
  return Error(error.code(), fmt::format("{} {}: {}", doing_, NameOf(chunk), error.message()));
}

void ChunkReporter::Await(const Chunk& oldest, const char* what, std::size_t in_flight) {
  const auto now = Clock::now();
  if (what_ == nullptr || oldest_.number != oldest.number) {
    since_ = now;
    logged_ = false;
  }
  oldest_ = oldest;
  what_ = what;
  in_flight_ = in_flight;
  if (logged_ || now - since_ < late_after_) return;
  logged_ = true;
  Log(level_, "plugin", "{}", Waits());
}

std::string ChunkReporter::Waits() const {
  if (what_ == nullptr) return {};
  return fmt::format("{} {}: {} for {:.1f} s, with {} chunks in flight", doing_, NameOf(oldest_),
                     what_, Seconds(Clock::now() - since_), in_flight_);
}

}  // namespace ferry::tcpx
