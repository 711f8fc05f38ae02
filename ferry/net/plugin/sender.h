#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/plugin/comm.h"
#include "ferry/net/plugin/receiver.h"

namespace ferry::net::plugin {

// Sends chunks over several channels. One thread at a time; nothing waits.
class Sender {
 public:
  // The plugin outlives it. A chunk that is the oldest of its channel for `chunk_timeout` is an
  // error.
  Sender(std::vector<std::unique_ptr<SendComm>> comms, std::chrono::milliseconds chunk_timeout);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  std::size_t channels() const noexcept { return channels_.size(); }
  SendComm& comm(std::size_t channel) noexcept { return *channels_[channel].comm; }

  // The chunk is this channel's next message. Its memory stays as it is until it is done.
  void Send(std::size_t channel, const Chunk& chunk);
  // As Receiver::Progress().
  Status Progress(std::vector<std::uint64_t>* done);
  std::size_t under_way() const noexcept { return under_way_; }

 private:
  struct Channel {
    std::unique_ptr<SendComm> comm;
    std::deque<Chunk> waiting;
    std::deque<Chunk> begun;
    Deadline oldest_by = Deadline::Never();
  };
  Status Begin(std::size_t channel);
  Status Test(std::size_t channel, std::vector<std::uint64_t>* done);
  Status Advance(std::vector<std::uint64_t>* done);
  void ForgiveAbsence();
  Error Named(std::size_t channel, const Chunk& chunk, const Error& error) const;

  std::vector<Channel> channels_;
  const std::chrono::milliseconds chunk_timeout_;
  std::size_t under_way_ = 0;
  std::optional<Error> failed_;
  Clock::time_point asked_at_ = Clock::now();
};

}  // namespace ferry::net::plugin
