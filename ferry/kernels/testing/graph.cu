#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

// Graphs, for tests that ops can be captured in them: declared in op_bed.cc.
namespace ferry::kernels {
namespace {

Status CheckGraphCall(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return Ok();
  (void)cudaGetLastError();
  return Error(Code::kInternal, std::string(call) + ": " + cudaGetErrorString(error));
}

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
};
struct GraphExecDeleter {
  void operator()(cudaGraphExec_t graph) const { (void)cudaGraphExecDestroy(graph); }
};

}  // namespace

Result<std::function<Status()>> CaptureGraph(cuda::StreamRef stream,
                                             const std::function<Status()>& call) {
  const auto native = static_cast<cudaStream_t>(stream.native());
  FERRY_TRY(CheckGraphCall(cudaSetDevice(stream.ordinal()), "cudaSetDevice"));
  // Of this thread: calls that no graph can have, such as allocations, fail.
  FERRY_TRY(CheckGraphCall(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal),
                           "cudaStreamBeginCapture"));
  Status called = call();
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(native, &captured);
  const std::unique_ptr<CUgraph_st, GraphDeleter> graph(captured);
  if (!called) return called.error();
  FERRY_TRY(CheckGraphCall(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t made = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&made, graph.get(), 0);
  FERRY_TRY(CheckGraphCall(instantiated, "cudaGraphInstantiate"));
  // Shared by the copies of the function.
  const std::shared_ptr<CUgraphExec_st> shared(made, GraphExecDeleter{});
  return std::function<Status()>([shared, native] {
    return CheckGraphCall(cudaGraphLaunch(shared.get(), native), "cudaGraphLaunch");
  });
}

}  // namespace ferry::kernels
