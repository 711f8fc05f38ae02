// The names of chunks in errors and in the log.
#include "ferry/tcpx/lane/chunk.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "ferry/core/log.h"

namespace ferry::tcpx {

std::string ChunkReporter::NameOf(const Chunk& chunk) const {
  return fmt::format("chunk={} tag={} size={} offset={} (payload {}, channel {}, device {})",
                     chunk.index, chunk.message.tag, chunk.message.bytes, chunk.offset,
                     chunk.payload, terms_.channel, device_);
}

std::string ChunkReporter::NameOfPayload(std::uint64_t payload, std::uint64_t bytes) const {
  Chunk first;
  first.payload = payload;
  first.message.bytes = static_cast<std::size_t>(std::min(bytes, terms_.bytes));
  first.message.tag = terms_.Tag(payload, 0);
  if (bytes <= terms_.bytes) return NameOf(first);
  const std::uint64_t last = (bytes - 1) / terms_.bytes;
  return fmt::format("{} to chunk={} tag={}", NameOf(first), last, terms_.Tag(payload, last));
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
  if (logged_ || now - since_ < terms_.late_after) return;
  logged_ = true;
  Log(level_, "plugin", "{}", Waits());
}

std::string ChunkReporter::Waits() const {
  if (what_ == nullptr) return {};
  return fmt::format("{} {}: {} for {:.1f} s, with {} chunks in flight", doing_, NameOf(oldest_),
                     what_, Seconds(Clock::now() - since_), in_flight_);
}

}  // namespace ferry::tcpx
