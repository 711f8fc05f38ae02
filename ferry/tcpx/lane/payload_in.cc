// Receiving payloads over a comm of a plugin.
#include "ferry/tcpx/lane/payload_in.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/profile_range.h"

namespace ferry::tcpx {
namespace {

constexpr std::chrono::seconds kOpenTimeout{1};
// How long a chunk may wait for others to share a launch with, and how few batches make it launch
// at once. With fewer batches in flight the GPU would wait for the next launch.
constexpr std::chrono::microseconds kShareLaunch{6};
constexpr std::size_t kFewBatches = 2;

Status CheckMemory(cuda::DeviceApi* api, const ReceiveComm& comm) {
  const Plugin& plugin = comm.plugin();
  if (comm.device_handle().type == abi::kDeviceTypeHost) {
    if (plugin.nics()[static_cast<std::size_t>(comm.device())].host_memory) return Ok();
  } else {
    cuda::PointerInfo info;
    if (api != nullptr) {
      FERRY_TRY_ASSIGN(info, api->Inspect(comm.device_handle().handle));
    }
    if (info.kind != cuda::MemoryKind::kDevice) return Ok();
  }
  return Error(Code::kUnsupported,
               fmt::format("network plugin {} receives into GPU memory, and the GPUs here cannot "
                           "be used for that; set the provider to tcp (FERRY_PROVIDER)",
                           plugin.name()));
}

void LogRegistered(std::size_t bytes, const char* kind) {
  Log(LogLevel::kInfo, "plugin", "registered {} bytes of {} memory to receive into", bytes, kind);
}

}  // namespace

// ---- setting up ---------------------------------------------------------------------------------

Result<std::unique_ptr<PayloadIn>> PayloadIn::Create(cuda::DeviceApi* api, const LaneGpu& gpu,
                                                     std::unique_ptr<ReceiveComm> comm,
                                                     const ChunkTerms& chunks) {
  std::unique_ptr<PayloadIn> in(new PayloadIn(gpu, chunks, std::move(comm)));
  FERRY_TRY(in->Init(api));
  return in;
}

// A plugin with a pool wants registered memory for each receive, but does not touch it. It gets GPU
// memory, if there is a GPU. One that receives straight into memory gets GPU memory for payloads
// that go to the GPU, where it takes such memory.
Status PayloadIn::Init(cuda::DeviceApi* api) {
  if (!gpu_) FERRY_TRY(CheckMemory(api, *comm_));
  BufferShape shape;
  shape.chunk_bytes = chunks_.bytes;
  shape.slots = straight_ || gpu_ ? ReceiveComm::kWindow : 1;
  if (straight_) {
    shape.gpu_slots = comm_->plugin().takes_gpu_memory() ? ReceiveComm::kWindow : 0;
    if (shape.gpu_slots == 0) shape.kind = cuda::CopyKind::kHostToDevice;
  } else {
    FERRY_TRY_ASSIGN(
        rows_, UnpackRows::Open(*comm_, gpu_.api, gpu_.ordinal, Deadline::After(kOpenTimeout)));
    shape.gpu_slots = 1;
    shape.kind = rows_->copy_kind();
  }
  FERRY_TRY(ChooseUnpacking());
  FERRY_TRY_ASSIGN(buffers_, gpu_ ? gpu_.buffers->Take(gpu_, shape) : MakeBuffers(gpu_, shape));
  if (rows_ && unpacker().reads_rows()) rows_->Map(gpu_.api, gpu_.ordinal);
  const std::byte* const slots =
      buffers_->gpu_slots.empty() ? buffers_->slots.bytes.data() : buffers_->gpu_slots.data();
  if (LogEnabled(LogLevel::kInfo)) {
    pool_reader_.emplace(gpu_,
                         rows_ ? cuda::PointerTo<const std::byte>(rows_->pool().address) : slots);
    if (rows_) LogHandle(*rows_);
  }
  return RegisterSlots();
}

// A kernel that cannot read the pool would lose the device.
Status PayloadIn::ChooseUnpacking() {
  const bool reads = !rows_ || rows_->kernels_read_pool();
  const UnpackBy asked = gpu_.by;
  if (asked == UnpackBy::kAuto) gpu_.by = reads ? UnpackBy::kKernel : UnpackBy::kDma;
  if (reads || (asked != UnpackBy::kAuto && asked != UnpackBy::kKernel)) return Ok();
  const std::string why =
      fmt::format("kernels of GPU {} cannot read the pool of network plugin {} in another GPU",
                  gpu_.ordinal, comm_->plugin().name());
  if (asked == UnpackBy::kKernel) {
    return Error(Code::kUnsupported,
                 fmt::format("{}; set plugin_unpack to auto or dma (FERRY_PLUGIN_UNPACK)", why));
  }
  static std::once_flag warned;
  std::call_once(warned, [&] {
    Log(LogLevel::kWarn, "plugin", "{}: copy engines unpack (plugin_unpack dma), which is slower",
        why);
  });
  return Ok();
}

PayloadIn::~PayloadIn() {
  if (buffers_ == nullptr) return;
  AwaitCopies();
  registration_.reset();
  gpu_registration_.reset();
  rows_.reset();
  comm_.reset();
  if (gpu_) gpu_.buffers->Give(std::move(buffers_));
}

void PayloadIn::End(std::unique_ptr<PayloadIn> in) {
  in->AwaitCopies();
  if (in->copies_ != Copies::kStuck) return;
  // The pool and `in` own each other from here on, until LaneBufferPool::DestroyIdle() finds that
  // the copies have ended. If they never do, both stay for the life of the process.
  const auto pool = in->gpu_.buffers;
  Unpacker* const unpacker = &in->unpacker();
  pool->KeepStuck(std::move(in), unpacker);
}

Status PayloadIn::RegisterSlots() {
  if (!buffers_->gpu_slots.empty()) {
    FERRY_TRY_ASSIGN(Registration gpu,
                     comm_->Register(buffers_->gpu_slots.data(), buffers_->gpu_slots.size(),
                                     /*on_gpu=*/true));
    gpu_registration_.emplace(std::move(gpu));
    LogRegistered(buffers_->gpu_slots.size(), "GPU");
  }
  if (gpu_ && !straight_) return Ok();
  FERRY_TRY_ASSIGN(Registration host,
                   comm_->Register(buffers_->slots.bytes.data(), buffers_->slots.bytes.size(),
                                   /*on_gpu=*/!straight_));
  registration_.emplace(std::move(host));
  LogRegistered(buffers_->slots.bytes.size(), "host");
  return Ok();
}

// ---- a payload ----------------------------------------------------------------------------------

Status PayloadIn::Begin(std::uint64_t bytes, const Target& target) {
  if (target.gpu && !gpu_) return net::GpuMemoryUnsupported(comm_->plugin().name());
  place_ = net::IoCursor(target.memory);
  host_begin_ = {};
  if (!target.memory.empty() && !target.gpu) {
    const iovec& first = target.memory.front();
    // Shown as bytes.
    host_begin_ = {static_cast<const std::byte*>(first.iov_base),
                   static_cast<std::size_t>(std::min<std::uint64_t>(first.iov_len, bytes))};
  }
  to_gpu_ = target.gpu;
  // What lies in host memory already needs no GPU.
  from_slots_ = !place_.at_end() && !to_gpu_ && (straight_ || gpu_);
  total_ = uncut_ = left_ = bytes;
  // Nothing of the last payload is left, so a GPU that stalled during it has gone on.
  CheckStuck();
  return Ok();
}

Status PayloadIn::BeginCopy(std::span<const std::byte> payload, const Target& target) {
  FERRY_TRY(Begin(payload.size(), target));
  uncut_ = 0;
  // All slots are free between two payloads.
  std::copy(payload.begin(), payload.end(), buffers_->slots.bytes.begin());
  std::uint64_t lowest = 0;
  std::vector<Block> blocks;
  std::uint64_t at = 0;
  for (const PostedRun& run : TakeRuns(payload.size(), &lowest)) {
    blocks.push_back({run.offset, at, run.bytes});
    at += run.bytes;
  }
  const PlacedList list{blocks, Place{lowest, lowest}, buffers_->slots_place};
  FERRY_TRY_ASSIGN(copied_by_ticket_, unpacker().Enqueue({&list, 1}));
  return Ok();
}

void PayloadIn::DropRest() {
  place_ = net::IoCursor();
  host_begin_ = {};
  from_slots_ = false;
  for (std::size_t i = launched_; i < incoming_.size(); ++i) {
    incoming_[i].runs.clear();
    incoming_[i].blocks = 0;
    incoming_[i].rows = nullptr;
  }
  if (busy()) AwaitCopies();
}

void PayloadIn::AwaitCopies() {
  // Without a GPU, Progress() copies, so no copy is in flight.
  if (!gpu_) return;
  CheckStuck();
  if (copies_ != Copies::kEnd || unpacker().in_flight() == 0) return;
  Status drained = unpacker().Drain(Deadline::After(kCopyTimeout));
  if (drained) {
    drained = GiveBack(std::numeric_limits<std::uint64_t>::max());
    // The unpacker reports a refused chunk once; Progress() would take it for one in place.
    if (!drained && !failed_) failed_ = drained.error();
  }
  if (drained) return;
  Log(LogLevel::kError, "plugin", "at the end of a payload: {}", drained.error().message());
  if (drained.error().code() == Code::kTimedOut) {
    copies_ = Copies::kStuck;
  } else if (unpacker().in_flight() > 0) {
    copies_ = Copies::kFailed;
  }
}

// Later copies are awaited again once the GPU has ended those that it was stuck in.
void PayloadIn::CheckStuck() {
  if (copies_ != Copies::kStuck) return;
  if (unpacker().Completed() && unpacker().in_flight() == 0) copies_ = Copies::kEnd;
}

Status PayloadIn::Progress() {
  if (failed_) return *failed_;
  Status advanced = Advance();
  if (!advanced) failed_ = advanced.error();
  return advanced;
}

// One turn: post receives, take what has arrived and launch if it is time; launch the rest; report
// what is in place and return its memory.
Status PayloadIn::Advance() {
  if (copied_by_ticket_ != 0) {
    FERRY_TRY_ASSIGN(const std::uint64_t completed, unpacker().Completed());
    if (completed >= copied_by_ticket_) copied_by_ticket_ = left_ = 0;
    return Ok();
  }
  FERRY_TRY(Post());
  FERRY_TRY(Take());
  FERRY_TRY(Launch());
  FERRY_TRY(Finish());
  if (incoming_.empty()) {
    reporter_.AwaitNothing();
  } else if (arrived_ > 0 && arrived_ == posted_) {
    reporter_.Await(incoming_.front().chunk, "it has come and was not copied", arrived_);
  }
  return Ok();
}

// ---- chunks that are posted ---------------------------------------------------------------------

Status PayloadIn::Post() {
  while (comm_->room() > 0) {
    if (posted_ == incoming_.size()) {
      if (uncut_ == 0) break;
      incoming_.push_back(CutNext());
    }
    const Chunk& next = incoming_.back().chunk;
    const cuda::ProfileRange range("irecv");
    auto begun = comm_->Receive(next.message);
    if (!begun) return reporter_.Named(next, begun.error());
    if (!*begun) {
      if (posted_ == 0) reporter_.Await(next, "the plugin has not begun to receive it", 0);
      break;
    }
    ++posted_;
    if (logged_.Have(next)) {
      Log(LogLevel::kInfo, "plugin", "waiting for client data, expected bytes={}: {}",
          next.message.bytes, reporter_.NameOf(next));
    }
  }
  return Ok();
}

// The slot of the next chunk is free: the comm has room, so fewer chunks than the window are not in
// place, and they are done in order.
PayloadIn::Incoming PayloadIn::CutNext() {
  const auto bytes = static_cast<std::size_t>(std::min(uncut_, chunks_.bytes));
  const bool on_gpu = gpu_registration_ && (to_gpu_ || !straight_);
  std::byte* const slots = on_gpu ? buffers_->gpu_slots.data() : buffers_->slots.bytes.data();
  const std::uint64_t slot = straight_ ? SlotOf(next_chunk_) : 0;
  const std::uint64_t offset = total_ - uncut_;
  const std::uint64_t index = offset / chunks_.bytes;
  Incoming next;
  next.chunk = {next_chunk_,
                payload_,
                index,
                offset,
                {slots + slot, bytes, chunks_.Tag(payload_, index),
                 on_gpu ? gpu_registration_->mr() : registration_->mr()}};
  next.from = rows_    ? rows_->pool()
              : on_gpu ? Place::OnDevice(slots + slot)
                       : buffers_->slots_place + slot;
  PlaceNext(bytes, &next);
  ++next_chunk_;
  uncut_ -= bytes;
  return next;
}

// Takes the next `bytes` of the placement.
void PayloadIn::PlaceNext(std::size_t bytes, Incoming* next) {
  if (place_.at_end() || (from_slots_ && straight_)) return;
  if (from_slots_) {
    next->runs.push_back({0, bytes});
    next->to = buffers_->slots_place + SlotOf(next_chunk_);
    return;
  }
  std::uint64_t lowest = 0;
  next->runs = TakeRuns(bytes, &lowest);
  next->to = Place{lowest, lowest};
}

// Offsets are from the lowest address.
std::vector<PostedRun> PayloadIn::TakeRuns(std::size_t bytes, std::uint64_t* lowest) {
  std::vector<PostedRun> runs;
  *lowest = ~std::uint64_t{0};
  std::array<iovec, 64> pieces;
  while (bytes > 0) {
    std::size_t used = 0;
    const std::size_t taken = place_.Collect(pieces, &used, bytes);
    for (const iovec& piece : std::span(pieces).first(used)) {
      runs.push_back({cuda::AddressOf(piece.iov_base), piece.iov_len});
      *lowest = std::min(*lowest, runs.back().offset);
    }
    place_.Advance(taken);
    bytes -= taken;
  }
  for (PostedRun& run : runs) run.offset -= *lowest;
  return runs;
}

// ---- chunks that have arrived -------------------------------------------------------------------

Status PayloadIn::Take() {
  while (arrived_ < posted_) {
    Incoming& oldest = incoming_[arrived_];
    const auto arrival = comm_->Test();
    if (!arrival) return reporter_.Named(oldest.chunk, arrival.error());
    if (!arrival->done) {
      reporter_.Await(oldest.chunk, "nothing has come", posted_ - arrived_);
      break;
    }
    oldest.arrival_time = Clock::now();
    if (const Status read = Read(*arrival, &oldest); !read) {
      return reporter_.Named(oldest.chunk, read.error());
    }
    ++arrived_;
    if (IsDue()) FERRY_TRY(Launch());
  }
  return Ok();
}

// Finds out where the pieces of a chunk lie.
Status PayloadIn::Read(const ReceiveComm::Arrival& arrival, Incoming* incoming) {
  const std::size_t bytes = incoming->chunk.message.bytes;
  const Fragment whole{0, static_cast<std::uint32_t>(bytes), 0};
  std::span<const Fragment> fragments(&whole, 1);
  if (rows_) {
    FERRY_TRY_ASSIGN(fragments, rows_->Read(arrival));
  } else if (arrival.bytes >= 0 && static_cast<std::size_t>(arrival.bytes) != bytes) {
    return Error(Code::kCorrupt, fmt::format("{} bytes have come; see that both sides use the same "
                                             "plugin and chunk size",
                                             arrival.bytes));
  }
  LogSteps(incoming->chunk, fragments, arrival);
  incoming->first_block = blocks_.size();
  if (!incoming->runs.empty()) {
    const PostedReceive receive{rows_ ? rows_->pool_bytes() : bytes, bytes, incoming->runs};
    const bool for_gpu = rows_ && !fragments.empty() && receive.runs.size() <= kMaxMessageRuns;
    incoming->rows = for_gpu ? rows_->mapped(fragments) : nullptr;
    if (incoming->rows != nullptr) {
      incoming->row_count = fragments.size();
      FERRY_TRY(
          CheckMessage({fragments.size(), receive.pool_bytes, bytes, TotalBytes(receive.runs)}));
    } else {
      // Blocks of all chunks that wait for a launch lie in one vector, so that a turn allocates
      // nothing once it has grown. Read() appends only if the whole row is valid.
      FERRY_TRY(reader_.Read(fragments, receive, &blocks_));
      incoming->blocks = blocks_.size() - incoming->first_block;
    }
  }
  return Ok();
}

void PayloadIn::LogSteps(const Chunk& chunk, std::span<const Fragment> fragments,
                         const ReceiveComm::Arrival& arrival) const {
  if (!pool_reader_ || !logged_.Have(chunk)) return;
  const auto* const pool = rows_ ? cuda::PointerTo<const std::byte>(rows_->pool().address)
                                 : static_cast<const std::byte*>(chunk.message.data);
  const void* const request = comm_->plugin().has_tcpx_requests() ? arrival.request : nullptr;
  LogArrival({chunk, reporter_.NameOf(chunk), fragments, pool, request}, *pool_reader_);
}

// A chunk shares its launch with others while the GPU has enough work, but does not wait until all
// that have arrived were read, which may take longer than the launch.
bool PayloadIn::IsDue() const {
  return launched_ < arrived_ && (unpacker().in_flight() < kFewBatches ||
                                  Clock::now() - incoming_[launched_].arrival_time > kShareLaunch);
}

Status PayloadIn::Launch() {
  while (launched_ < arrived_ && unpacker().room() > 0) {
    const cuda::ProfileRange range("unpack");
    Batch batch{.begin = Clock::now()};
    const auto ticket = QueueBatch(&batch.count);
    if (!ticket) {
      if (ticket.error().code() == Code::kUnavailable) return Ok();
      return reporter_.Named(incoming_[launched_].chunk, ticket.error());
    }
    batch.ticket = *ticket;
    MarkLaunched(batch);
  }
  return Ok();
}

Result<std::uint64_t> PayloadIn::QueueBatch(std::size_t* count) {
  lists_.clear();
  requests_.clear();
  const bool by_rows = incoming_[launched_].rows != nullptr;
  for (std::size_t i = launched_; i < arrived_; ++i) {
    const Incoming& one = incoming_[i];
    if ((one.rows != nullptr) != by_rows) break;
    if (by_rows) {
      requests_.push_back({one.rows,
                           one.row_count,
                           {rows_->pool_bytes(), one.chunk.message.bytes, one.runs},
                           one.to,
                           one.from});
    } else {
      lists_.push_back({std::span(blocks_).subspan(one.first_block, one.blocks), one.to, one.from});
    }
  }
  const auto queue = [&](std::size_t first) {
    return by_rows ? unpacker().EnqueueRows(std::span(requests_).first(first))
                   : unpacker().Enqueue(std::span(lists_).first(first));
  };
  *count = lists_.size() + requests_.size();
  auto ticket = queue(*count);
  // kInvalidArgument: more chunks have arrived than fit into one batch. kUnavailable: there is no
  // room at the moment.
  while (!ticket && ticket.error().code() == Code::kInvalidArgument && *count > 1) {
    *count /= 2;
    ticket = queue(*count);
  }
  return ticket;
}

void PayloadIn::MarkLaunched(const Batch& batch) {
  // Only this thread writes the counts.
  const auto add = [](auto* total, auto more) {
    total->store(total->load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  };
  const auto now = Clock::now();
  if (logged_.Have(incoming_[launched_].chunk)) LogLaunch(batch, now);
  add(&launches_->chunks, batch.count);
  for (std::size_t i = 0; i < batch.count; ++i) {
    Incoming& one = incoming_[launched_++];
    one.ticket = batch.ticket;
    one.launch_time = now;
    const std::int64_t waited = std::chrono::nanoseconds(now - one.arrival_time).count();
    add(&launches_->nanoseconds, waited);
    if (waited > launches_->longest_nanoseconds.load(std::memory_order_relaxed)) {
      launches_->longest_nanoseconds.store(waited, std::memory_order_relaxed);
    }
  }
  const std::size_t used = launched_ < arrived_ ? incoming_[launched_].first_block : blocks_.size();
  // The unpacker has taken its copy (PlacedList), so their blocks can go; the rest moves to the
  // front.
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(used));
  for (std::size_t i = launched_; i < arrived_; ++i) incoming_[i].first_block -= used;
}

void PayloadIn::LogLaunch(const Batch& batch, Clock::time_point end) const {
  const Incoming& first = incoming_[launched_];
  std::uint64_t bytes = 0;
  std::uint64_t fragments = 0;
  for (std::size_t i = launched_; i < launched_ + batch.count; ++i) {
    bytes += incoming_[i].chunk.message.bytes;
    fragments += incoming_[i].rows == nullptr ? incoming_[i].blocks : incoming_[i].row_count;
  }
  const std::string rows = first.rows == nullptr ? std::string()
                                                 : fmt::format("; {} thread blocks read the rows",
                                                               unpacker().rows_groups());
  const auto micros = [](Clock::duration time) { return Seconds(time) * 1e6; };
  Log(LogLevel::kInfo, "plugin",
      "launching device unpack ({}), total_bytes={}: launch {} of {} chunks in {} fragments, "
      "queued in {:.1f} us, {:.1f} us after the first of them came{}",
      UnpackName(gpu_ ? gpu_.by : UnpackBy::kHost), bytes, batch.ticket, batch.count, fragments,
      micros(end - batch.begin), micros(end - first.arrival_time), rows);
}

// ---- chunks that are in place -------------------------------------------------------------------

Status PayloadIn::Finish() {
  const auto completed = unpacker().Completed();
  if (completed) return GiveBack(*completed);
  if (arrived_ == 0) return completed.error();
  return reporter_.Named(incoming_.front().chunk, completed.error());
}

Status PayloadIn::GiveBack(std::uint64_t completed) {
  while (launched_ > 0 && incoming_.front().ticket <= completed) {
    // A batch is asked for its refused chunks while its first chunk is the oldest; a refusal ends
    // the lane.
    const auto refused = unpacker().TakeRefused(incoming_.front().ticket);
    if (!refused.empty()) {
      return reporter_.Named(incoming_[refused.front().index].chunk, refused.front().error);
    }
    const Chunk chunk = incoming_.front().chunk;
    if (logged_.Have(chunk)) {
      Log(LogLevel::kInfo, "plugin",
          "device unpack completed: {}, seen {:.1f} us after launch {} was queued",
          reporter_.NameOf(chunk), Seconds(Clock::now() - incoming_.front().launch_time) * 1e6,
          incoming_.front().ticket);
    }
    // The chunk leaves the queue before Consume(), so that a failed one is not consumed twice.
    incoming_.pop_front();
    --launched_;
    --arrived_;
    --posted_;
    if (const Status consumed = comm_->Consume(); !consumed) {
      return reporter_.Named(chunk, consumed.error());
    }
    if (from_slots_) CopyToHost(chunk);
    left_ -= chunk.message.bytes;
    received_bytes_ += chunk.message.bytes;
    if (!busy()) FinishPayload();
  }
  return Ok();
}

void PayloadIn::CopyToHost(const Chunk& chunk) {
  (void)place_.CopyIn(buffers_->slots.bytes.subspan(static_cast<std::size_t>(SlotOf(chunk.number)),
                                                    chunk.message.bytes));
}

void PayloadIn::FinishPayload() {
  ++payload_;
  if (!logs_host_payloads_ || host_begin_.empty()) return;
  Log(LogLevel::kInfo, "plugin", "a payload of {} bytes in host memory begins {}", total_,
      FirstBytes(host_begin_));
}

}  // namespace ferry::tcpx
