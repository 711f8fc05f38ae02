#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/error.h"
#include "ferry/cuda/simulated_memory.h"

namespace ferry::cuda {

// One time that an event was recorded; under the scheduler's mutex.
struct SimulatedRecord {
  bool done = false;
  bool dropped = false;  // its device was lost before
  Clock::time_point when;
};
// Of the event, of the stream that will record it, and of those that wait for it.
using SharedRecord = std::shared_ptr<SimulatedRecord>;

// What a stream can be asked to do.
struct SimulatedCopy {
  CopyKind kind;
  std::vector<CopyItem> left;  // none is empty
  bool poisoned = false;       // the destinations
};
struct SimulatedLaunch {
  Kernel kernel;
  std::vector<std::max_align_t> arguments;
};
struct SimulatedRecording {
  SharedRecord record;
};
struct SimulatedWait {
  SharedRecord record;
};
struct SimulatedFlagWait {
  std::uint64_t flag;
  std::uint32_t value;
};
struct SimulatedFlagWrite {
  std::uint64_t flag;
  std::uint32_t value;
};
using SimulatedWork = std::variant<SimulatedCopy, SimulatedLaunch, SimulatedRecording,
                                   SimulatedWait, SimulatedFlagWait, SimulatedFlagWrite>;

// Why a device is lost.
struct SimulatedFailure {
  Fault fault;
  std::string tried;
};

// The streams of all simulated devices, and the threads that do their work: late, each stream in
// its order, streams in turns that a seed decides, and copies in pieces. Any thread.
class SimulatedScheduler {
 public:
  struct Options {
    std::uint64_t seed = 1;
    int workers = 2;
    microseconds max_delay{100};  // of each piece of work, from when it is queued
  };

  SimulatedScheduler(SimulatedMemory& memory, int devices, const Options& options);
  SimulatedScheduler(const SimulatedScheduler&) = delete;
  SimulatedScheduler& operator=(const SimulatedScheduler&) = delete;
  // Drops what is queued.
  ~SimulatedScheduler();
  // First, once. Errors: kUnavailable (threads).
  Status Start();

  // Returns what StreamRef::native() is.
  void* AddStream(int ordinal);
  // After what is queued.
  void RemoveStream(void* native);
  // Whether there is one, of that device.
  bool Knows(StreamRef stream);

  // The stream must be known. With a fault the work fails when its turn comes. Poisons the
  // destinations of a copy: at once where the stream has nothing else to do, so that no correct
  // program can still want their contents, otherwise when the copy's turn comes.
  void Push(StreamRef stream, SimulatedWork work, std::optional<Fault> fault);
  bool IsIdle(StreamRef stream);
  bool IsDone(const SharedRecord& record);
  // Of two that are done.
  std::chrono::nanoseconds Between(const SharedRecord& from, const SharedRecord& to);

  // Begins no more work until Resume(). What has begun goes on.
  void Pause();
  void Resume();

  // When Break() or a failure of broken() returns, the device writes to no memory any more.
  void Break(int ordinal, const SimulatedFailure& failure);
  std::optional<SimulatedFailure> broken(int ordinal);

 private:
  struct Queued {
    SimulatedWork work;
    std::optional<Fault> fault;
    Clock::time_point not_before;
  };
  struct Lane {
    int ordinal = 0;
    std::deque<Queued> queue;
    bool busy = false;  // a thread works on the first, outside the mutex
    bool closing = false;
  };
  struct Outcome {
    bool finished = true;
    std::optional<SimulatedFailure> failure;
  };

  void Run();
  // Does a piece of the first work of the lane. Lets go of the mutex meanwhile where that takes
  // long.
  Outcome Step(std::unique_lock<std::mutex>& lock, Lane& lane);
  Outcome CopyPiece(SimulatedCopy& copy, std::uint64_t choice);
  Outcome Poison(const SimulatedCopy& copy);
  Outcome RunKernel(const SimulatedLaunch& launch, int ordinal);
  Outcome WriteFlag(const SimulatedFlagWrite& write, int ordinal);

  // These need the mutex.
  Lane& LaneOf(StreamRef stream);
  std::map<std::uint64_t, Lane>::iterator PickLane(Clock::time_point* wake);
  bool CanBegin(const Lane& lane, Clock::time_point now, Clock::time_point* wake);
  bool FlagIsUp(const SimulatedFlagWait& wait, int ordinal);
  void BreakDevice(int ordinal, const SimulatedFailure& failure);
  void AwaitSteps(std::unique_lock<std::mutex>& lock, int ordinal);
  void Drop(Lane& lane);
  void Tidy(std::map<std::uint64_t, Lane>::iterator lane);

  SimulatedMemory& memory_;
  const Options options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::map<std::uint64_t, Lane> lanes_;  // by native handle; the first ones are the default streams
  std::vector<std::optional<SimulatedFailure>> broken_;  // by ordinal
  std::uint64_t next_stream_;
  bool paused_ = false;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace ferry::cuda
