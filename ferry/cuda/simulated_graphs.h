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
#include "ferry/cuda/simulated_scheduler.h"

namespace ferry::cuda {

// What a stream was given while it was captured.
struct KeptWork {
  SimulatedWork work;
  std::optional<Fault> fault;
};

// The graphs of simulated devices, and those that streams are being captured into. Any thread.
class SimulatedGraphs {
 public:
  // The stream must not be captured already.
  void Begin(StreamRef stream);
  // False where the stream is not being captured; otherwise takes the work.
  bool Keep(StreamRef stream, SimulatedWork* work, std::optional<Fault> fault);
  // False where the stream is not being captured; otherwise the capture is lost.
  bool Spoil(StreamRef stream);
  // Returns the graph's native handle. Errors: kInvalidArgument where there is no capture, or it is
  // lost; there is none afterwards.
  Result<void*> End(StreamRef stream);
  // Of a stream that goes.
  void Forget(StreamRef stream);

  // Errors: kInvalidArgument where there is no such graph.
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
