// Stream capture on simulated devices.
#include "ferry/cuda/simulated/graphs.h"

#include <fmt/core.h>

#include "ferry/cuda/address.h"

namespace ferry::cuda {

void SimulatedGraphs::Begin(StreamRef stream) {
  const std::lock_guard lock(mutex_);
  capturing_[KeyOf(stream)] = Capturing{};
}

// Takes the work only if the stream is being captured.
bool SimulatedGraphs::Keep(StreamRef stream, SimulatedWork* work, std::optional<Fault> fault) {
  const std::lock_guard lock(mutex_);
  const auto found = capturing_.find(KeyOf(stream));
  if (found == capturing_.end()) return false;
  found->second.work.push_back({std::move(*work), fault});
  return true;
}

bool SimulatedGraphs::Spoil(StreamRef stream) {
  const std::lock_guard lock(mutex_);
  const auto found = capturing_.find(KeyOf(stream));
  if (found == capturing_.end()) return false;
  found->second.spoiled = true;
  return true;
}

Result<void*> SimulatedGraphs::End(StreamRef stream) {
  constexpr const char* kTried = "cudaStreamEndCapture";
  const std::lock_guard lock(mutex_);
  const auto found = capturing_.find(KeyOf(stream));
  if (found == capturing_.end()) {
    return CudaError(Fault::kInvalidValue,
                     fmt::format("{} on device {} of a stream that is not being captured", kTried,
                                 stream.ordinal()));
  }
  Capturing captured = std::move(found->second);
  capturing_.erase(found);
  // The stream has left the capture all the same, as with CUDA.
  if (captured.spoiled) {
    return CudaError(Fault::kStreamCaptureInvalidated,
                     fmt::format("{} on device {}", kTried, stream.ordinal()));
  }
  const std::uint64_t handle = next_graph_++;
  graphs_[handle] = std::move(captured.work);
  return reinterpret_cast<void*>(handle);
}

void SimulatedGraphs::Forget(StreamRef stream) {
  const std::lock_guard lock(mutex_);
  capturing_.erase(KeyOf(stream));
}

Result<std::vector<KeptWork>> SimulatedGraphs::WorkOf(const void* graph) const {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(AddressOf(graph));
  if (found == graphs_.end()) {
    return CudaError(Fault::kInvalidResourceHandle, fmt::format("cudaGraphLaunch of {}", graph));
  }
  return found->second;
}

void SimulatedGraphs::Remove(const void* graph) {
  const std::lock_guard lock(mutex_);
  graphs_.erase(AddressOf(graph));
}

}  // namespace ferry::cuda
