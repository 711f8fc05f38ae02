// Finds a plugin's pool, and reads the fragments that it records for each receive.
#include "ferry/tcpx/host/unpack_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ferry/core/log.h"
#include "ferry/cuda/address.h"
#include "ferry/tcpx/host/tcpx_layout.h"

namespace ferry::tcpx {
namespace {

constexpr const char* kNotTrusted =
    "the plugin's metadata is not to be trusted; end the connection, and check that the plugin is "
    "GPUDirect-TCPX 3.1.9 or has its layout";

// The range of a fragment's address.
constexpr std::uint64_t kMaxPoolBytes = std::uint64_t{1} << 32;

struct PinnedPools {
  std::mutex mutex;
  std::vector<cuda::HostRegistration> pins;  // under mutex
};

// Lets the GPU read a pool in host memory, unless it can already.
Status PinPool(cuda::DeviceApi* api, int ordinal, std::byte* pool, std::size_t bytes) {
  // Never destroyed, because the plugin keeps its pool, and comms may outlive static storage.
  static auto* const all = new PinnedPools;
  const std::lock_guard lock(all->mutex);
  FERRY_TRY_ASSIGN(const cuda::PointerInfo info, api->Inspect(pool));
  if (info.kind != cuda::MemoryKind::kHost) return Ok();
  FERRY_TRY_ASSIGN(auto pin, api->RegisterHost(ordinal, pool, bytes));
  all->pins.push_back(std::move(pin));
  return Ok();
}

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

Result<UnpackRows> UnpackRows::Open(const ReceiveComm& comm, cuda::DeviceApi* api, int ordinal,
                                    Deadline deadline) {
  const abi::DeviceHandle& device = comm.device_handle();
  if (device.type != abi::kDeviceTypeUnpack || device.version != abi::kDeviceVersionUnpack ||
      device.handle == nullptr || device.size < sizeof(layout::UnpackHandle)) {
    return Error(
        Code::kUnsupported,
        fmt::format("network plugin {} gives a device handle of type {}, version {:#x} and "
                    "{} bytes; only type {}, version {:#x} and {} bytes is known here",
                    comm.plugin().name(), device.type, device.version, device.size,
                    abi::kDeviceTypeUnpack, abi::kDeviceVersionUnpack,
                    sizeof(layout::UnpackHandle)));
  }
  layout::UnpackHandle handle;
  const auto into = std::as_writable_bytes(std::span(&handle, 1));
  FERRY_TRY(ReadHandle(api, device.handle, into, deadline));
  if (handle.meta == nullptr || handle.bounce_pool == nullptr) {
    return Error(Code::kCorrupt,
                 fmt::format("network plugin {} has {}; {}", comm.plugin().name(),
                             handle.meta == nullptr ? "no rows of metadata" : "no bounce pool",
                             kNotTrusted));
  }
  UnpackRows rows(handle.meta, handle.bounce_pool, handle.head, comm.plugin().has_tcpx_requests());
  FERRY_TRY(rows.FindPool(comm.plugin(), api, ordinal));
  return rows;
}

Status UnpackRows::FindPool(const Plugin& plugin, cuda::DeviceApi* api, int ordinal) {
  cuda::PointerInfo info;
  if (api != nullptr) {
    FERRY_TRY_ASSIGN(info, api->Inspect(base_));
  }
  FERRY_TRY(MeasurePool(plugin, info));
  pool_ = Place::OnDevice(base_);
  if (api == nullptr) return Ok();
  if (info.kind == cuda::MemoryKind::kDevice) {
    const auto peers =
        info.ordinal == ordinal ? Result<bool>(true) : api->CanAccessPeer(ordinal, info.ordinal);
    kernels_read_pool_ = info.ordinal == ordinal ||
                         (peers && *peers && api->EnablePeerAccess(ordinal, info.ordinal));
    return Ok();
  }
  copy_kind_ = cuda::CopyKind::kHostToDevice;
  // As the stand-in may have it. Kernels can read it once it is registered.
  if (info.kind == cuda::MemoryKind::kHost) {
    FERRY_TRY(PinPool(api, ordinal, base_, static_cast<std::size_t>(pool_bytes_)));
  }
  FERRY_TRY_ASSIGN(pool_, Place::OnHost(*api, ordinal, base_));
  return Ok();
}

// `info` is that of the pool's start. Uses the smaller of the sizes that the plugin and CUDA
// report.
Status UnpackRows::MeasurePool(const Plugin& plugin, const cuda::PointerInfo& info) {
  const std::uint64_t reported = plugin.PoolBytes(base_);
  // CUDA knows the allocation that contains the pool; for plain host memory it knows nothing.
  const bool is_known = info.kind != cuda::MemoryKind::kHost && info.bytes > 0;
  const std::uint64_t allocated =
      is_known ? info.base + info.bytes - cuda::AddressOf(base_) : std::uint64_t{0};
  pool_bytes_ = kMaxPoolBytes;
  for (const std::uint64_t known : {reported, allocated}) {
    if (known > 0) pool_bytes_ = std::min(pool_bytes_, known);
  }
  if (reported > 0 || allocated > 0) return Ok();
  if (info.kind == cuda::MemoryKind::kHost) {
    return Error(Code::kUnsupported,
                 fmt::format("network plugin {} has its bounce pool in host memory and does not "
                             "report its size, so received fragments cannot be checked; use a "
                             "build of it that exports {}",
                             plugin.name(), kPoolBytesName));
  }
  Log(LogLevel::kWarn, "plugin",
      "neither CUDA nor network plugin {} reports the size of its bounce pool: fragments are "
      "checked against the {} bytes that they can address",
      plugin.name(), kMaxPoolBytes);
  return Ok();
}

void UnpackRows::Map(cuda::DeviceApi* api, int ordinal) {
  if (cuda::AddressOf(meta_) % sizeof(Fragment) != 0) return;
  const auto info = api->Inspect(meta_);
  if (!info) return;
  if (info->kind == cuda::MemoryKind::kHost) {
    auto pin = api->RegisterHost(ordinal, meta_, sizeof(layout::UnpackMeta));
    if (!pin) {
      Log(LogLevel::kInfo, "plugin", "the CPU reads the plugin's rows: {}", pin.error().message());
      return;
    }
    pin_ = *std::move(pin);
  } else if (info->bytes > 0 &&
             info->base + info->bytes < cuda::AddressOf(meta_) + sizeof(layout::UnpackMeta)) {
    // A kernel that reads beyond what is pinned loses the device.
    Log(LogLevel::kInfo, "plugin",
        "the CPU reads the plugin's rows: only {} of their {} bytes are pinned",
        info->base + info->bytes - cuda::AddressOf(meta_), sizeof(layout::UnpackMeta));
    return;
  }
  if (const auto mapped = api->MappedAddress(ordinal, meta_)) {
    mapped_ = cuda::AddressOf(*mapped);
  }
}

const Fragment* UnpackRows::mapped(std::span<const Fragment> fragments) const noexcept {
  if (mapped_ == 0) return nullptr;
  return cuda::PointerTo<const Fragment>(mapped_ + cuda::AddressOf(fragments.data()) -
                                         cuda::AddressOf(meta_));
}

Result<std::span<const Fragment>> UnpackRows::Read(const ReceiveComm::Arrival& arrival) const {
  // The plugin uses rows in a ring, one for each receive in order. A row is reused only after
  // Consume(), so it is stable until then.
  const std::size_t row = arrival.index % layout::kRows;
  Fragment* const fragments = meta_->rows[row];
  std::uint64_t* const counted = &meta_->counts[row];
  // The plugin writes the count after the fragments.
  const std::uint64_t count =
      std::atomic_ref<std::uint64_t>(*counted).load(std::memory_order_acquire);
  if (count > layout::kRowFragments) {
    return Error(Code::kCorrupt,
                 fmt::format("receive {} has {} fragments in row {}, which has room "
                             "for {}; {}",
                             arrival.index, count, row, layout::kRowFragments, kNotTrusted));
  }
  // GPUDirect-TCPX's requests name their row: a second source for the same fact, which catches a
  // plugin whose layout or order is another one.
  if (has_known_requests_) {
    const auto& request = *static_cast<const layout::Request*>(arrival.request);
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

}  // namespace ferry::tcpx
