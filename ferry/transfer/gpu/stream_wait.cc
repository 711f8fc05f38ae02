// Words of pinned memory that GPU streams wait for.
#include "ferry/transfer/gpu/stream_wait.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "ferry/core/fork.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/open_devices.h"

namespace ferry::transfer {

// The words of one set of devices. Each grows by one with every use, and a stream waits until its
// word has reached the target or more. So a stream that begins its wait after the word was reused
// does not block.
class HoldWords {
 public:
  // Never destroyed.
  static HoldWords& Of(cuda::DeviceApi* api) {
    static PerProcess<AllWords> every;
    AllWords& all = every.Get();
    const std::lock_guard lock(all.mutex);
    HoldWords*& words = all.of[api];
    if (words == nullptr) words = new HoldWords(api);
    return *words;
  }

  Result<StreamWait> Hold(cuda::StreamRef stream) {
    std::uint32_t target = 0;
    // If a later step fails, `hold` is released on return: the stream, if it waits, goes on.
    FERRY_TRY_ASSIGN(StreamWait hold, Take({stream.ordinal(), stream.native()}, &target));
    // Without the mutex: if the device's queue is full this blocks until waits are released.
    FERRY_TRY_ASSIGN(const void* const flag,
                     api_->MappedAddress(stream.ordinal(), HostAddress(hold.word_)));
    FERRY_TRY(api_->WaitForFlag(stream, flag, target));
    return hold;
  }

  void Return(std::uint32_t word) {
    const std::lock_guard lock(mutex_);
    // Before the word is free again, since a new owner would overwrite the stream.
    const auto held = held_.find(words_[word].stream);
    if (--held->second == 0) held_.erase(held);
    // The release. It may come before the stream has reached its wait: the stream then finds the
    // target reached and does not stop.
    cuda::StoreFlag(HostAddress(word), ++words_[word].value);
    free_.push_back(word);
  }

 private:
  struct AllWords {
    std::mutex mutex;
    std::map<cuda::DeviceApi*, HoldWords*> of;  // under mutex
  };
  using StreamKey = std::pair<int, void*>;  // ordinal and handle
  struct Word {
    std::uint32_t value = 0;
    StreamKey stream;  // stream of its last use
  };

  explicit HoldWords(cuda::DeviceApi* api) : api_(api) {}

  // `target`: the value of the word after the release.
  Result<StreamWait> Take(StreamKey stream, std::uint32_t* target) {
    const std::lock_guard lock(mutex_);
    if (!memory_) FERRY_TRY(MakeLocked(stream.first));
    if (free_.empty()) {
      return Error(
          Code::kUnavailable,
          fmt::format(
              "{} streams already wait for operations, which is the limit; wait for some of these",
              StreamWait::kMax));
    }
    FERRY_TRY(CheckStreamsLocked(stream));
    const std::uint32_t word = free_.back();
    free_.pop_back();
    ++held_[stream];
    words_[word].stream = stream;
    *target = words_[word].value + 1;
    return StreamWait(this, word);
  }

  // With too many waiting streams, the copies of the very operations that they wait for could not
  // run.
  Status CheckStreamsLocked(StreamKey stream) const {
    // A stream that waits already occupies its queue already, so a further wait of it costs
    // nothing.
    const auto others = std::count_if(held_.begin(), held_.end(), [&](const auto& held) {
      return held.first != stream && held.first.first == stream.first;
    });
    const std::uint32_t most = StreamWait::MaxStreams();
    if (others < most) return Ok();
    return Error(Code::kUnavailable,
                 fmt::format("{} streams of device {} already wait for operations, and the limit "
                             "is {} (half of CUDA_DEVICE_MAX_CONNECTIONS); wait for some of these, "
                             "or set that to 32 before the program starts",
                             others, stream.first, most));
  }

  Status MakeLocked(int ordinal) {
    FERRY_TRY_ASSIGN(memory_,
                     api_->AllocatePinned(ordinal, StreamWait::kMax * sizeof(std::uint32_t)));
    words_.resize(StreamWait::kMax);
    for (std::uint32_t i = StreamWait::kMax; i > 0; --i) {
      cuda::StoreFlag(HostAddress(i - 1), 0);
      free_.push_back(i - 1);
    }
    return Ok();
  }

  void* HostAddress(std::uint32_t word) const {
    return memory_.bytes().subspan(word * sizeof(std::uint32_t)).data();
  }

  cuda::DeviceApi* const api_;
  std::mutex mutex_;
  cuda::PinnedBuffer memory_;  // made under mutex_, with the first wait
  std::vector<Word> words_;    // this and the following: under mutex_
  std::vector<std::uint32_t> free_;
  std::map<StreamKey, std::uint32_t> held_;  // number of waits of each stream
};

std::uint32_t StreamWait::MaxStreams() {
  static const std::uint32_t most =
      cuda::MaxHeldStreams(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
  return most;
}

Result<StreamWait> StreamWait::Begin(const Config& config, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi* const api, cuda::OpenDevices(config));
  return HoldWords::Of(api).Hold(stream);
}

void StreamWait::Release() {
  if (HoldWords* const words = std::exchange(words_, nullptr)) words->Return(word_);
}

}  // namespace ferry::transfer
