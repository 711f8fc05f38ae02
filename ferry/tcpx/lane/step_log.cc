// Formats the steps of lanes over plugins, and reads the bytes that are shown.
#include "ferry/tcpx/lane/step_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/cuda/address.h"
#include "ferry/tcpx/host/tcpx_layout.h"

namespace ferry::tcpx {
namespace {

constexpr std::size_t kShownBytes = 32;
constexpr std::size_t kShownFragments = 3;
constexpr std::chrono::seconds kReadTimeout{1};

}  // namespace

// Copies the first bytes of GPU memory to the host. Any thread.
class GpuReader {
 public:
  // One for each GPU of the process, never destroyed: freeing pinned memory waits for the whole
  // device, whose work may wait for the lane that reads. Null for a second set of devices, and
  // where its memory cannot be allocated.
  static GpuReader* For(const LaneGpu& gpu) {
    static std::mutex mutex;
    static auto* const readers = new std::map<int, GpuReader*>;
    const std::lock_guard lock(mutex);
    const auto [found, is_new] = readers->try_emplace(gpu.ordinal);
    if (is_new) found->second = Create(gpu);
    GpuReader* const reader = found->second;
    return reader != nullptr && reader->api_ == gpu.api ? reader : nullptr;
  }

  Result<std::string> Read(const std::byte* from, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const cuda::CopyItem item{pinned_.data(), from, bytes};
    FERRY_TRY(api_->Copy(stream_, cuda::CopyKind::kDeviceToHost, {&item, 1}));
    FERRY_TRY(api_->Wait(stream_, Deadline::After(kReadTimeout)));
    return FirstBytes(pinned_.bytes().first(bytes));
  }

 private:
  static GpuReader* Create(const LaneGpu& gpu) {
    auto pinned = gpu.api->AllocatePinned(gpu.ordinal, kShownBytes);
    auto stream = gpu.api->CreateStream(gpu.ordinal, cuda::StreamPriority::kNormal);
    if (!pinned || !stream) return nullptr;
    return new GpuReader(gpu.api, *std::move(pinned), *std::move(stream));
  }
  GpuReader(cuda::DeviceApi* api, cuda::PinnedBuffer pinned, cuda::Stream stream)
      : api_(api), pinned_(std::move(pinned)), stream_(std::move(stream)) {}

  cuda::DeviceApi* const api_;
  std::mutex mutex_;
  cuda::PinnedBuffer pinned_;
  cuda::Stream stream_;
};

void LogDevices(const Plugin& plugin) {
  for (std::size_t i = 0; i < plugin.nics().size(); ++i) {
    const NicFacts& nic = plugin.nics()[i];
    Log(LogLevel::kInfo, "plugin", "device {}: {}, {} Mbit/s, {}", i, nic.name, nic.megabits,
        nic.unpacks ? "leaves what it receives in pieces" : "receives in place");
  }
}

void LogHandle(const UnpackRows& rows) {
  Log(LogLevel::kInfo, "plugin",
      "device handle: meta={:#x} bounce_buf={:#x} head={}, pool of {} bytes",
      cuda::AddressOf(rows.meta()), rows.pool().address, rows.head(), rows.pool_bytes());
}

std::string FirstBytes(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte one : bytes.first(std::min(bytes.size(), kShownBytes))) {
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", std::to_integer<int>(one));
  }
  return text;
}

PoolReader::PoolReader(const LaneGpu& gpu, const std::byte* pool) {
  if (!gpu) return;
  const auto info = gpu.api->Inspect(pool);
  on_gpu_ = !info || info->kind == cuda::MemoryKind::kDevice;
  if (on_gpu_) reader_ = GpuReader::For(gpu);
}

std::string PoolReader::FirstBytes(const std::byte* from, std::size_t bytes) const {
  bytes = std::min(bytes, kShownBytes);
  if (!on_gpu_) return tcpx::FirstBytes({from, bytes});
  if (reader_ == nullptr) return "(not read: no pinned memory)";
  const auto read = reader_->Read(from, bytes);
  return read ? *read : fmt::format("(not read: {})", read.error().message());
}

void LogArrival(const ArrivedChunk& arrived, const PoolReader& pool) {
  const auto& fragments = arrived.fragments;
  Log(LogLevel::kInfo, "plugin", "received {}: {} fragments", arrived.name, fragments.size());
  if (arrived.chunk.number > 0) return;
  if (arrived.request != nullptr) {
    const auto& request = *static_cast<const layout::Request*>(arrived.request);
    Log(LogLevel::kInfo, "plugin",
        "request metadata: request_ptr={} active={} idx={} cnt_cache={} size={} size_pending={}",
        arrived.request, static_cast<int>(request.active), request.row, request.count_so_far,
        request.size, request.size_pending);
  }
  for (std::size_t i = 0; i < std::min(fragments.size(), kShownFragments); ++i) {
    Log(LogLevel::kInfo, "plugin", "descriptor[{}] src_off={} len={} dst_off={}", i,
        fragments[i].src, fragments[i].len, fragments[i].dst);
  }
  if (fragments.empty()) return;
  const Fragment& first = fragments.front();
  const std::size_t shown = std::min<std::size_t>(first.len, kShownBytes);
  Log(LogLevel::kInfo, "plugin", "bounce probe ({}B) from src_off={}: {}", shown, first.src,
      pool.FirstBytes(arrived.pool + first.src, shown));
}

}  // namespace ferry::tcpx
