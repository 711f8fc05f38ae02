// Reads the fragments that a plugin records for each receive.
#include "ferry/tcpx/host/unpack_rows.h"

#include <fmt/core.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/cuda/address.h"

namespace ferry::net::plugin {
namespace {

constexpr const char* kNotTrusted =
    "the plugin's metadata is not to be trusted; end the connection, and check that the plugin is "
    "GPUDirect-TCPX 3.1.9 or has its layout";

Status ReadHandle(cuda::DeviceApi* api, const void* from, std::span<std::byte> into,
                  Deadline deadline) {
  cuda::PointerInfo info;
  if (api != nullptr) {
    FERRY_TRY_ASSIGN(info, api->Inspect(from));
  }
  // The handle may lie on the GPU or, as the stand-in has it by default, in host memory.
  if (info.kind != cuda::MemoryKind::kDevice) {
    std::memcpy(into.data(), from, into.size());
    return Ok();
  }
  struct HandleCopy {
    cuda::PinnedBuffer into;
    cuda::Stream stream;
  };
  auto copy = std::make_unique<HandleCopy>();
  FERRY_TRY_ASSIGN(cuda::PinnedBuffer pinned, api->AllocatePinned(info.ordinal, into.size()));
  FERRY_TRY_ASSIGN(cuda::Stream stream,
                   api->CreateStream(info.ordinal, cuda::StreamPriority::kNormal));
  copy->stream = std::move(stream);
  copy->into = std::move(pinned);
  const cuda::CopyItem item{copy->into.data(), from, into.size()};
  FERRY_TRY(api->Copy(copy->stream, cuda::CopyKind::kDeviceToHost, {&item, 1}));
  if (auto waited = api->Wait(copy->stream, deadline); !waited) {
    // The copy may still write to it. A GPU that hangs is rare enough to leak the buffer.
    if (waited.error().code() == Code::kTimedOut) (void)copy.release();
    return waited;
  }
  std::memcpy(into.data(), copy->into.data(), into.size());
  return Ok();
}

}  // namespace

Result<UnpackRows> UnpackRows::Open(const ReceiveComm& comm, cuda::DeviceApi* api,
                                    Deadline deadline) {
  const abi::DeviceHandle& device = comm.device_handle();
  if (device.type != abi::kDeviceTypeUnpack || device.version != abi::kDeviceVersionUnpack ||
      device.handle == nullptr || device.size < sizeof(tcpx::UnpackHandle)) {
    return Error(
        Code::kUnsupported,
        fmt::format("network plugin {} gives a device handle of type {}, version {:#x} and "
                    "{} bytes; only type {}, version {:#x} and {} bytes is known here",
                    comm.plugin().name(), device.type, device.version, device.size,
                    abi::kDeviceTypeUnpack, abi::kDeviceVersionUnpack, sizeof(tcpx::UnpackHandle)));
  }
  tcpx::UnpackHandle handle;
  const auto into = std::as_writable_bytes(std::span(&handle, 1));
  FERRY_TRY(ReadHandle(api, device.handle, into, deadline));
  if (handle.meta == nullptr || handle.bounce_pool == nullptr) {
    return Error(Code::kCorrupt,
                 fmt::format("network plugin {} has {}; {}", comm.plugin().name(),
                             handle.meta == nullptr ? "no rows of metadata" : "no bounce pool",
                             kNotTrusted));
  }
  return UnpackRows(handle, comm.plugin().has_tcpx_requests());
}

void UnpackRows::Map(cuda::DeviceApi* api, int ordinal) {
  if (cuda::AddressOf(handle_.meta) % sizeof(Fragment) != 0) return;
  const auto info = api->Inspect(handle_.meta);
  if (!info) return;
  if (info->kind == cuda::MemoryKind::kHost) {
    auto pin = api->RegisterHost(ordinal, handle_.meta, sizeof(tcpx::UnpackMeta));
    if (!pin) {
      Log(LogLevel::kInfo, "plugin", "the CPU reads the plugin's rows: {}", pin.error().message());
      return;
    }
    pin_ = *std::move(pin);
  } else if (info->bytes > 0 &&
             info->base + info->bytes < cuda::AddressOf(handle_.meta) + sizeof(tcpx::UnpackMeta)) {
    // A kernel that reads beyond what is pinned loses the device.
    Log(LogLevel::kInfo, "plugin",
        "the CPU reads the plugin's rows: only {} of their {} bytes are pinned",
        info->base + info->bytes - cuda::AddressOf(handle_.meta), sizeof(tcpx::UnpackMeta));
    return;
  }
  if (const auto mapped = api->MappedAddress(ordinal, handle_.meta)) {
    mapped_ = cuda::AddressOf(*mapped);
  }
}

const Fragment* UnpackRows::mapped(std::span<const Fragment> fragments) const noexcept {
  if (mapped_ == 0) return nullptr;
  return cuda::PointerTo<const Fragment>(mapped_ + cuda::AddressOf(fragments.data()) -
                                         cuda::AddressOf(handle_.meta));
}

Result<std::span<const Fragment>> UnpackRows::Read(const ReceiveComm::Arrival& arrival) const {
  // The plugin uses rows in a ring, one for each receive in order. A row is reused only after
  // Consume(), so it is stable until then.
  const std::size_t row = arrival.index % tcpx::kRows;
  Fragment* const fragments = handle_.meta->rows[row];
  std::uint64_t* const counted = &handle_.meta->counts[row];
  // The plugin writes the count after the fragments.
  const std::uint64_t count =
      std::atomic_ref<std::uint64_t>(*counted).load(std::memory_order_acquire);
  if (count > tcpx::kRowFragments) {
    return Error(Code::kCorrupt,
                 fmt::format("receive {} has {} fragments in row {}, which has room "
                             "for {}; {}",
                             arrival.index, count, row, tcpx::kRowFragments, kNotTrusted));
  }
  // GPUDirect-TCPX's requests name their row: a second source for the same fact, which catches a
  // plugin whose layout or order is another one.
  if (has_known_requests_) {
    const auto& request = *static_cast<const tcpx::Request*>(arrival.request);
    if (request.row != row || request.fragments != fragments || request.count != counted) {
      return Error(Code::kCorrupt,
                   fmt::format("receive {} should have row {} of the metadata, and its request "
                               "names row {}{}; {}",
                               arrival.index, row, request.row,
                               request.row == row ? " with other addresses" : "", kNotTrusted));
    }
  }
  return std::span<const Fragment>(fragments, count);
}

}  // namespace ferry::net::plugin
