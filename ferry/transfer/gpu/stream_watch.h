// Tells when GPU streams have reached a mark.
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

// Tells when GPU streams have reached a mark. Its thread polls every 20 us plus the kernel's timer
// slack (50 us by default), and sleeps while nobody waits. Any thread.
class StreamWatch {
 public:
  // Called once on the watch's thread, with ok when the stream has reached the mark, or with the
  // error. Must only post.
  using Reached = UniqueFunction<void(const Status&)>;

  explicit StreamWatch(const Config& config) : config_(config) {}
  // Drops callbacks of marks that were not reached.
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  // Marks the end of all work queued on the stream so far. Blocks only while the device's queue is
  // full. Errors: those of OpenDevices() and, for making and recording an event, of DeviceApi;
  // kUnavailable (threads).
  Result<cuda::Event> Mark(cuda::StreamRef stream);
  // Calls `reached` when the stream has reached `mark`, made by Mark(); keeps the mark until then.
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
  std::map<int, std::vector<cuda::Event>> events_;  // by ordinal: unused events for reuse
  std::vector<Watch> asked_;                        // new entries for the thread
  std::condition_variable changed_;
  bool stopping_ = false;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace ferry::transfer
