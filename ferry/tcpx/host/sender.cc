// Sends chunks over several channels of a plugin.
#include "ferry/tcpx/host/sender.h"

#include <fmt/core.h>

#include <utility>

namespace ferry::net::plugin {

Sender::Sender(std::vector<std::unique_ptr<SendComm>> comms,
               std::chrono::milliseconds chunk_timeout)
    : watch_("sending", chunk_timeout) {
  for (auto& comm : comms) {
    watch_.AddChannel(comm->device());
    channels_.push_back({std::move(comm), {}, {}});
  }
}

void Sender::Send(std::size_t channel, const Chunk& chunk) {
  channels_[channel].waiting.push_back(chunk);
  ++in_flight_;
}

Status Sender::Progress(std::vector<std::uint64_t>* done) {
  return watch_.Take([&] { return Advance(done); });
}

Status Sender::Advance(std::vector<std::uint64_t>* done) {
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    FERRY_TRY(Begin(i));
    FERRY_TRY(Test(i, done));
  }
  return Ok();
}

Status Sender::Begin(std::size_t index) {
  Channel& channel = channels_[index];
  while (!channel.waiting.empty() && channel.comm->room() > 0) {
    watch_.Start(index);
    const Chunk& next = channel.waiting.front();
    auto begun = channel.comm->Send(next.message);
    if (!begun) return watch_.Named(index, next, begun.error());
    if (!*begun) {
      // With sends begun the timeout is that of the oldest of them, and Test() looks at it.
      if (!channel.begun.empty() || !watch_.IsLate(index)) break;
      return watch_.Late(index, next, "the plugin has not begun to send it",
                         "; see that the peer is well, and reconnect");
    }
    channel.begun.push_back(next);
    channel.waiting.pop_front();
  }
  return Ok();
}

Status Sender::Test(std::size_t index, std::vector<std::uint64_t>* done) {
  Channel& channel = channels_[index];
  while (!channel.begun.empty()) {
    const Chunk& oldest = channel.begun.front();
    auto sent = channel.comm->Test();
    if (!sent) return watch_.Named(index, oldest, sent.error());
    if (!*sent) {
      if (!watch_.IsLate(index)) return Ok();
      return watch_.Late(
          index, oldest, "it has not left",
          fmt::format(", with {} sends begun; see that the peer receives, and reconnect",
                      channel.begun.size()));
    }
    done->push_back(oldest.id);
    channel.begun.pop_front();
    // A chunk that only waits for room waits for those before it, and has no timeout of its own
    // yet.
    watch_.Restart(index, !channel.begun.empty());
    --in_flight_;
  }
  return Ok();
}

}  // namespace ferry::net::plugin
