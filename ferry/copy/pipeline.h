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

class CopyCrew;

struct PipelineOptions {
  std::size_t chunk_bytes = std::size_t{4} << 20;  // 1 to 1 GiB
  int streams = 3;                                 // 1 to 8
  // Of each stream: chunks that it has under way or that wait behind them; 1 to 8. With one, a
  // stream is idle while the host fetches and stages.
  int buffers = 2;
  // The kernel's output is where its input is, which halves the device memory.
  bool in_place = false;
  // That copy memory which is not pinned, the calling thread among them; 1 to 64.
  int staging_threads = 1;
  // For how long a run that has failed waits for what it had queued.
  milliseconds drain_limit{30'000};
  // Gets the times of all copies and kernels. Outlives the pipeline. Null: none are taken.
  Trace* trace = nullptr;
};

// A part of the bytes on its way, as the kernel finds it. The last one may be shorter than others.
struct PipelineChunk {
  std::size_t index = 0;
  std::uint64_t offset = 0;  // of its first byte, in source and destination
  std::size_t bytes = 0;
  void* in = nullptr;   // device memory, aligned to 256 bytes, with the source's bytes
  void* out = nullptr;  // likewise, for the destination's; with `in_place` the same as `in`
};

// Takes bytes from host memory through a kernel of the caller's and back to host memory, in chunks,
// so that the chunks' copies, both ways, and kernels are under way at once: chunks are dealt over
// streams in turn, each with several buffers.
//
// Host memory may be pinned, or any other. Pinned memory is copied from and to directly. Other
// memory CUDA would copy synchronously: here the calling thread, with others, copies it by way of a
// pool of pinned memory, while the GPU works on other chunks.
//
// All pinned memory, device memory, streams, events and threads are made by Create(): (2 or, in
// place, 1) * streams * buffers chunks of device memory, streams * buffers of pinned memory. One
// thread at a time. The DeviceApi outlives it.
class Pipeline {
 public:
  // Queues the kernel for the chunk on the stream, and does not wait for it. What it queues on
  // other streams the given stream has to wait for. Its error ends the run.
  using Kernel = FunctionRef<Status(cuda::StreamRef stream, const PipelineChunk& chunk)>;

  // Errors: kInvalidArgument for options out of range; those of DeviceApi.
  static Result<std::unique_ptr<Pipeline>> Create(cuda::DeviceApi* api, int ordinal,
                                                  const PipelineOptions& options);
  // Waits for work that a failed run has left, at most `drain_limit`.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Returns when every byte is in the destination, which is as long as the source, and is either
  // the same memory or does not overlap it. The kernel is called on this thread, for every chunk
  // once, in their order.
  //
  // After an error nothing of the run is under way any more, and the destination is undefined. If
  // that cannot be reached within `drain_limit`, the error says so: source and destination are in
  // use until a later run has begun or the pipeline is gone. Errors tell the chunk:
  // kInvalidArgument for memory that is not the host's, kTimedOut, those of DeviceApi, the
  // kernel's.
  Status Run(std::span<const std::byte> source, std::span<std::byte> destination, Kernel kernel,
             Deadline deadline);
  // The same bytes, one step at a time: every copy and kernel is waited for before the next is
  // queued. What Run() saves is the difference.
  Status RunBlocking(std::span<const std::byte> source, std::span<std::byte> destination,
                     Kernel kernel, Deadline deadline);

  // Lanes of the trace. A copy that way, of all streams: as an engine does one after another, a
  // copy is taken to begin when the one before has ended, though its stream was ready.
  static constexpr const char* kUploadLane = "copy H2D";
  static constexpr const char* kDownloadLane = "copy D2H";
  static constexpr const char* kStagingLane = "staging";  // by the calling thread
  // Kernels of one stream; of several streams they may be under way at once.
  static std::string ComputeLane(int stream);

 private:
  enum Step : unsigned char { kUpload, kCompute, kDownload };
  static constexpr std::size_t kSteps = 3;

  struct Slot {
    int stream = 0;
    std::byte* staging = nullptr;  // pinned; first for the source's bytes, then the destination's
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::array<cuda::Event, kSteps> begins;  // recorded for the trace only
    std::array<cuda::Event, kSteps> ends;    // likewise, but for the last
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
  std::unique_ptr<CopyCrew> crew_;
  cuda::PinnedBuffer pool_;
  cuda::DeviceBuffer device_;
  std::vector<cuda::Stream> streams_;
  std::vector<Slot> slots_;  // the first of each stream, the second of each, and so on
  bool drained_ = true;      // false: a failed run's work may be under way

  // For the trace.
  cuda::Event base_;
  Clock::time_point base_time_;
  std::vector<Span> spans_;
};

}  // namespace ferry
