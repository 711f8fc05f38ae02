// Chunks of a payload: their sizes, tags, and names in errors and in the log.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ferry/core/deadline.h"
#include "ferry/core/log_level.h"
#include "ferry/core/result.h"
#include "ferry/tcpx/host/driver.h"

namespace ferry::tcpx {

// How payloads are cut into chunks and tagged; the same on both sides. Tags are those that users of
// GPUDirect-TCPX have: a fixed range for each payload, one payload after another, so that they
// differ for all chunks in flight.
struct ChunkTerms {
  std::uint64_t bytes = 512 * 1024;
  std::uint32_t tag_base = 0;  // at most 10^9, so that tags fit into an int
  // A chunk that stays the oldest for longer is logged. That is no error: the user of a lane may
  // pause it for any time, and the engine finds out about a peer that is silent.
  std::chrono::milliseconds late_after{5'000};
  int channel = 0;  // of the process, for the log: a number for each lane

  // The tag of a chunk of a payload, both counted from 0.
  int Tag(std::uint64_t payload, std::uint64_t chunk) const noexcept {
    constexpr std::uint64_t kTags = 10'000;
    constexpr std::uint64_t kPayloads = 100'000;
    return static_cast<int>(tag_base + payload % kPayloads * kTags + chunk % kTags);
  }
};

// A part of a payload, which is one message of the plugin.
struct Chunk {
  std::uint64_t number = 0;   // over the comm, from 0
  std::uint64_t payload = 0;  // over the comm, from 0; the next two are in the payload
  std::uint64_t index = 0;
  std::uint64_t offset = 0;
  Message message;
};

// Names the chunks of one comm in errors and in the log, and logs the oldest one when it is late.
class ChunkReporter {
 public:
  // `doing` is the activity: "sending". Late chunks are logged at `level`.
  ChunkReporter(const char* doing, LogLevel level, int device, const ChunkTerms& terms)
      : doing_(doing), level_(level), device_(device), terms_(terms) {}

  // "chunk=6 tag=6 size=524288 offset=3145728 (payload 0, channel 2, device 1)"
  std::string NameOf(const Chunk& chunk) const;
  // The chunks of a whole payload: the same for the first, "to chunk=7 tag=7" for the last.
  std::string NameOfPayload(std::uint64_t payload, std::uint64_t bytes) const;
  // The same error with the chunk in its text.
  Error Named(const Chunk& chunk, const Error& error) const;
  // Call at each poll at which the oldest chunk is not done. `what` is the clause for the log
  // ("nothing has come"); the plugin holds `in_flight` chunks.
  void Await(const Chunk& oldest, const char* what, std::size_t in_flight);
  // Nothing is in flight.
  void AwaitNothing() noexcept { what_ = nullptr; }
  // The chunk of the last Await(), and for how long it has been the oldest; empty after
  // AwaitNothing().
  std::string Waits() const;

 private:
  const char* const doing_;
  const LogLevel level_;
  const int device_;
  const ChunkTerms terms_;
  Chunk oldest_;
  const char* what_ = nullptr;  // null: nothing is awaited
  std::size_t in_flight_ = 0;
  Clock::time_point since_;
  bool logged_ = false;
};

}  // namespace ferry::tcpx
