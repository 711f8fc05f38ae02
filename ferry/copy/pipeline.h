// Overlapped upload, kernel and download of host memory in chunks.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/result.h"
#include "ferry/core/trace.h"
#include "ferry/cuda/device_api.h"

namespace ferry {

class ParallelMemcpy;

struct PipelineOptions {
  std::size_t chunk_bytes = std::size_t{4} << 20;  // 1 to 1 GiB
  int streams = 3;                                 // 1 to 8
  // Chunks of each stream that are in flight or queued behind those; 1 to 8. With one, a stream is
  // idle while the host fetches and stages.
  int buffers = 2;
  // The kernel writes its output over its input, which halves the device memory.
  bool in_place = false;
  // Threads that copy unpinned memory, including the calling one; 1 to 64.
  int staging_threads = 1;
  // How long a failed run waits for its queued work.
  milliseconds drain_limit{30'000};
  // Receives the times of all copies and kernels. Must outlive the pipeline. Null: none are
  // recorded.
  Trace* trace = nullptr;
};

// A part of the bytes, as passed to the kernel. The last chunk may be shorter.
struct PipelineChunk {
  std::size_t index = 0;
  std::uint64_t offset = 0;  // of its first byte, in source and destination
  std::size_t bytes = 0;
  void* in = nullptr;   // device memory, aligned to 256 bytes, with the source's bytes
  void* out = nullptr;  // the same for the destination's bytes; with `in_place` equal to `in`
};

// Streams host memory through a caller's kernel and back, in chunks, so that uploads, kernels and
// downloads of different chunks overlap: chunks go to several streams in turn, each with several
// buffers.
//
// Host memory may be pinned or pageable. Pinned memory is copied directly. CUDA would copy pageable
// memory synchronously; here the calling thread and its helpers copy it through a pool of pinned
// memory, while the GPU works on other chunks.
//
// Create() allocates all pinned memory, device memory, streams, events and threads: 2 * streams *
// buffers chunks of device memory (half of that in place), and streams * buffers chunks of pinned
// memory. One thread at a time. The DeviceApi must outlive it.
class Pipeline {
 public:
  // Queues the kernel for the chunk on the stream, without waiting for it. If it queues work on
  // other streams, it must make the given stream wait for that work. Its error ends the run.
  using Kernel = FunctionRef<Status(cuda::StreamRef stream, const PipelineChunk& chunk)>;

  // Errors: kInvalidArgument for options out of range; those of DeviceApi.
  static Result<std::unique_ptr<Pipeline>> Create(cuda::DeviceApi* api, int ordinal,
                                                  const PipelineOptions& options);
  // Waits for work that a failed run has left, at most `drain_limit`.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Blocks until every byte is in the destination, which must be as long as the source, and either
  // the same memory or disjoint from it. Calls the kernel on this thread, once for every chunk, in
  // order.
  //
  // After an error no work of the run is in flight, and the destination is undefined. If that
  // cannot be reached within `drain_limit`, the error says so: source and destination stay in use
  // until a later run has begun or the pipeline is destroyed. Errors name the chunk:
  // kInvalidArgument for memory that is not host memory, kTimedOut, those of DeviceApi, the
  // kernel's.
  Status Run(std::span<const std::byte> source, std::span<std::byte> destination, Kernel kernel,
             Deadline deadline);
  // The same bytes one step at a time: waits for every copy and kernel before the next is queued.
  // The reference for what Run() saves.
  Status RunBlocking(std::span<const std::byte> source, std::span<std::byte> destination,
                     Kernel kernel, Deadline deadline);

  // Lanes of the trace. Copies in one direction, of all streams: an engine runs them one after
  // another, so a copy's span begins when the previous one has ended, even if its stream was ready
  // before.
  static constexpr const char* kUploadLane = "copy H2D";
  static constexpr const char* kDownloadLane = "copy D2H";
  static constexpr const char* kStagingLane = "staging";  // by the calling thread
  // Kernels of one stream; kernels of several streams may overlap.
  static std::string ComputeLane(int stream);

 private:
  enum Step : unsigned char { kUpload, kCompute, kDownload };
  static constexpr std::size_t kSteps = 3;

  struct Slot {
    int stream = 0;
    std::byte* staging = nullptr;  // pinned; holds the source's bytes, then the destination's
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::array<cuda::Event, kSteps> begins;  // recorded for the trace only
    std::array<cuda::Event, kSteps> ends;    // only the last one without a trace
    bool busy = false;
    PipelineChunk chunk;
  };
  struct Job {
    const std::byte* source;
    std::byte* destination;
    std::uint64_t bytes;
    bool stages_source;
    bool stages_destination;
    Kernel kernel;
    Deadline deadline;
  };
  struct Span {
    Step step;
    int stream;
    std::size_t chunk;
    std::chrono::nanoseconds begin;  // since base_
    std::chrono::nanoseconds end;
  };

  Pipeline(cuda::DeviceApi* api, int ordinal, const PipelineOptions& options);
  Status Init();
  Status InitSlot(std::size_t index, std::size_t stride);

  Result<Job> Begin(std::span<const std::byte> source, std::span<std::byte> destination,
                    Kernel kernel, Deadline deadline);
  Result<bool> NeedsStaging(const void* data, std::size_t bytes, const char* side);
  Status Overlapped(const Job& job);
  Status OneByOne(const Job& job);
  Status End(const Status& status);
  Status Drain();

  std::size_t CountChunks(const Job& job) const;
  void Fill(const Job& job, Slot* slot, std::size_t index);
  Status QueueStep(const Job& job, Slot* slot, Step step, bool marks_end);
  Status QueueWork(const Job& job, const Slot& slot, Step step);
  Status Copy(const Slot& slot, cuda::CopyKind kind, void* dst, const void* src);
  Status Empty(const Job& job, Slot* slot);
  void CopyOnHost(std::byte* dst, const std::byte* src, const char* what, const Slot& slot);
  Status Await(const cuda::Event& event, Deadline deadline);

  Status MarkBase(Deadline deadline);
  Status Collect(const Slot& slot);
  void Publish();

  cuda::DeviceApi* const api_;
  const int ordinal_;
  const PipelineOptions options_;
  std::unique_ptr<ParallelMemcpy> parallel_memcpy_;
  cuda::PinnedBuffer pool_;
  cuda::DeviceBuffer device_;
  std::vector<cuda::Stream> streams_;
  std::vector<Slot> slots_;  // the first of each stream, the second of each, and so on
  bool drained_ = true;      // false: a failed run's work may be in flight

  // For the trace.
  cuda::Event base_;
  Clock::time_point base_time_;
  std::vector<Span> spans_;
};

}  // namespace ferry
