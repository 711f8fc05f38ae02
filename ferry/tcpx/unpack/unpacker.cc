// Queues batches of received messages on a GPU stream.
#include "ferry/tcpx/unpack/unpacker.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/cuda/address.h"

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
  const int ordinal = stream_.ordinal();
  UnpackBy by = options_.by;
  if (by == UnpackBy::kAuto) {
    FERRY_TRY_ASSIGN(const bool kernels, HaveCopyKernels(api_, stream_));
    by = kernels ? UnpackBy::kKernel : UnpackBy::kDma;
  } else if (by == UnpackBy::kKernel) {
    FERRY_TRY(LoadCopyKernels(api_, stream_));
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
  FERRY_TRY_ASSIGN(rows_, RowsQueue::Create(api_, stream_, options_.most_batches,
                                            options_.most_pieces, options_.groups));
  return Ok();
}

Result<std::unique_ptr<Unpacker>> Unpacker::CreateWith(cuda::DeviceApi* api, int ordinal,
                                                       std::unique_ptr<DeviceExecutor> executor,
                                                       const UnpackerOptions& options) {
  FERRY_TRY_ASSIGN(auto made, CreateIdle(api, ordinal, options));
  made->executor_ = std::move(executor);
  if (made->executor_->name() == "kernel") FERRY_TRY(LoadCopyKernels(api, made->stream_));
  return made;
}

// High priority: a part of the pool stays occupied until its message is copied.
Result<std::unique_ptr<Unpacker>> Unpacker::CreateIdle(cuda::DeviceApi* api, int ordinal,
                                                       const UnpackerOptions& options) {
  FERRY_TRY(CheckOptions(options));
  std::unique_ptr<Unpacker> made(new Unpacker(api, options));
  FERRY_TRY_ASSIGN(made->stream_, api->CreateStream(ordinal, cuda::StreamPriority::kHigh));
  for (Batch& batch : made->ring_) {
    FERRY_TRY_ASSIGN(batch.end, api->CreateEvent(ordinal, cuda::EventTiming::kOff));
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
  // CheckRoom() has made sure that the entry's last batch is done.
  Batch& batch = ring_[SlotOf(issued_ + 1)];
  if (const Status queued = Queue(requests, batch.end); !queued) {
    return Fail("queueing a batch", queued.error());
  }
  batch.pieces = pieces;
  batch.rows = false;
  pieces_ += pieces;
  return ++issued_;
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
  const std::size_t slot = SlotOf(issued_ + 1);
  Status queued = rows_->Enqueue(slot, requests);
  if (queued) queued = api_->Record(ring_[slot].end, stream_);
  if (!queued) return Fail("queueing a batch", queued.error());
  ring_[slot].pieces = 0;
  ring_[slot].rows = true;
  return ++issued_;
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

Status Unpacker::Queue(std::span<const PlacedList> requests, const cuda::Event& end) {
  const bool any = std::any_of(requests.begin(), requests.end(),
                               [](const PlacedList& request) { return !request.blocks.empty(); });
  if (any) FERRY_TRY(executor_->Enqueue(stream_, options_.kind, requests));
  return api_->Record(end, stream_);
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
  pieces_ -= ring_[slot].pieces;
  if (ring_[slot].rows) rows_->Collect(slot, done_, &refused_);
}

Status Unpacker::Drain(Deadline deadline) {
  if (!stream_) return Ok();
  // Waits for the stream and not for events: after an error the last queued work may have no event.
  const Status idle = api_->Wait(stream_, deadline);
  if (idle) {
    while (done_ != issued_) FinishOldest();
    return Ok();
  }
  if (idle.error().code() != Code::kTimedOut) return Fail("waiting for the end", idle.error());
  return Error(Code::kTimedOut,
               fmt::format("{} batches are still being unpacked on GPU {}: {}", in_flight(),
                           stream_.ordinal(), idle.error().message()));
}

Error Unpacker::Fail(const char* doing, const Error& error) {
  Error told(error.code(),
             fmt::format("{} of messages to unpack on GPU {} ({} of {} are done): {}", doing,
                         stream_.ordinal(), done_, issued_, error.message()),
             error.where());
  // Final: after the first error the state of the destinations is unknown, so every later call
  // fails.
  if (!failed_) failed_ = told;
  return told;
}

}  // namespace ferry::tcpx
