// Makes a GPU stream wait until an operation has ended.
#pragma once
#include <cstdint>
#include <utility>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

namespace ferry::transfer {

class HoldWords;

// Makes a stream wait until Release() or the destructor. The stream waits for a word of pinned
// memory. The words belong to the program and not to an endpoint, because a stream that has other
// work queued first reads its word long after the release. Move-only. Any thread.
class StreamWait {
 public:
  // Limit of simultaneous waits in the whole program.
  static constexpr std::uint32_t kMax = 1024;
  // Limit of streams of one device that wait at the same time: cuda::MaxHeldStreams() of this
  // process.
  static std::uint32_t MaxStreams();

  // Makes work queued on `stream` after this call wait for the release. `config`: which devices
  // exist. Blocks only while the device's queue is full. Errors: those of OpenDevices() and
  // DeviceApi::WaitForFlag(); kUnavailable if kMax waits exist or MaxStreams() other streams
  // wait.
  static Result<StreamWait> Begin(const Config& config, cuda::StreamRef stream);

  StreamWait(StreamWait&& other) noexcept
      : words_(std::exchange(other.words_, nullptr)), word_(other.word_) {}
  StreamWait& operator=(StreamWait&&) = delete;
  ~StreamWait() { Release(); }

  void Release();

 private:
  friend class HoldWords;
  StreamWait(HoldWords* words, std::uint32_t word) : words_(words), word_(word) {}

  HoldWords* words_;
  std::uint32_t word_;
};

}  // namespace ferry::transfer
