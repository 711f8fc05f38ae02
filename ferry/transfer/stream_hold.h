#pragma once
#include <cstdint>
#include <utility>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

namespace ferry::transfer {

class HoldWords;

// Keeps a stream from going on until it is released, or goes: the stream waits for a word of pinned
// memory. The words are the program's and not an endpoint's, because a stream that has other work
// to do first looks at its word long after it was released. Move-only. Any thread.
class StreamHold {
 public:
  // Of the whole program, at a time.
  static constexpr std::uint32_t kMost = 1024;
  // Streams of one device that are held at a time: cuda::MostHeldStreams() of this process.
  static std::uint32_t MostStreams();

  // Work queued on the stream from now on begins when the hold is released. `config` tells which
  // devices. Blocks only where the device's queue is full. Errors: those of OpenDevices(), of
  // DeviceApi::WaitForFlag(), and kUnavailable where there are kMost holds or MostStreams() others.
  static Result<StreamHold> Begin(const Config& config, cuda::StreamRef stream);

  StreamHold(StreamHold&& other) noexcept
      : words_(std::exchange(other.words_, nullptr)), word_(other.word_) {}
  StreamHold& operator=(StreamHold&&) = delete;
  ~StreamHold() { Release(); }

  void Release();

 private:
  friend class HoldWords;
  StreamHold(HoldWords* words, std::uint32_t word) : words_(words), word_(word) {}

  HoldWords* words_;
  std::uint32_t word_;
};

}  // namespace ferry::transfer
