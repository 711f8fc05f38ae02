#include "ferry/net/plugin/sender.h"

#include <fmt/core.h>

#include <utility>

namespace ferry::net::plugin {

Sender::Sender(std::vector<std::unique_ptr<SendComm>> comms,
               std::chrono::milliseconds chunk_timeout)
    : chunk_timeout_(chunk_timeout) {
  for (auto& comm : comms) channels_.push_back({std::move(comm), {}, {}, Deadline::Never()});
}

void Sender::Send(std::size_t channel, const Chunk& chunk) {
  channels_[channel].waiting.push_back(chunk);
  ++under_way_;
}

Status Sender::Progress(std::vector<std::uint64_t>* done) {
  if (failed_) return *failed_;
  Status status = Advance(done);
  if (!status) failed_ = status.error();
  return status;
}

Status Sender::Advance(std::vector<std::uint64_t>* done) {
  ForgiveAbsence();
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    FERRY_TRY(Begin(i));
    FERRY_TRY(Test(i, done));
  }
  return Ok();
}

Status Sender::Begin(std::size_t index) {
  Channel& channel = channels_[index];
  while (!channel.waiting.empty() && channel.comm->room() > 0) {
    if (channel.oldest_by.never()) channel.oldest_by = Deadline::After(chunk_timeout_);
    const Chunk& next = channel.waiting.front();
    auto begun = channel.comm->Send(next.message);
    if (!begun) return Named(index, next, begun.error());
    if (!*begun) {
      if (!channel.begun.empty() || !channel.oldest_by.expired()) break;
      return Named(index, next,
                   Error(Code::kTimedOut,
                         fmt::format("the plugin has not begun to send it for {:.1f} s; see that "
                                     "the peer is well, and reconnect",
                                     Seconds(chunk_timeout_))));
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
    if (!sent) return Named(index, oldest, sent.error());
    if (!*sent) {
      if (!channel.oldest_by.expired()) return Ok();
      return Named(index, oldest,
                   Error(Code::kTimedOut,
                         fmt::format("it has not left for {:.1f} s, with {} sends begun; see that "
                                     "the peer receives, and reconnect",
                                     Seconds(chunk_timeout_), channel.begun.size())));
    }
    done->push_back(oldest.id);
    channel.begun.pop_front();
    channel.oldest_by = channel.begun.empty() ? Deadline::Never() : Deadline::After(chunk_timeout_);
    --under_way_;
  }
  return Ok();
}

// While nobody asked, nothing moved: what is late then is this side.
void Sender::ForgiveAbsence() {
  const auto now = Clock::now();
  const auto away = now - std::exchange(asked_at_, now);
  if (away < chunk_timeout_ / 4) return;
  for (Channel& channel : channels_) {
    if (!channel.oldest_by.never())
      channel.oldest_by = Deadline::At(channel.oldest_by.when() + away);
  }
}

Error Sender::Named(std::size_t channel, const Chunk& chunk, const Error& error) const {
  return Error(error.code(),
               fmt::format("sending chunk {} (offset {}, {} bytes, tag {}) on channel {} of {} "
                           "(device {}): {}",
                           chunk.id, chunk.offset, chunk.message.bytes, chunk.message.tag, channel,
                           channels_.size(), channels_[channel].comm->device(), error.message()));
}

}  // namespace ferry::net::plugin
