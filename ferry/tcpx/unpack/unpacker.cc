// Queues batches of received messages on a GPU stream.
#include "ferry/tcpx/unpack/unpacker.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/cuda/address.h"
#include "ferry/tcpx/unpack/rows_queue.h"

namespace ferry::tcpx {
namespace {

constexpr auto kLastTimeout = std::chrono::seconds(60);

// At least as many pieces as an executor makes of the requests.
std::uint64_t CountPieces(std::span<const PlacedList> requests) noexcept {
  std::uint64_t pieces = 0;
  for (const PlacedList& request : requests) {
    for (const Block& block : request.blocks) {
      pieces += (block.len + kUnpackPiece - 1) / kUnpackPiece;
    }
  }
  return pieces;
}

}  // namespace

const char* UnpackName(UnpackBy by) noexcept {
  switch (by) {
    case UnpackBy::kAuto: return "auto";
    case UnpackBy::kKernel: return "kernel";
    case UnpackBy::kDma: return "dma";
    case UnpackBy::kHost: break;
  }
  return "host";
}

Unpacker::Unpacker(cuda::DeviceApi* api, const UnpackerOptions& options)
    : api_(api), options_(options), ring_(options.most_batches) {}

Unpacker::~Unpacker() {
  if (api_ != nullptr) (void)Drain(Deadline::After(kLastTimeout));
}

Status Unpacker::CheckOptions(const UnpackerOptions& options) {
  if (options.most_batches >= 1 && options.most_batches <= kMaxUnpackBatches &&
      options.most_pieces >= 1) {
    return Ok();
  }
  return Error(Code::kInvalidArgument,
               fmt::format("an unpacker with {} batches and {} pieces in flight cannot be made; "
                           "give 1 to {} batches and at least 1 piece",
                           options.most_batches, options.most_pieces, kMaxUnpackBatches));
}

Result<std::unique_ptr<Unpacker>> Unpacker::Create(cuda::DeviceApi* api, int ordinal,
                                                   const UnpackerOptions& options) {
  if (options.by == UnpackBy::kHost && api == nullptr) {
    FERRY_TRY(CheckOptions(options));
    return std::unique_ptr<Unpacker>(new Unpacker(nullptr, options));
  }
  FERRY_TRY_ASSIGN(auto made, CreateIdle(api, ordinal, options));
  FERRY_TRY(made->MakeExecutor());
  return made;
}

// The first launch of a kernel loads it, which waits for the whole device (docs/gotchas.md): here,
// and not in the middle of a transfer.
Status Unpacker::MakeExecutor() {
  const int ordinal = stream().ordinal();
  UnpackBy by = options_.by;
  if (by == UnpackBy::kAuto) {
    FERRY_TRY_ASSIGN(const bool kernels, HaveCopyKernels(api_, stream()));
    by = kernels ? UnpackBy::kKernel : UnpackBy::kDma;
  } else if (by == UnpackBy::kKernel) {
    FERRY_TRY(LoadCopyKernels(api_, stream()));
  }
  if (by == UnpackBy::kDma) {
    executor_ = MakeDmaExecutor(api_);
    return Ok();
  }
  if (by == UnpackBy::kHost) {
    FERRY_TRY_ASSIGN(executor_, MakeHostExecutor(api_, ordinal));
    return Ok();
  }
  KernelExecutorOptions kernel;
  kernel.most_blocks = options_.most_pieces;
  if (options_.groups > 0) kernel.host_groups = kernel.device_groups = options_.groups;
  FERRY_TRY_ASSIGN(executor_, MakeKernelExecutor(api_, ordinal, kernel));
  FERRY_TRY_ASSIGN(rows_, RowsQueue::Create(api_, stream(), options_.most_batches,
                                            options_.most_pieces, options_.groups));
  return Ok();
}

Result<std::unique_ptr<Unpacker>> Unpacker::CreateWith(cuda::DeviceApi* api, int ordinal,
                                                       std::unique_ptr<DeviceExecutor> executor,
                                                       const UnpackerOptions& options) {
  FERRY_TRY_ASSIGN(auto made, CreateIdle(api, ordinal, options));
  made->executor_ = std::move(executor);
  if (made->executor_->name() == "kernel") FERRY_TRY(LoadCopyKernels(api, made->stream()));
  return made;
}

Result<std::unique_ptr<Unpacker>> Unpacker::CreateIdle(cuda::DeviceApi* api, int ordinal,
                                                       const UnpackerOptions& options) {
  FERRY_TRY(CheckOptions(options));
  std::unique_ptr<Unpacker> made(new Unpacker(api, options));
  made->stream_ = options.stream;
  if (!options.stream) {
    FERRY_TRY_ASSIGN(made->own_stream_, api->CreateStream(ordinal, cuda::StreamPriority::kHigh));
    made->stream_ = made->own_stream_;
  } else if (options.stream->ordinal() != ordinal) {
    return Error(Code::kInvalidArgument,
                 fmt::format("an unpacker of GPU {} cannot use a stream of GPU {}; give it one of "
                             "its own GPU",
                             ordinal, options.stream->ordinal()));
  }
  FERRY_TRY_ASSIGN(made->drained_, api->CreateEvent(ordinal, cuda::EventTiming::kOff));
  const auto timing = options.timing ? cuda::EventTiming::kOn : cuda::EventTiming::kOff;
  for (Batch& batch : made->ring_) {
    FERRY_TRY_ASSIGN(batch.end, api->CreateEvent(ordinal, timing));
    if (!options.timing) continue;
    FERRY_TRY_ASSIGN(batch.begin, api->CreateEvent(ordinal, timing));
  }
  return made;
}

Result<std::uint64_t> Unpacker::Enqueue(std::span<const PlacedList> requests) {
  if (failed_) return *failed_;
  // Without GPUs the copy is made here and now, and the ticket is complete when it is returned.
  if (api_ == nullptr) {
    for (const PlacedList& request : requests) {
      for (const Block& block : request.blocks) {
        std::memcpy(cuda::PointerTo<std::byte>(request.dst.address) + block.dst,
                    cuda::PointerTo<const std::byte>(request.src.address) + block.src, block.len);
      }
    }
    return done_ = ++issued_;
  }
  const std::uint64_t pieces = CountPieces(requests);
  FERRY_TRY(CheckRoom(pieces, requests.size()));
  return Queue(pieces, /*rows=*/false, [&]() -> Status {
    return pieces > 0 ? executor_->Enqueue(stream(), options_.kind, requests) : Ok();
  });
}

Result<std::uint64_t> Unpacker::EnqueueRows(std::span<const RowsRequest> requests) {
  if (failed_) return *failed_;
  if (!reads_rows()) {
    return Error(Code::kUnsupported,
                 "rows are read by the unpacker's own kernel only; read them "
                 "with a FragmentReader, and give their blocks");
  }
  FERRY_TRY(rows_->Check(requests));
  FERRY_TRY(CheckRoom(0, requests.size()));
  return Queue(0, /*rows=*/true, [&] { return rows_->Enqueue(SlotOf(issued_ + 1), requests); });
}

// Within this limit the kernel executor never blocks: its ring has room for all pieces in flight.
Status Unpacker::CheckRoom(std::uint64_t pieces, std::size_t requests) const {
  if (pieces > options_.most_pieces) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a batch of {} messages with {} pieces of up to {} bytes cannot be "
                             "unpacked at once, {} are the most; give fewer messages at a time",
                             requests, pieces, kUnpackPiece, options_.most_pieces));
  }
  if (room() > 0 && pieces <= options_.most_pieces - pieces_) return Ok();
  return Error(Code::kUnavailable,
               fmt::format("{} batches with {} pieces are being unpacked, {} and {} are the most, "
                           "and {} more pieces were given; try again when a batch is done",
                           in_flight(), pieces_, ring_.size(), options_.most_pieces, pieces));
}

Result<std::uint64_t> Unpacker::Queue(std::uint64_t pieces, bool rows,
                                      FunctionRef<Status()> queue_work) {
  // CheckRoom() has made sure that the entry's last batch is done.
  Batch& batch = ring_[SlotOf(issued_ + 1)];
  Status queued = batch.begin ? api_->Record(batch.begin, stream()) : Ok();
  if (queued) queued = queue_work();
  if (queued) queued = api_->Record(batch.end, stream());
  if (!queued) return Fail("queueing a batch", queued.error());
  batch.pieces = pieces;
  batch.rows = rows;
  pieces_ += pieces;
  return ++issued_;
}

Result<std::uint64_t> Unpacker::Completed() {
  if (failed_) return *failed_;
  // One stream, so batches end in the order of their tickets, and only the oldest is asked about.
  while (done_ != issued_ && api_ != nullptr) {
    const auto ready = api_->Query(ring_[SlotOf(done_ + 1)].end);
    if (!ready) return Fail("looking at a batch", ready.error());
    if (!*ready) break;
    FinishOldest();
  }
  return done_;
}

std::uint32_t Unpacker::rows_groups() const noexcept { return rows_ ? rows_->last_groups() : 0; }

std::vector<RefusedRows> Unpacker::TakeRefused(std::uint64_t ticket) {
  std::vector<RefusedRows> taken;
  if (refused_.empty()) return taken;
  const auto others =
      std::stable_partition(refused_.begin(), refused_.end(),
                            [&](const RefusedRows& refused) { return refused.ticket != ticket; });
  taken.assign(others, refused_.end());
  refused_.erase(others, refused_.end());
  return taken;
}

void Unpacker::FinishOldest() {
  const std::size_t slot = SlotOf(++done_);
  const Batch& batch = ring_[slot];
  pieces_ -= batch.pieces;
  if (batch.rows) rows_->Collect(slot, done_, &refused_);
  if (!batch.begin) return;
  // A GPU that is lost meanwhile fails the next call.
  const auto took = api_->Elapsed(batch.begin, batch.end);
  if (!took) return;
  ++times_.batches;
  times_.newest = *took;
  times_.total += *took;
  times_.longest = std::max(times_.longest, *took);
}

Status Unpacker::Drain(Deadline deadline) {
  if (!stream_) return Ok();
  if (in_flight() == 0 && !failed_) return Ok();
  // Waits for an event and not for the stream, on which a caller may go on queueing. After an error
  // the last queued work may have none.
  Status idle = failed_ ? api_->Record(drained_, stream()) : Ok();
  if (idle) idle = api_->Wait(failed_ ? drained_ : ring_[SlotOf(issued_)].end, deadline);
  if (idle) {
    while (done_ != issued_) FinishOldest();
    return Ok();
  }
  if (idle.error().code() != Code::kTimedOut) return Fail("waiting for the end", idle.error());
  return Error(Code::kTimedOut,
               fmt::format("{} batches are still being unpacked on GPU {}: {}", in_flight(),
                           stream_->ordinal(), idle.error().message()));
}

Error Unpacker::Fail(const char* doing, const Error& error) {
  Error told(error.code(),
             fmt::format("{} of messages to unpack on GPU {} ({} of {} are done): {}", doing,
                         stream_->ordinal(), done_, issued_, error.message()),
             error.where());
  // Final: after the first error the state of the destinations is unknown, so every later call
  // fails.
  if (!failed_) failed_ = told;
  return told;
}

}  // namespace ferry::tcpx
