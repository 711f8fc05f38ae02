// Sends chunks over several channels of a plugin.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/tcpx/host/chunk.h"
#include "ferry/tcpx/host/comm.h"

namespace ferry::net::plugin {

// Sends chunks over several channels. One thread at a time; never blocks.
class Sender {
 public:
  // The plugin must outlive it. A chunk that stays the oldest of its channel for `chunk_timeout` is
  // an error.
  Sender(std::vector<std::unique_ptr<SendComm>> comms, std::chrono::milliseconds chunk_timeout);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  SendComm& comm(std::size_t channel) noexcept { return *channels_[channel].comm; }

  // The chunk is this channel's next message. Its memory must stay unchanged until it is done.
  void Send(std::size_t channel, const Chunk& chunk);
  // As Receiver::Progress().
  Status Progress(std::vector<std::uint64_t>* done);
  std::size_t in_flight() const noexcept { return in_flight_; }

 private:
  struct Channel {
    std::unique_ptr<SendComm> comm;
    std::deque<Chunk> waiting;
    std::deque<Chunk> begun;
  };
  Status Begin(std::size_t channel);
  Status Test(std::size_t channel, std::vector<std::uint64_t>* done);
  Status Advance(std::vector<std::uint64_t>* done);

  std::vector<Channel> channels_;
  ChunkWatch watch_;
  std::size_t in_flight_ = 0;
};

}  // namespace ferry::net::plugin
