#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"
#include "ferry/cuda/device_api.h"

namespace ferry::transfer {

// Tells when GPU streams have come to a point: a thread looks, every 20 us and what the kernel adds
// to that (50 by default), and sleeps while nobody waits. Any thread.
class StreamWatch {
 public:
  // Called once, on the watch's thread: the stream has come to the point, or why it will not. Must
  // post what it does.
  using Reached = UniqueFunction<void(const Status&)>;

  explicit StreamWatch(const Config& config) : config_(config) {}
  // Drops what was not reached.
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  // The end of all that is queued on the stream now. Blocks only where the device's queue is full.
  // Errors: those of OpenDevices() and of DeviceApi, for making and recording an event;
  // kUnavailable (threads).
  Result<cuda::Event> Mark(cuda::StreamRef stream);
  // Calls `reached` when the stream has come to the mark, of Mark(). Keeps it until then.
  void When(cuda::Event mark, Reached reached);

 private:
  struct Watch {
    cuda::Event mark;
    Reached reached;
  };

  void Run();
  static bool Look(cuda::DeviceApi* api, Watch* watch);

  const Config& config_;
  std::mutex mutex_;  // guards the following
  cuda::DeviceApi* api_ = nullptr;
  std::map<int, std::vector<cuda::Event>> events_;  // by ordinal: made, and not in use
  std::vector<Watch> asked_;                        // for the thread to take
  std::condition_variable changed_;
  bool stopping_ = false;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace ferry::transfer
