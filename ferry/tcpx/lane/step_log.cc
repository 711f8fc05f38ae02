// Formats the steps of lanes over plugins, and reads the bytes that are shown.
#include "ferry/tcpx/lane/step_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/log.h"
#include "ferry/tcpx/host/tcpx_layout.h"
#include "ferry/tcpx/uccl_variables.h"

namespace ferry::tcpx {
namespace {

constexpr std::size_t kShownBytes = 16;
constexpr std::size_t kShownFragments = 3;
constexpr std::chrono::seconds kReadTimeout{1};

// Copies the first bytes of GPU memory to the host. Any thread.
class GpuReader {
 public:
  // One for the process, never destroyed: freeing pinned memory waits for the whole device, whose
  // work may wait for the lane that reads. Null for a second set of devices,
  // and where its memory cannot be allocated.
  static GpuReader* For(const LaneGpu& gpu) {
    static GpuReader* const reader = Create(gpu);
    return reader != nullptr && reader->api_ == gpu.api ? reader : nullptr;
  }

  Result<std::string> Read(const std::byte* at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const cuda::CopyItem item{pinned_.data(), at, bytes};
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

class ArrivalLog {
 public:
  ArrivalLog(UnpackBy by, GpuReader* reader, bool host_pool)
      : by_(by), reader_(reader), host_pool_(host_pool) {}

  // Whether the next chunk is to be shown.
  bool operator()(const WatchedChunk& watched) {
    const Message& message = watched.chunk.message;
    if (std::exchange(first_, false)) {
      ShowFirst(watched);
    } else {
      Log(LogLevel::kInfo, "plugin", "chunk with tag {}, {} bytes, at {}: {} fragments",
          message.tag, message.bytes, watched.chunk.offset, watched.fragments.size());
    }
    return each_chunk_;
  }

 private:
  void ShowFirst(const WatchedChunk& watched) const {
    const auto& fragments = watched.fragments;
    std::string places;
    for (const Fragment& one : fragments.first(std::min(fragments.size(), kShownFragments))) {
      if (!places.empty()) places += ", ";
      places += fmt::format("{} bytes at {} of the pool to {}", one.len, one.src, one.dst);
    }
    Log(LogLevel::kInfo, "plugin",
        "metadata of the first chunk (tag {}, {} bytes): {} fragments: {}{}",
        watched.chunk.message.tag, watched.chunk.message.bytes, fragments.size(), places,
        fragments.size() > kShownFragments ? ", ..." : "");
    if (watched.request != nullptr) {
      const auto& request = *static_cast<const layout::Request*>(watched.request);
      Log(LogLevel::kInfo, "plugin",
          "its request: operation {}, memory kind {}, size {}, pending {}, row {}, {} fragments",
          request.operation, request.memory_kind, request.size, request.size_pending, request.row,
          request.count_so_far);
    }
    if (fragments.empty()) return;
    const Fragment& first = fragments.front();
    Log(LogLevel::kInfo, "plugin", "the pool at {} begins {}", first.src,
        PoolBytes(watched.pool + first.src, std::min<std::size_t>(first.len, kShownBytes)));
    Log(LogLevel::kInfo, "plugin", "unpacking {} fragments by {}", fragments.size(),
        UnpackName(by_));
  }

  std::string PoolBytes(const std::byte* at, std::size_t bytes) const {
    if (host_pool_) return FirstBytes({at, bytes});
    if (reader_ == nullptr) return "(not read: no pinned memory)";
    const auto read = reader_->Read(at, bytes);
    return read ? *read : fmt::format("(not read: {})", read.error().message());
  }

  const UnpackBy by_;
  GpuReader* const reader_;  // null for a pool in host memory
  const bool host_pool_;
  const bool each_chunk_ = ReadUcclLogSwitches().each_chunk;
  bool first_ = true;
};

}  // namespace

void LogDevices(const Plugin& plugin) {
  for (std::size_t i = 0; i < plugin.nics().size(); ++i) {
    const NicFacts& nic = plugin.nics()[i];
    Log(LogLevel::kInfo, "plugin", "device {}: {}, {} Mbit/s, {}", i, nic.name, nic.megabits,
        nic.unpacks ? "leaves what it receives in pieces" : "receives in place");
  }
}

std::string FirstBytes(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte one : bytes.first(std::min(bytes.size(), kShownBytes))) {
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", std::to_integer<int>(one));
  }
  return text;
}

ChunkWatcher MakeArrivalLog(const LaneGpu& gpu, const std::byte* pool) {
  if (!LogEnabled(LogLevel::kInfo)) return nullptr;
  if (!gpu) return ArrivalLog(UnpackBy::kHost, nullptr, /*host_pool=*/true);
  const auto info = gpu.api->Inspect(pool);
  const bool host_pool = info && info->kind != cuda::MemoryKind::kDevice;
  return ArrivalLog(gpu.by, host_pool ? nullptr : GpuReader::For(gpu), host_pool);
}

}  // namespace ferry::tcpx
