// DeviceApi on GPUs: stream capture and graphs.
#include <fmt/core.h>

#include <memory>
#include <type_traits>

#include "ferry/cuda/error.h"
#include "ferry/cuda/real/real_devices.h"

// The graph methods of RealDevices.
namespace ferry::cuda::real {
namespace {

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const noexcept { (void)cudaGraphDestroy(graph); }
};
using CapturedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

}  // namespace

Status RealDevices::BeginCapture(StreamRef stream) {
  constexpr const char* kCall = "cudaStreamBeginCapture";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(stream.ordinal(), kCall));
  // Thread-local mode: allocations by other threads do not affect the capture.
  return Check(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream.native()),
                                      cudaStreamCaptureModeThreadLocal),
               stream.ordinal(), [] { return std::string(kCall); });
}

Result<Graph> RealDevices::EndCapture(StreamRef stream) {
  constexpr const char* kCall = "cudaStreamEndCapture";
  const int ordinal = stream.ordinal();
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, kCall));
  const auto native = static_cast<cudaStream_t>(stream.native());
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  FERRY_TRY(Check(cudaStreamIsCapturing(native, &status), ordinal,
                  [] { return std::string("cudaStreamIsCapturing"); }));
  if (status == cudaStreamCaptureStatusNone) {
    return CudaError(
        Fault::kInvalidValue,
        fmt::format("{} on device {} of a stream that is not being captured", kCall, ordinal));
  }
  cudaGraph_t made = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(native, &made);
  const CapturedGraph captured(made);
  FERRY_TRY(Check(ended, ordinal, [] { return std::string(kCall); }));
  cudaGraphExec_t executable = nullptr;
  FERRY_TRY(Check(cudaGraphInstantiate(&executable, captured.get(), 0), ordinal,
                  [] { return std::string("cudaGraphInstantiate"); }));
  return Graph({.api = this, .native = executable, .ordinal = ordinal});
}

Status RealDevices::Replay(StreamRef stream, const Graph& graph) {
  constexpr const char* kCall = "cudaGraphLaunch";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(stream.ordinal(), kCall));
  if (graph.ordinal() != stream.ordinal()) {
    return CudaError(Fault::kInvalidValue,
                     fmt::format("{} of a graph of device {} on a stream of device {}", kCall,
                                 graph.ordinal(), stream.ordinal()));
  }
  return Check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.get().native),
                               static_cast<cudaStream_t>(stream.native())),
               stream.ordinal(), [] { return std::string(kCall); });
}

}  // namespace ferry::cuda::real
