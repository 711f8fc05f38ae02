// Chunks of a message, and their timeouts.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/plugin/driver.h"

namespace ferry::net::plugin {

// A part of a message, that one channel carries.
struct Chunk {
  std::uint64_t id = 0;      // the caller's
  std::uint64_t offset = 0;  // in the message, for errors
  Message message;           // registered with the channel's comm
};

// What Sender and Receiver have in common, which take turns of their own over their channels: how
// long the oldest chunk of each may take, and what errors say of a chunk.
class ChunkWatch {
 public:
  // `doing` to chunks, for errors: "sending".
  ChunkWatch(const char* doing, std::chrono::milliseconds timeout)
      : doing_(doing), timeout_(timeout) {}

  // The channels are numbered in this order.
  void AddChannel(int device) { channels_.push_back({device, Deadline::Never()}); }
  // Takes a turn, until one has failed: its error is for good.
  template <class Turn>
  Status Take(const Turn& turn) {
    if (failed_) return *failed_;
    ForgiveAbsence();
    Status status = turn();
    if (!status) failed_ = status.error();
    return status;
  }

  // The oldest chunk of this channel has its time from now on, if it has not begun.
  void Start(std::size_t channel);
  // The oldest is done; the next, if there is one, has its time from now on.
  void Restart(std::size_t channel, bool has_next);
  bool IsLate(std::size_t channel) const { return channels_[channel].oldest_by.expired(); }

  // The same error, of this chunk.
  Error Named(std::size_t channel, const Chunk& chunk, const Error& error) const;
  // kTimedOut: what has not happened for so long, and the rest of the sentence.
  Error Late(std::size_t channel, const Chunk& chunk, const char* what,
             const std::string& rest) const;

 private:
  struct Channel {
    int device = 0;
    Deadline oldest_by;
  };
  void ForgiveAbsence();

  const char* const doing_;
  const std::chrono::milliseconds timeout_;
  std::vector<Channel> channels_;
  std::optional<Error> failed_;
  Clock::time_point asked_at_ = Clock::now();
};

}  // namespace ferry::net::plugin
