// Streams of simulated devices and the threads that run their work.
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
#include "ferry/cuda/simulated/memory.h"

namespace ferry::cuda {

// One recording of an event; under the scheduler's mutex.
struct SimulatedRecord {
  bool done = false;
  bool dropped = false;  // its device was lost before
  Clock::time_point when;
};
// Shared by the event, the stream that will record it, and the streams that wait for it.
using SharedRecord = std::shared_ptr<SimulatedRecord>;

// The kinds of work that a stream can run.
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

// The streams of all simulated devices, and the threads that run their work: late, each stream in
// order, the streams in an order that a seed determines, and copies in pieces. Any thread.
class SimulatedScheduler {
 public:
  struct Options {
    std::uint64_t seed = 1;
    int workers = 2;
    microseconds max_delay{100};  // maximum delay of each piece of work after it was queued
  };

  SimulatedScheduler(SimulatedMemory& memory, int devices, const Options& options);
  SimulatedScheduler(const SimulatedScheduler&) = delete;
  SimulatedScheduler& operator=(const SimulatedScheduler&) = delete;
  // Drops queued work.
  ~SimulatedScheduler();
  // Call first, once. Errors: kUnavailable (threads).
  Status Start();

  // Returns the value of StreamRef::native().
  void* AddStream(int ordinal);
  // The stream goes when its queued work is done.
  void RemoveStream(void* native);
  // Whether the stream exists on that device.
  bool Knows(StreamRef stream);

  // The stream must exist. With a fault, the work fails when it runs. Poisons the destinations of a
  // copy: at once if the stream is idle, because no correct program can still need their contents,
  // otherwise when the copy starts.
  void Push(StreamRef stream, SimulatedWork work, std::optional<Fault> fault);
  bool IsIdle(StreamRef stream);
  bool IsDone(const SharedRecord& record);
  // Both records must be done.
  std::chrono::nanoseconds Between(const SharedRecord& from, const SharedRecord& to);

  // Starts no more work until Resume(). Work that has started continues.
  void Pause();
  void Resume();

  // When Break() returns, or broken() returns a failure, the device no longer writes to memory.
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
    bool busy = false;  // a thread runs the first entry, outside the mutex
    bool closing = false;
  };
  struct Outcome {
    bool finished = true;
    std::optional<SimulatedFailure> failure;
  };

  void Run();
  // Runs a piece of the lane's first work. Releases the mutex for long work.
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
  std::map<std::uint64_t, Lane> lanes_;  // by native handle; default streams come first
  std::vector<std::optional<SimulatedFailure>> broken_;  // by ordinal
  std::uint64_t next_stream_;
  bool paused_ = false;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace ferry::cuda
