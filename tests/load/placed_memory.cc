// Implements host or GPU memory for tests.

#include "tests/load/placed_memory.h"

#include <algorithm>

#include "ferry/cuda/open_devices.h"
#include "ferry/transfer/endpoint.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

constexpr std::ptrdiff_t kFenceBytes = 4096;
constexpr std::byte kFence{0xA5};

}  // namespace

cuda::DeviceApi* DevicesOf(const std::string& devices) {
  if (devices == "none") return nullptr;
  return Must(cuda::OpenDevices(ConfigOf({"devices=" + devices})));
}

PlacedMemory::PlacedMemory(cuda::DeviceApi* devices, int place, std::size_t bytes) {
  if (place == kOnHost) {
    host_.resize(bytes);
    return;
  }
  devices_ = devices;
  mirror_ = Must(devices->AllocatePinned(place, bytes + 2 * kFenceBytes));
  gpu_ = Must(devices->AllocateDevice(place, mirror_.size()));
  stream_ = Must(devices->CreateStream(place, cuda::StreamPriority::kNormal));
  std::fill(mirror_.bytes().begin(), mirror_.bytes().end(), kFence);
  Copy(cuda::CopyKind::kHostToDevice, 0, mirror_.size());
}

std::span<std::byte> PlacedMemory::span() noexcept {
  if (!on_gpu()) return host_;
  return {static_cast<std::byte*>(gpu_.data()) + kFenceBytes, gpu_.size() - 2 * kFenceBytes};
}

void PlacedMemory::Copy(cuda::CopyKind kind, std::size_t at, std::size_t bytes) {
  if (bytes == 0) return;
  std::byte* const there = static_cast<std::byte*>(gpu_.data()) + at;
  std::byte* const here = mirror_.bytes().data() + at;
  const bool up = kind == cuda::CopyKind::kHostToDevice;
  const cuda::CopyItem item{up ? there : here, up ? here : there, bytes};
  MustDo(devices_->Copy(stream_, kind, {&item, 1}));
  MustDo(devices_->Wait(stream_, TestDeadline()));
}

void PlacedMemory::Put(std::span<const std::byte> bytes) {
  if (!on_gpu()) {
    std::copy(bytes.begin(), bytes.end(), host_.begin());
    return;
  }
  std::copy(bytes.begin(), bytes.end(), mirror_.bytes().begin() + kFenceBytes);
  Copy(cuda::CopyKind::kHostToDevice, kFenceBytes, bytes.size());
}

std::span<const std::byte> PlacedMemory::Look(std::size_t bytes) {
  if (!on_gpu()) return std::span<const std::byte>(host_).first(bytes);
  Copy(cuda::CopyKind::kDeviceToHost, kFenceBytes, bytes);
  return mirror_.bytes().subspan(kFenceBytes, bytes);
}

bool PlacedMemory::GuardsIntact() {
  if (!on_gpu()) return true;
  Copy(cuda::CopyKind::kDeviceToHost, 0, mirror_.size());
  const auto is_guard = [](std::byte byte) { return byte == kFence; };
  const auto all = mirror_.bytes();
  return std::all_of(all.begin(), all.begin() + kFenceBytes, is_guard) &&
         std::all_of(all.end() - kFenceBytes, all.end(), is_guard);
}

void UseEachGpu(cuda::DeviceApi* devices, const Config& config) {
  constexpr std::size_t kBytes = 1000 * 1000;
  const int count = devices == nullptr ? 0 : devices->count();
  for (int i = 0; i < count; ++i) {
    PlacedMemory from(devices, i, kBytes);
    PlacedMemory to(devices, i, kBytes);
    auto near = Must(transfer::Endpoint::Create(config));
    auto far = Must(transfer::Endpoint::Create(config));
    auto connection = Must(near.Connect(far.address(), TestDeadline()));
    const auto source = Must(near.Register(from.span(), transfer::Rights::kNone));
    const auto target = Must(far.Register(to.span(), transfer::Rights::kWrite));
    const auto remote = Must(connection.Import(target.key()));
    MustDo(Must(connection.Write(source, 0, remote, 0, kBytes)).Wait(TestDeadline()));
  }
}

std::vector<std::uint64_t> AvailableMemory(cuda::DeviceApi* devices) {
  std::vector<std::uint64_t> available;
  const int count = devices == nullptr ? 0 : devices->count();
  for (int i = 0; i < count; ++i) available.push_back(Must(devices->AvailableMemory(i)));
  return available;
}

std::uint64_t SlotsInUse(const transfer::EndpointCounters& counters) {
  std::uint64_t in_use = 0;
  for (const transfer::StagingCounters& gpu : counters.staging) {
    for (const transfer::StagerCounters* way : {&gpu.to_network, &gpu.from_network}) {
      in_use += gpu.slots - way->free + way->waiting;
    }
  }
  return in_use;
}

}  // namespace ferry::tests
