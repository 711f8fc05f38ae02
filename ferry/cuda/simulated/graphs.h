// Stream capture on simulated devices.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/cuda/error.h"
#include "ferry/cuda/resources.h"
#include "ferry/cuda/simulated/scheduler.h"

namespace ferry::cuda {

// Work that a stream recorded while it was captured.
struct KeptWork {
  SimulatedWork work;
  std::optional<Fault> fault;
};

// Graphs of simulated devices, and captures in progress. Any thread.
class SimulatedGraphs {
 public:
  // The stream must not be in capture mode.
  void Begin(StreamRef stream);
  // Returns false where the stream is not being captured; otherwise records the work.
  bool Keep(StreamRef stream, SimulatedWork* work, std::optional<Fault> fault);
  // Returns false where the stream is not being captured; otherwise invalidates the capture.
  bool Spoil(StreamRef stream);
  // Ends the capture and returns the graph's native handle. Errors: kInvalidArgument where there is
  // no capture, or it was invalidated.
  Result<void*> End(StreamRef stream);
  // Drops the capture of a stream that is destroyed.
  void Forget(StreamRef stream);

  // Errors: kInvalidArgument for an unknown graph.
  Result<std::vector<KeptWork>> WorkOf(const void* graph) const;
  void Remove(const void* graph);

 private:
  struct Capturing {
    std::vector<KeptWork> work;
    bool spoiled = false;
  };
  using Key = std::pair<int, const void*>;
  static Key KeyOf(StreamRef stream) { return {stream.ordinal(), stream.native()}; }

  mutable std::mutex mutex_;
  std::map<Key, Capturing> capturing_;
  std::map<std::uint64_t, std::vector<KeptWork>> graphs_;  // by native handle
  std::uint64_t next_graph_ = 0x100;
};

}  // namespace ferry::cuda
