// Receiving payloads over a comm of a plugin.
#include "ferry/tcpx/lane/payload_in.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/cuda/address.h"
#include "ferry/tcpx/lane/step_log.h"

namespace ferry::net::plugin {
namespace {

constexpr std::chrono::seconds kOpenTimeout{1};

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
  std::unique_ptr<PayloadIn> in(new PayloadIn(gpu, chunks));
  FERRY_TRY(in->Init(api, std::move(comm)));
  return in;
}

// A plugin with a pool wants registered memory for each receive, but does not touch it. It gets GPU
// memory, if there is a GPU. One that receives straight into memory gets GPU memory for payloads
// that go to the GPU, where it takes such memory.
Status PayloadIn::Init(cuda::DeviceApi* api, std::unique_ptr<ReceiveComm> comm) {
  straight_ = comm->device_handle().type == abi::kDeviceTypeHost;
  if (!gpu_) FERRY_TRY(CheckMemory(api, *comm));
  const Plugin& plugin = comm->plugin();
  BufferShape shape;
  shape.chunk_bytes = chunks_.bytes;
  shape.slots = straight_ || gpu_ ? ReceiveComm::kWindow : 1;
  shape.gpu_slots = !straight_ ? 1 : plugin.takes_gpu_memory() ? ReceiveComm::kWindow : 0;
  FERRY_TRY_ASSIGN(buffers_, gpu_ ? gpu_.buffers->Take(gpu_, shape) : MakeBuffers(gpu_, shape));
  const Deadline deadline = Deadline::After(kOpenTimeout);
  const std::byte* pool =
      buffers_->gpu_slots.empty() ? buffers_->slots.bytes.data() : buffers_->gpu_slots.data();
  if (gpu_ && !straight_) {
    FERRY_TRY_ASSIGN(const UnpackRows rows, UnpackRows::Open(*comm, gpu_.api, deadline));
    FERRY_TRY(PinPool(gpu_, rows.pool(), plugin.PoolBytes(rows.pool())));
    pool = rows.pool();
  }
  std::vector<std::unique_ptr<ReceiveComm>> comms;
  comms.push_back(std::move(comm));
  ReceiverOptions options;
  options.chunk_timeout = kNoChunkTimeout;
  options.straight = straight_;
  options.end_timeout = std::chrono::milliseconds(0);  // the destructor has waited
  options.watcher = MakeArrivalLog(gpu_, pool);
  FERRY_TRY_ASSIGN(receiver_,
                   Receiver::Create(gpu_.api, &unpacker(), std::move(comms), options, deadline));
  return RegisterSlots();
}

PayloadIn::~PayloadIn() {
  if (receiver_ != nullptr) AwaitCopies();
  registration_.reset();
  gpu_registration_.reset();
  receiver_.reset();
  if (gpu_ && buffers_ != nullptr) gpu_.buffers->Give(std::move(buffers_));
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
  ReceiveComm& comm = receiver_->comm(0);
  if (!buffers_->gpu_slots.empty()) {
    FERRY_TRY_ASSIGN(Registration gpu, comm.Register(buffers_->gpu_slots.data(),
                                                     buffers_->gpu_slots.size(), /*on_gpu=*/true));
    gpu_registration_.emplace(std::move(gpu));
    LogRegistered(buffers_->gpu_slots.size(), "GPU");
  }
  if (gpu_ && !straight_) return Ok();
  FERRY_TRY_ASSIGN(Registration host,
                   comm.Register(buffers_->slots.bytes.data(), buffers_->slots.bytes.size(),
                                 /*on_gpu=*/!straight_));
  registration_.emplace(std::move(host));
  LogRegistered(buffers_->slots.bytes.size(), "host");
  return Ok();
}

// ---- a payload ----------------------------------------------------------------------------------

Status PayloadIn::Begin(std::uint64_t bytes, const Target& target) {
  if (target.gpu && !gpu_) return GpuMemoryUnsupported(receiver_->comm(0).plugin().name());
  place_ = IoCursor(target.memory);
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
  total_ = unposted_ = left_ = bytes;
  // Nothing of the last payload is left, so a GPU that stalled during it has gone on.
  CheckStuck();
  return Ok();
}

Status PayloadIn::BeginCopy(std::span<const std::byte> payload, const Target& target) {
  FERRY_TRY(Begin(payload.size(), target));
  unposted_ = 0;
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
  place_ = IoCursor();
  host_begin_ = {};
  from_slots_ = false;
  receiver_->DropAll();
  if (busy()) AwaitCopies();
}

void PayloadIn::AwaitCopies() {
  // Without a GPU, Progress() copies, so no copy is in flight.
  if (!gpu_) return;
  CheckStuck();
  if (copies_ != Copies::kEnd || unpacker().in_flight() == 0) return;
  const Status drained = receiver_->Drain(Deadline::After(kCopyTimeout));
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
  if (copied_by_ticket_ != 0) {
    FERRY_TRY_ASSIGN(const std::uint64_t completed, unpacker().Completed());
    if (completed < copied_by_ticket_) return Ok();
    copied_by_ticket_ = left_ = 0;
    return Ok();
  }
  PostSome();
  done_.clear();
  FERRY_TRY(receiver_->Progress(&done_));
  for (std::size_t i = 0; i < done_.size(); ++i) {
    const std::uint64_t bytes = std::min(left_, chunks_.bytes);
    if (from_slots_) CopyToHost(static_cast<std::size_t>(bytes));
    ++done_chunks_;
    left_ -= bytes;
    received_bytes_ += bytes;
  }
  if (!done_.empty()) CountLaunches();
  if (!busy() && !done_.empty()) FinishPayload();
  return Ok();
}

void PayloadIn::CountLaunches() {
  const LaunchTimes& times = receiver_->launch_times();
  launches_->chunks.store(times.chunks, std::memory_order_relaxed);
  launches_->nanoseconds.store(times.sum.count(), std::memory_order_relaxed);
  launches_->longest_nanoseconds.store(times.longest.count(), std::memory_order_relaxed);
}

void PayloadIn::FinishPayload() {
  ++payload_;
  if (!logs_host_payloads_ || host_begin_.empty()) return;
  Log(LogLevel::kInfo, "plugin", "a payload of {} bytes in host memory begins {}", total_,
      FirstBytes(host_begin_));
}

// Chunks are done in order.
void PayloadIn::CopyToHost(std::size_t bytes) {
  (void)place_.CopyIn(
      buffers_->slots.bytes.subspan(static_cast<std::size_t>(SlotOf(done_chunks_)), bytes));
}

// Chunks are done in order, so the slot of a chunk is free when fewer than the window are in
// flight.
void PayloadIn::PostSome() {
  while (unposted_ > 0 && receiver_->in_flight() < ReceiveComm::kWindow) {
    const auto bytes = static_cast<std::size_t>(std::min(unposted_, chunks_.bytes));
    const bool on_gpu = gpu_registration_ && (to_gpu_ || !straight_);
    std::byte* const slots = on_gpu ? buffers_->gpu_slots.data() : buffers_->slots.bytes.data();
    const std::uint64_t slot = straight_ ? SlotOf(next_chunk_) : 0;
    const Message message{slots + slot, bytes,
                          chunks_.Tag(payload_, (total_ - unposted_) / chunks_.bytes),
                          on_gpu ? gpu_registration_->mr() : registration_->mr()};
    ChunkPlace place = TakePlace(bytes);
    place.from = on_gpu ? Place::OnDevice(slots + slot) : buffers_->slots_place + slot;
    receiver_->Receive(0, {next_chunk_, total_ - unposted_, message}, std::move(place));
    ++next_chunk_;
    unposted_ -= bytes;
  }
}

// Takes the next `bytes` of the placement; no runs for a payload that the unpacker does not touch.
ChunkPlace PayloadIn::TakePlace(std::size_t bytes) {
  ChunkPlace place;
  if (place_.at_end() || (from_slots_ && straight_)) return place;
  if (from_slots_) {
    place.runs.push_back({0, bytes});
    place.to = buffers_->slots_place + SlotOf(next_chunk_);
    return place;
  }
  std::uint64_t lowest = 0;
  place.runs = TakeRuns(bytes, &lowest);
  place.to = Place{lowest, lowest};
  return place;
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

}  // namespace ferry::net::plugin
