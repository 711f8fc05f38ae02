// Chunk timeouts and their error texts.
#include "ferry/tcpx/host/chunk.h"

#include <fmt/core.h>

#include <utility>

namespace ferry::net::plugin {

void ChunkWatch::Start(std::size_t channel) {
  Deadline& oldest_by = channels_[channel].oldest_by;
  if (oldest_by.never()) oldest_by = Deadline::After(timeout_);
}

void ChunkWatch::Restart(std::size_t channel, bool has_next) {
  channels_[channel].oldest_by = has_next ? Deadline::After(timeout_) : Deadline::Never();
}

// Nothing moves while nobody polls, so that time does not count against the peer.
void ChunkWatch::ForgiveAbsence() {
  const auto now = Clock::now();
  const auto away = now - std::exchange(asked_at_, now);
  // Shorter gaps are the caller's ordinary rhythm.
  if (away < timeout_ / 4) return;
  for (Channel& channel : channels_) {
    if (!channel.oldest_by.never())
      channel.oldest_by = Deadline::At(channel.oldest_by.when() + away);
  }
}

Error ChunkWatch::Named(std::size_t channel, const Chunk& chunk, const Error& error) const {
  return Error(error.code(),
               fmt::format("{} chunk {} (offset {}, {} bytes, tag {}) on channel {} of {} "
                           "(device {}): {}",
                           doing_, chunk.id, chunk.offset, chunk.message.bytes, chunk.message.tag,
                           channel, channels_.size(), channels_[channel].device, error.message()));
}

Error ChunkWatch::Late(std::size_t channel, const Chunk& chunk, const char* what,
                       const std::string& rest) const {
  return Named(
      channel, chunk,
      Error(Code::kTimedOut, fmt::format("{} for {:.1f} s{}", what, Seconds(timeout_), rest)));
}

}  // namespace ferry::net::plugin
