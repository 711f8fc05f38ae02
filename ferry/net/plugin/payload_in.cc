// Receiving payloads over a comm of a plugin.
#include "ferry/net/plugin/payload_in.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ferry/cuda/address.h"
#include "ferry/net/plugin/payload_out.h"

namespace ferry::net::plugin {
namespace {

// Waits for GPUs only, which have no part in it.
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
               fmt::format("network plugin {} receives into GPU memory, which endpoints cannot use "
                           "yet; set the provider to tcp (FERRY_PROVIDER), or use 'ferry perf' and "
                           "'ferry transfer' with --provider plugin:PATH",
                           plugin.name()));
}

}  // namespace

Result<std::unique_ptr<PayloadIn>> PayloadIn::Create(cuda::DeviceApi* api,
                                                     std::unique_ptr<ReceiveComm> comm,
                                                     std::uint64_t chunk_bytes) {
  FERRY_TRY(CheckMemory(api, *comm));
  std::unique_ptr<PayloadIn> in(new PayloadIn(chunk_bytes));
  in->straight_ = comm->device_handle().type == abi::kDeviceTypeHost;
  // A plugin with a pool wants registered memory for each receive, but does not touch it.
  const std::size_t slots = in->straight_ ? ReceiveComm::kWindow : 1;
  FERRY_TRY_ASSIGN(in->slots_, MapHugePages(slots * chunk_bytes));
  FERRY_TRY_ASSIGN(in->unpacker_, Unpacker::Create(nullptr, 0, {.by = UnpackBy::kHost}));
  std::vector<std::unique_ptr<ReceiveComm>> comms;
  comms.push_back(std::move(comm));
  ReceiverOptions options;
  options.chunk_timeout = kNoChunkTimeout;
  if (in->straight_) options.landing = in->slots_.bytes;
  FERRY_TRY_ASSIGN(in->receiver_, Receiver::Create(nullptr, in->unpacker_.get(), std::move(comms),
                                                   options, Deadline::After(kOpenTimeout)));
  FERRY_TRY_ASSIGN(Registration registration,
                   in->receiver_->comm(0).Register(in->slots_.bytes.data(), in->slots_.bytes.size(),
                                                   /*on_gpu=*/!in->straight_));
  in->registration_.emplace(std::move(registration));
  return in;
}

void PayloadIn::Begin(std::uint64_t bytes, std::span<const iovec> memory) {
  place_ = IoCursor(memory);
  total_ = unposted_ = left_ = bytes;
}

void PayloadIn::DropRest() {
  place_ = IoCursor();
  receiver_->DropAll();
  // The host copies within Progress(), so no copy is in flight.
}

Status PayloadIn::Progress() {
  PostSome();
  done_.clear();
  FERRY_TRY(receiver_->Progress(&done_));
  for (std::size_t i = 0; i < done_.size(); ++i) {
    const std::uint64_t bytes = std::min(left_, chunk_bytes_);
    left_ -= bytes;
    received_bytes_ += bytes;
  }
  return Ok();
}

// Chunks are done in order, so the slot of a chunk is free when fewer than the window are in
// flight.
void PayloadIn::PostSome() {
  while (unposted_ > 0 && receiver_->in_flight() < ReceiveComm::kWindow) {
    const auto bytes = static_cast<std::size_t>(std::min(unposted_, chunk_bytes_));
    const std::uint64_t slot = straight_ ? next_chunk_ % ReceiveComm::kWindow : 0;
    const Message message{slots_.bytes.data() + slot * chunk_bytes_, bytes,
                          static_cast<int>(next_chunk_ % kTags), registration_->mr()};
    receiver_->Receive(0, {next_chunk_, total_ - unposted_, message}, TakePlace(bytes));
    ++next_chunk_;
    unposted_ -= bytes;
  }
}

// Takes the next `bytes` of the placement; no runs for a payload that is dropped.
ChunkPlace PayloadIn::TakePlace(std::size_t bytes) {
  ChunkPlace place;
  if (place_.at_end()) return place;
  std::uint64_t lowest = ~std::uint64_t{0};
  std::array<iovec, 64> pieces;
  while (bytes > 0) {
    std::size_t used = 0;
    const std::size_t taken = place_.Collect(pieces, &used, bytes);
    for (const iovec& piece : std::span(pieces).first(used)) {
      place.runs.push_back({cuda::AddressOf(piece.iov_base), piece.iov_len});
      lowest = std::min(lowest, place.runs.back().offset);
    }
    place_.Advance(taken);
    bytes -= taken;
  }
  for (PostedRun& run : place.runs) run.offset -= lowest;
  place.to = Place{lowest, lowest};
  return place;
}

}  // namespace ferry::net::plugin
