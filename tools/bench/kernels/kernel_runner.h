// Times kernel benchmark cases on one device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ferry/core/function_ref.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "tools/bench/kernels/kernel_case.h"

namespace ferry::tools {

// Time of one launch, in seconds: statistics over samples, each of which is the mean over the
// launches of a graph.
struct KernelTimes {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  double least = 0;
  double most = 0;
  std::size_t launches = 0;  // in a graph
  std::size_t samples = 0;
  std::size_t checked = 0;  // elements that were compared with what the op's form for the CPU says
};

// The best bandwidth of a copy that reads and writes as many bytes in total.
struct CopyCeiling {
  double gbps = 0;      // read and written
  const char* by = "";  // "kernel, early", "kernel" or "engine"
};

// Number of sets of buffers that a case is measured on, which is the number of launches of a graph.
std::size_t SetsOf(const KernelCase& one, bool tiny);

// Measures kernels on one device. A graph launches the op on each of several sets of buffers, so
// that no launch finds its data in the L2 cache; if the sets are small, other memory is also copied
// between the samples. For one thread.
class KernelRunner {
 public:
  struct Options {
    int ordinal = 0;
    double seconds = 0.05;  // of samples: at least 20, if they do not take 10 times as long
    bool tiny = false;      // few launches
  };
  static Result<std::unique_ptr<KernelRunner>> Create(cuda::DeviceApi* api, const Options& options);

  // Errors: those of DeviceApi and of the op; kCorrupt if the op left results unwritten or they
  // differ from those of its CPU form (kernel_check.h). After kTimedOut the memory that the op may
  // still use is never freed, because freeing would block without limit; do not destroy this
  // object, and leave the process by std::_Exit().
  Result<KernelTimes> Measure(const KernelCase& one);
  // The best of all copy methods; early launch is one of them because the ops use it. Measured once
  // per size.
  Result<CopyCeiling> CeilingFor(std::uint64_t bytes);

 private:
  struct Slab;
  struct Measured;
  KernelRunner(cuda::DeviceApi* api, const Options& options) : api_(api), options_(options) {}

  Status Prepare();
  Status MakePatterns();
  // Fills `bytes` bytes of device memory by repeating the first `filled` bytes.
  Status Repeat(std::byte* at, std::uint64_t filled, std::uint64_t bytes);
  Status Upload(std::byte* at, std::span<const std::byte> bytes);
  Result<KernelTimes> MeasureOn(const KernelCase& one, Measured* on);
  Status MakeSlab(const KernelCase& one, Slab* slab);
  Status FillBuffer(const KernelBuffer& buffer, std::byte* at);
  Status CheckResults(const KernelCase& one, const Slab& slab);
  Result<std::size_t> CompareResults(const KernelCase& one, const Slab& slab);
  Status Download(const std::byte* from, std::span<std::byte> to);
  Result<bool> IsWritten(const std::byte* at, std::uint64_t bytes);
  // Queues a copy that evicts all other data from the L2 cache.
  Status Flush();
  Status WarmUp();
  Result<std::vector<double>> Sample(const cuda::Graph& graph, bool flush);
  enum class CopyBy { kEarlyKernel, kKernel, kEngine };
  static const char* CopyName(CopyBy by);
  Result<KernelTimes> MeasureCopies(std::uint64_t half, CopyBy by);

  cuda::DeviceApi* const api_;
  const Options options_;
  cuda::Stream stream_;
  std::vector<cuda::Event> begins_;
  std::vector<cuda::Event> ends_;
  cuda::PinnedBuffer staging_;
  cuda::DeviceBuffer patterns_;  // see FillPatterns()
  cuda::DeviceBuffer flushed_;   // copied from its first half to its second
  std::map<std::uint64_t, CopyCeiling> ceilings_;
};

}  // namespace ferry::tools
