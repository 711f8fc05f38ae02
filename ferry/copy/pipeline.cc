// Runs host memory through a kernel in overlapping chunks.
#include "ferry/copy/pipeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "ferry/copy/parallel_memcpy.h"
#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/profile_range.h"

namespace ferry {
namespace {

constexpr int kMaxStreams = 8;
constexpr int kMaxBuffers = 8;
constexpr int kMaxThreads = 64;
constexpr std::size_t kAlignment = 256;  // alignment of each chunk, as of cudaMalloc's memory
// A chunk usually takes much less; beyond this, a sleep costs little.
constexpr auto kSpinTime = std::chrono::milliseconds(1);

const char* DoingStep(int step) {
  constexpr std::array kNames = {"copying to the device", "the kernel", "copying to the host"};
  return kNames[static_cast<std::size_t>(step)];
}

Error AtChunk(const Error& error, const char* doing, const PipelineChunk& chunk) {
  return Error(error.code(),
               fmt::format("{} of chunk {} (offset {}, {} bytes): {}", doing, chunk.index,
                           chunk.offset, chunk.bytes, error.message()),
               error.where());
}

Status CheckOptions(const PipelineOptions& options) {
  if (options.chunk_bytes < 1 || options.chunk_bytes > kGiB) {
    return Error(Code::kInvalidArgument, fmt::format("a pipeline with chunks of {} bytes; allowed "
                                                     "is 1 byte to 1 GiB",
                                                     options.chunk_bytes));
  }
  if (options.streams < 1 || options.streams > kMaxStreams || options.buffers < 1 ||
      options.buffers > kMaxBuffers) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a pipeline of {} streams with {} buffers each; allowed is 1 to {} "
                             "and 1 to {}",
                             options.streams, options.buffers, kMaxStreams, kMaxBuffers));
  }
  if (options.staging_threads < 1 || options.staging_threads > kMaxThreads) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a pipeline with {} threads that stage; allowed is 1 to {}",
                             options.staging_threads, kMaxThreads));
  }
  return Ok();
}

}  // namespace

std::string Pipeline::ComputeLane(int stream) { return fmt::format("compute, stream {}", stream); }

// ---- setting up ---------------------------------------------------------------------------------

Result<std::unique_ptr<Pipeline>> Pipeline::Create(cuda::DeviceApi* api, int ordinal,
                                                   const PipelineOptions& options) {
  FERRY_TRY(CheckOptions(options));
  std::unique_ptr<Pipeline> pipeline(new Pipeline(api, ordinal, options));
  FERRY_TRY(pipeline->Init());
  return pipeline;
}

Status Pipeline::Init() {
  FERRY_TRY_ASSIGN(parallel_memcpy_, ParallelMemcpy::Create(options_.staging_threads));
  const std::size_t stride = (options_.chunk_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto count =
      static_cast<std::size_t>(options_.streams) * static_cast<std::size_t>(options_.buffers);
  FERRY_TRY_ASSIGN(pool_, api_->AllocatePinned(ordinal_, count * stride));
  FERRY_TRY_ASSIGN(
      device_, api_->AllocateDevice(ordinal_, (options_.in_place ? count : 2 * count) * stride));
  for (int i = 0; i < options_.streams; ++i) {
    FERRY_TRY_ASSIGN(auto stream, api_->CreateStream(ordinal_, cuda::StreamPriority::kNormal));
    streams_.push_back(std::move(stream));
  }
  slots_.resize(count);
  for (std::size_t i = 0; i < count; ++i) FERRY_TRY(InitSlot(i, stride));
  if (options_.trace != nullptr) {
    FERRY_TRY_ASSIGN(base_, api_->CreateEvent(ordinal_, cuda::EventTiming::kOn));
  }
  return Ok();
}

Status Pipeline::InitSlot(std::size_t index, std::size_t stride) {
  Slot& slot = slots_[index];
  // Successive chunks go to different streams, so that their steps overlap.
  slot.stream = static_cast<int>(index % streams_.size());
  slot.staging = pool_.bytes().data() + index * stride;
  auto* const device = static_cast<std::byte*>(device_.data());
  slot.in = device + index * stride;
  slot.out = options_.in_place ? slot.in : slot.in + slots_.size() * stride;
  const bool traced = options_.trace != nullptr;
  const auto timing = traced ? cuda::EventTiming::kOn : cuda::EventTiming::kOff;
  for (std::size_t step = 0; step < kSteps; ++step) {
    FERRY_TRY_ASSIGN(slot.ends[step], api_->CreateEvent(ordinal_, timing));
    if (!traced) continue;
    FERRY_TRY_ASSIGN(slot.begins[step], api_->CreateEvent(ordinal_, timing));
  }
  return Ok();
}

Pipeline::Pipeline(cuda::DeviceApi* api, int ordinal, const PipelineOptions& options)
    : api_(api), ordinal_(ordinal), options_(options) {}

Pipeline::~Pipeline() {
  if (!drained_) (void)Drain();
}

// ---- a run --------------------------------------------------------------------------------------

Status Pipeline::Run(std::span<const std::byte> source, std::span<std::byte> destination,
                     Kernel kernel, Deadline deadline) {
  const cuda::ProfileRange range("pipeline");
  FERRY_TRY_ASSIGN(const Job job, Begin(source, destination, kernel, deadline));
  return End(Overlapped(job));
}

Status Pipeline::RunBlocking(std::span<const std::byte> source, std::span<std::byte> destination,
                             Kernel kernel, Deadline deadline) {
  const cuda::ProfileRange range("pipeline, blocking");
  FERRY_TRY_ASSIGN(const Job job, Begin(source, destination, kernel, deadline));
  return End(OneByOne(job));
}

Result<Pipeline::Job> Pipeline::Begin(std::span<const std::byte> source,
                                      std::span<std::byte> destination, Kernel kernel,
                                      Deadline deadline) {
  if (source.size() != destination.size()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a pipeline from {} bytes to {}; give as many on both sides",
                             source.size(), destination.size()));
  }
  const std::size_t bytes = source.size();
  const auto from = cuda::AddressOf(source.data());
  const auto to = cuda::AddressOf(destination.data());
  // The same memory is allowed: a chunk is read before it is written, and chunks do not meet.
  if (from != to && from < to + bytes && to < from + bytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a pipeline from {} bytes at {:#x} to {:#x}, which overlap; give the "
                             "same memory or memory apart from it",
                             bytes, from, to));
  }
  if (!drained_) {
    const Status drained = Drain();
    if (!drained) {
      return Error(drained.error().code(),
                   fmt::format("a run of this pipeline that failed has work in flight: {}",
                               drained.error().message()));
    }
  }
  FERRY_TRY_ASSIGN(const bool stages_source, NeedsStaging(source.data(), bytes, "from"));
  FERRY_TRY_ASSIGN(const bool stages_destination, NeedsStaging(destination.data(), bytes, "to"));
  return Job{source.data(), destination.data(), bytes, stages_source, stages_destination, kernel,
             deadline};
}

Result<bool> Pipeline::NeedsStaging(const void* data, std::size_t bytes, const char* side) {
  if (bytes == 0) return false;
  FERRY_TRY_ASSIGN(const cuda::PointerInfo info, api_->Inspect(data));
  if (info.kind == cuda::MemoryKind::kDevice || info.kind == cuda::MemoryKind::kManaged) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a pipeline {} {} memory at {}; give host memory", side,
                             cuda::MemoryKindName(info.kind), data));
  }
  // If only a part is pinned, the CPU copies all of it.
  const std::uint64_t before = cuda::AddressOf(data) - info.base;
  return info.kind != cuda::MemoryKind::kPinned || before > info.bytes ||
         bytes > info.bytes - before;
}

// A slot is reused when its last work has ended, which is checked when its turn comes: among equal
// chunks, those that began first end first.
Status Pipeline::Overlapped(const Job& job) {
  FERRY_TRY(MarkBase(job.deadline));
  const std::size_t chunks = CountChunks(job);
  for (std::size_t i = 0; i < chunks; ++i) {
    Slot& slot = slots_[i % slots_.size()];
    FERRY_TRY(Empty(job, &slot));
    Fill(job, &slot, i);
    for (const Step step : {kUpload, kCompute, kDownload}) {
      FERRY_TRY(QueueStep(job, &slot, step, step == kDownload));
    }
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    // The oldest first, as in the loop above.
    FERRY_TRY(Empty(job, &slots_[(chunks + i) % slots_.size()]));
  }
  return Ok();
}

Status Pipeline::OneByOne(const Job& job) {
  FERRY_TRY(MarkBase(job.deadline));
  const std::size_t chunks = CountChunks(job);
  Slot& slot = slots_.front();
  for (std::size_t i = 0; i < chunks; ++i) {
    Fill(job, &slot, i);
    for (const Step step : {kUpload, kCompute, kDownload}) {
      FERRY_TRY(QueueStep(job, &slot, step, true));
      const Status ended = Await(slot.ends[step], job.deadline);
      if (!ended) return AtChunk(ended.error(), DoingStep(step), slot.chunk);
    }
    FERRY_TRY(Empty(job, &slot));
  }
  return Ok();
}

// After an error work may still be in flight and use the caller's memory, so a failed run waits for
// its streams. If even that fails, the next run, or the destructor, tries again.
Status Pipeline::End(const Status& status) {
  for (Slot& slot : slots_) slot.busy = false;
  Publish();
  if (status) return Ok();
  drained_ = false;
  const Status drained = Drain();
  if (drained) return status;
  return Error(status.error().code(),
               fmt::format("{}; what was queued has not ended: {}; source and destination are in "
                           "use until a later run, or the pipeline's end",
                           status.error().message(), drained.error().message()),
               status.error().where());
}

// The queued work of a lost device was dropped.
Status Pipeline::Drain() {
  const Deadline limit = Deadline::After(options_.drain_limit);
  for (const cuda::Stream& stream : streams_) {
    Status ended = api_->Wait(stream, limit);
    if (!ended && ended.error().code() != Code::kDeviceLost) return ended;
  }
  drained_ = true;
  return Ok();
}

// ---- a chunk ------------------------------------------------------------------------------------

std::size_t Pipeline::CountChunks(const Job& job) const {
  return (job.bytes + options_.chunk_bytes - 1) / options_.chunk_bytes;
}

void Pipeline::Fill(const Job& job, Slot* slot, std::size_t index) {
  const std::uint64_t offset = std::uint64_t{index} * options_.chunk_bytes;
  slot->chunk = {.index = index,
                 .offset = offset,
                 .bytes = std::min<std::uint64_t>(options_.chunk_bytes, job.bytes - offset),
                 .in = slot->in,
                 .out = slot->out};
  slot->busy = true;
  if (job.stages_source) CopyOnHost(slot->staging, job.source + offset, "in", *slot);
}

Status Pipeline::QueueStep(const Job& job, Slot* slot, Step step, bool marks_end) {
  const bool traced = options_.trace != nullptr;
  const cuda::Stream& stream = streams_[static_cast<std::size_t>(slot->stream)];
  Status queued = Ok();
  if (traced) queued = api_->Record(slot->begins[step], stream);
  if (queued) queued = QueueWork(job, *slot, step);
  if (queued && (traced || marks_end)) queued = api_->Record(slot->ends[step], stream);
  if (!queued) return AtChunk(queued.error(), DoingStep(step), slot->chunk);
  return Ok();
}

// Stream order protects device memory, and the staging memory between the copy that reads it and
// the one that writes it.
Status Pipeline::QueueWork(const Job& job, const Slot& slot, Step step) {
  const PipelineChunk& chunk = slot.chunk;
  switch (step) {
    case kUpload:
      return Copy(slot, cuda::CopyKind::kHostToDevice, chunk.in,
                  job.stages_source ? slot.staging : job.source + chunk.offset);
    case kCompute: return job.kernel(streams_[static_cast<std::size_t>(slot.stream)], chunk);
    case kDownload:
      return Copy(slot, cuda::CopyKind::kDeviceToHost,
                  job.stages_destination ? slot.staging : job.destination + chunk.offset,
                  chunk.out);
  }
  return Ok();
}

Status Pipeline::Copy(const Slot& slot, cuda::CopyKind kind, void* dst, const void* src) {
  const cuda::CopyItem item{dst, src, slot.chunk.bytes};
  return api_->Copy(streams_[static_cast<std::size_t>(slot.stream)], kind, {&item, 1});
}

// Waits until the slot is free, that is until its chunk is in the destination.
Status Pipeline::Empty(const Job& job, Slot* slot) {
  if (!slot->busy) return Ok();
  Status ended = Await(slot->ends[kDownload], job.deadline);
  if (ended) ended = Collect(*slot);
  if (!ended) return AtChunk(ended.error(), "waiting for the end", slot->chunk);
  slot->busy = false;
  if (job.stages_destination) {
    CopyOnHost(job.destination + slot->chunk.offset, slot->staging, "out", *slot);
  }
  return Ok();
}

void Pipeline::CopyOnHost(std::byte* dst, const std::byte* src, const char* what,
                          const Slot& slot) {
  const auto begin = Clock::now();
  parallel_memcpy_->Copy(dst, src, slot.chunk.bytes);
  if (options_.trace == nullptr) return;
  options_.trace->Add(kStagingLane, fmt::format("chunk {} {}", slot.chunk.index, what), begin,
                      Clock::now());
}

Status Pipeline::Await(const cuda::Event& event, Deadline deadline) {
  const Deadline sleep = Deadline::After(kSpinTime).Sooner(deadline);
  for (;;) {
    FERRY_TRY_ASSIGN(const bool ready, api_->Query(event));
    if (ready) return Ok();
    if (sleep.expired()) return api_->Wait(event, deadline);
    std::this_thread::yield();
  }
}

// ---- the trace ----------------------------------------------------------------------------------

// The device's times on the host's clock: late by the duration of a Query().
Status Pipeline::MarkBase(Deadline deadline) {
  spans_.clear();
  if (options_.trace == nullptr) return Ok();
  FERRY_TRY(api_->Record(base_, streams_.front()));
  FERRY_TRY(Await(base_, deadline));
  base_time_ = Clock::now();
  return Ok();
}

Status Pipeline::Collect(const Slot& slot) {
  if (options_.trace == nullptr) return Ok();
  for (const Step step : {kUpload, kCompute, kDownload}) {
    FERRY_TRY_ASSIGN(const auto begin, api_->Elapsed(base_, slot.begins[step]));
    FERRY_TRY_ASSIGN(const auto end, api_->Elapsed(base_, slot.ends[step]));
    // Relative to base_, in the device's time.
    spans_.push_back({step, slot.stream, slot.chunk.index, begin, end});
  }
  return Ok();
}

void Pipeline::Publish() {
  // A copy engine does one copy at a time, and a copy's begin event is reached while it still waits
  // for the engine. So a copy's span is drawn from the end of the one before it.
  std::sort(spans_.begin(), spans_.end(),
            [](const Span& a, const Span& b) { return a.end < b.end; });
  std::array<std::chrono::nanoseconds, kSteps> last_end{};
  for (const Span& span : spans_) {
    const std::string name = fmt::format("chunk {}", span.chunk);
    const auto end = base_time_ + span.end;
    if (span.step == kCompute) {
      options_.trace->Add(ComputeLane(span.stream), name, base_time_ + span.begin, end);
      continue;
    }
    auto& last = last_end[span.step];
    options_.trace->Add(span.step == kUpload ? kUploadLane : kDownloadLane, name,
                        base_time_ + std::max(span.begin, last), end);
    last = span.end;
  }
  spans_.clear();
}

}  // namespace ferry
