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
#include "ferry/tcpx/host/driver.h"

namespace ferry::net::plugin {

// A part of a message, carried by one channel.
struct Chunk {
  std::uint64_t id = 0;      // chosen by the caller
  std::uint64_t offset = 0;  // in the message, for errors
  Message message;           // registered with the channel's comm
};

// The common part of Sender and Receiver: the timeout of the oldest chunk of each channel, and
// error texts that name a chunk. One thread at a time.
class ChunkWatch {
 public:
  // `doing` is the activity named in errors: "sending".
  ChunkWatch(const char* doing, std::chrono::milliseconds timeout)
      : doing_(doing), timeout_(timeout) {}

  // Channels are numbered in the order of these calls.
  void AddChannel(int device) { channels_.push_back({device, Deadline::Never()}); }
  // Runs `turn`, unless an earlier turn failed: the first error is final.
  template <class Turn>
  Status Take(const Turn& turn) {
    if (failed_) return *failed_;
    ForgiveAbsence();
    Status status = turn();
    if (!status) Fail(status.error());
    return status;
  }
  // An error outside of a turn, which all later turns return. The first one counts.
  void Fail(const Error& error) {
    if (!failed_) failed_ = error;
  }

  // Starts the timeout of the channel's oldest chunk, if it is not running.
  void Start(std::size_t channel);
  // The oldest chunk is done: restarts the timeout for the next one, if there is one.
  void Restart(std::size_t channel, bool has_next);
  bool IsLate(std::size_t channel) const { return channels_[channel].oldest_by.expired(); }

  // The same error with the channel and chunk in its text.
  Error Named(std::size_t channel, const Chunk& chunk, const Error& error) const;
  // A kTimedOut error: `what` did not happen within the timeout; `rest` ends the sentence.
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
