// Measures copy/kernel pipelines for `ferry copy-bench --pipeline`.

#include "tools/bench/copies/pipeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/copy/pipeline.h"
#include "ferry/core/deadline.h"
#include "ferry/core/trace.h"
#include "ferry/cuda/open_devices.h"
#include "tools/support/json.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr auto kRunTimeout = std::chrono::seconds(60);
constexpr int kMaxStreams = 4;
constexpr int kTimings = 7;
// The kernel is made slow by giving it few of the GPU's thread blocks, then by repeating it: more
// launches than these, over all chunks in flight, and queueing them would be what is measured.
constexpr std::uint32_t kMaxGroups = 64;
constexpr long kMaxRepeats = 4;

struct PipelineRow {
  bool blocking = false;
  bool pinned = false;
  int streams = 1;
  double seconds = 0;
  double blocking_seconds = 0;
  double overlap = 0;  // of copies with kernels
  bool verified = false;
};

// Stands for a user's kernel: copies its chunk within the GPU, with few thread blocks, and so often
// that it takes about as long as the chunk's copy from the host.
class StandInKernel {
 public:
  static Result<StandInKernel> Create(cuda::DeviceApi* api, int ordinal, std::size_t chunk_bytes) {
    StandInKernel made;
    FERRY_TRY(made.Calibrate(api, ordinal, chunk_bytes));
    return made;
  }

  double copy_seconds() const { return copy_seconds_; }
  double kernel_seconds() const { return kernel_seconds_; }

  Status operator()(cuda::StreamRef stream, const PipelineChunk& chunk) const {
    return Repeat(stream, chunk.out, chunk.in, chunk.bytes);
  }

 private:
  StandInKernel() = default;

  Status Repeat(cuda::StreamRef stream, void* out, const void* in, std::size_t bytes) const {
    const Block block{.dst = 0, .src = 0, .len = bytes};
    const PlacedList list{{&block, 1}, Place::OnDevice(out), Place::OnDevice(in)};
    for (long i = 0; i < repeats_; ++i) {
      FERRY_TRY(executor_->Enqueue(stream, cuda::CopyKind::kDeviceToDevice, {&list, 1}));
    }
    return Ok();
  }

  Status Calibrate(cuda::DeviceApi* api, int ordinal, std::size_t bytes) {
    FERRY_TRY_ASSIGN(const auto host, api->AllocatePinned(ordinal, bytes));
    FERRY_TRY_ASSIGN(const auto in, api->AllocateDevice(ordinal, bytes));
    FERRY_TRY_ASSIGN(const auto out, api->AllocateDevice(ordinal, bytes));
    FERRY_TRY_ASSIGN(const auto stream, api->CreateStream(ordinal, cuda::StreamPriority::kNormal));
    const cuda::CopyItem item{in.data(), host.data(), bytes};
    FERRY_TRY_ASSIGN(copy_seconds_, TimeOf(api, stream, [&] {
                       return api->Copy(stream, cuda::CopyKind::kHostToDevice, {&item, 1});
                     }));
    const auto run = [&] { return Repeat(stream, out.data(), in.data(), bytes); };
    // Until a few repetitions take as long as the copy.
    for (std::uint32_t groups = kMaxGroups; groups > 0; groups /= 2) {
      KernelExecutorOptions options;
      options.device_groups = groups;
      FERRY_TRY_ASSIGN(executor_, MakeKernelExecutor(api, ordinal, options));
      repeats_ = 1;
      FERRY_TRY_ASSIGN(const double once, TimeOf(api, stream, run));
      repeats_ = std::clamp(std::lround(copy_seconds_ / once), 1L, kMaxRepeats);
      if (once * static_cast<double>(kMaxRepeats) >= copy_seconds_) break;
    }
    FERRY_TRY_ASSIGN(kernel_seconds_, TimeOf(api, stream, run));
    return Ok();
  }

  // Between events around what `queue` puts on the stream: the median.
  template <class Queue>
  static Result<double> TimeOf(cuda::DeviceApi* api, const cuda::Stream& stream,
                               const Queue& queue) {
    FERRY_TRY_ASSIGN(const auto begin, api->CreateEvent(stream.ordinal(), cuda::EventTiming::kOn));
    FERRY_TRY_ASSIGN(const auto end, api->CreateEvent(stream.ordinal(), cuda::EventTiming::kOn));
    std::vector<double> seconds;
    for (int i = 0; i <= kTimings; ++i) {
      FERRY_TRY(api->Record(begin, stream));
      FERRY_TRY(queue());
      FERRY_TRY(api->Record(end, stream));
      FERRY_TRY(api->Wait(end, Deadline::After(kRunTimeout)));
      if (i == 0) continue;  // warm by now
      FERRY_TRY_ASSIGN(const auto between, api->Elapsed(begin, end));
      seconds.push_back(std::chrono::duration<double>(between).count());
    }
    return Median(seconds);
  }

  std::unique_ptr<DeviceExecutor> executor_;
  long repeats_ = 1;
  double copy_seconds_ = 0;
  double kernel_seconds_ = 0;
};

// Source and destination of one kind of memory.
struct BenchMemory {
  std::vector<std::byte> pageable[2];
  cuda::PinnedBuffer pinned[2];
  std::span<std::byte> source;
  std::span<std::byte> destination;
};

class PipelineBench {
 public:
  PipelineBench(cuda::DeviceApi* api, const PipelineBenchJob* job, StandInKernel kernel)
      : api_(api), job_(job), kernel_(std::move(kernel)) {}

  Status Run() {
    // Better now than after all has been measured.
    if (!job_->trace.empty()) FERRY_TRY(timeline_.Write(job_->trace));
    PrintHead();
    for (const bool pinned : {false, true}) {
      FERRY_TRY_ASSIGN(const BenchMemory memory, Make(pinned));
      // First, since the others are compared with it.
      PipelineRow blocking{.blocking = true, .pinned = pinned};
      FERRY_TRY(Measure(memory, &blocking));
      blocking.blocking_seconds = blocking.seconds;
      Print(blocking);
      for (int streams = 1; streams <= kMaxStreams; ++streams) {
        PipelineRow row{.pinned = pinned, .streams = streams};
        row.blocking_seconds = blocking.seconds;
        FERRY_TRY(Measure(memory, &row));
        Print(row);
      }
    }
    if (job_->trace.empty()) return Ok();
    return timeline_.Write(job_->trace);
  }

 private:
  Result<BenchMemory> Make(bool pinned) const {
    BenchMemory memory;
    std::span<std::byte> sides[2];
    for (int i = 0; i < 2; ++i) {
      if (pinned) {
        FERRY_TRY_ASSIGN(memory.pinned[i], api_->AllocatePinned(job_->ordinal, job_->bytes));
        sides[i] = memory.pinned[i].bytes();
      } else {
        memory.pageable[i].resize(job_->bytes);
        sides[i] = memory.pageable[i];
      }
    }
    memory.source = sides[0];
    memory.destination = sides[1];
    std::mt19937_64 random(std::random_device{}());
    for (std::size_t i = 0; i + sizeof(std::uint64_t) <= memory.source.size();
         i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(memory.source.data() + i, &word, sizeof word);
    }
    return memory;
  }

  Result<std::unique_ptr<Pipeline>> MakePipeline(const PipelineRow& row, Trace* trace) const {
    PipelineOptions options;
    options.chunk_bytes = job_->chunk_bytes;
    options.streams = row.streams;
    options.staging_threads = job_->staging_threads;
    options.trace = trace;
    return Pipeline::Create(api_, job_->ordinal, options);
  }

  // Times runs without a trace, which costs, and takes the overlap from one more run with it.
  Status Measure(const BenchMemory& memory, PipelineRow* row) {
    FERRY_TRY_ASSIGN(const auto pipeline, MakePipeline(*row, nullptr));
    FERRY_TRY_ASSIGN(row->verified, IsRight(pipeline.get(), memory, *row));  // warm by now
    std::vector<double> seconds;
    for (unsigned round = 0; round < job_->rounds; ++round) {
      if (Interrupted()) return InterruptedError();
      const auto begin = Clock::now();
      FERRY_TRY(RunOnce(pipeline.get(), memory, *row));
      seconds.push_back(Seconds(Clock::now() - begin));
    }
    row->seconds = Median(seconds);
    return TraceOnce(memory, row);
  }

  Status TraceOnce(const BenchMemory& memory, PipelineRow* row) {
    Trace trace;
    FERRY_TRY_ASSIGN(const auto pipeline, MakePipeline(*row, &trace));
    const auto begin = Clock::now();
    FERRY_TRY_ASSIGN(const bool right, IsRight(pipeline.get(), memory, *row));
    row->verified &= right;
    std::vector<std::string> computing;
    for (int i = 0; i < row->streams; ++i) computing.push_back(Pipeline::ComputeLane(i));
    row->overlap = trace.Overlap({Pipeline::kUploadLane, Pipeline::kDownloadLane}, computing);
    if (job_->trace.empty()) return Ok();
    timeline_.Add("run", NameOf(*row), begin, Clock::now());
    timeline_.Append(trace);
    return Ok();
  }

  Status RunOnce(Pipeline* pipeline, const BenchMemory& memory, const PipelineRow& row) const {
    const Deadline deadline = Deadline::After(kRunTimeout);
    return row.blocking
               ? pipeline->RunBlocking(memory.source, memory.destination, kernel_, deadline)
               : pipeline->Run(memory.source, memory.destination, kernel_, deadline);
  }

  Result<bool> IsRight(Pipeline* pipeline, const BenchMemory& memory,
                       const PipelineRow& row) const {
    std::fill(memory.destination.begin(), memory.destination.end(), std::byte{0xa5});
    FERRY_TRY(RunOnce(pipeline, memory, row));
    return std::equal(memory.source.begin(), memory.source.end(), memory.destination.begin());
  }

  static const char* MemoryOf(const PipelineRow& row) { return row.pinned ? "pinned" : "pageable"; }
  static const char* FormOf(const PipelineRow& row) {
    return row.blocking ? "blocking" : "pipeline";
  }
  static std::string NameOf(const PipelineRow& row) {
    return fmt::format("{}, {}, streams: {}", MemoryOf(row), FormOf(row), row.streams);
  }

  void PrintHead() const {
    if (job_->json) return;  // each row has it
    PrintLine(
        fmt::format("a chunk of {} bytes: {:.1f} us to the GPU, {:.1f} us in the kernel; "
                    "pageable memory by {} threads",
                    job_->chunk_bytes, kernel_.copy_seconds() * 1e6, kernel_.kernel_seconds() * 1e6,
                    job_->staging_threads));
    PrintLine(fmt::format("{:<9}  {:<9}  {:>7}  {:>10}  {:>8}  {:>8}  {:>8}  {}", "memory", "form",
                          "streams", "seconds", "GB/s", "speed-up", "overlap", "verified"));
  }

  void Print(const PipelineRow& row) const {
    const double gbps = static_cast<double>(job_->bytes) / row.seconds / 1e9;
    const double speedup = row.blocking_seconds / row.seconds;
    if (job_->json) {
      return PrintLine(Json{
          {"memory", MemoryOf(row)},
          {"form", FormOf(row)},
          {"streams", row.streams},
          {"chunk_bytes", job_->chunk_bytes},
          {"staging_threads", job_->staging_threads},
          {"chunk_copy_seconds", kernel_.copy_seconds()},
          {"chunk_kernel_seconds", kernel_.kernel_seconds()},
          {"bytes", job_->bytes},
          {"seconds", row.seconds},
          {"gbps", gbps},
          {"speedup", speedup},
          {"overlap_percent", 100 * row.overlap},
          {"verified",
           row.verified}}.dump());
    }
    PrintLine(fmt::format("{:<9}  {:<9}  {:>7}  {:>10.6f}  {:>8.2f}  {:>8.2f}  {:>6.1f} %  {}",
                          MemoryOf(row), FormOf(row), row.streams, row.seconds, gbps, speedup,
                          100 * row.overlap, row.verified ? "yes" : "NO"));
  }

  cuda::DeviceApi* const api_;
  const PipelineBenchJob* const job_;
  const StandInKernel kernel_;
  Trace timeline_;  // for the file
};

}  // namespace

Status RunPipelineBench(const PipelineBenchJob& job) {
  FERRY_TRY_ASSIGN(cuda::DeviceApi * api, cuda::OpenDevices(job.config));
  FERRY_TRY_ASSIGN(StandInKernel kernel, StandInKernel::Create(api, job.ordinal, job.chunk_bytes));
  return PipelineBench(api, &job, std::move(kernel)).Run();
}

}  // namespace ferry::tools
