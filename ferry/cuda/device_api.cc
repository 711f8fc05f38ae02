// The parts of DeviceApi that are the same for real and simulated GPUs.
#include "ferry/cuda/device_api.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <thread>

namespace ferry::cuda {
namespace {

constexpr auto kFirstPause = std::chrono::microseconds(2);
constexpr auto kLongestPause = std::chrono::microseconds(500);
constexpr auto kProbeTimeout = std::chrono::seconds(5);

template <class Queried>
// Polls, because CUDA's own waits have no deadline. The pauses double, from what a short copy takes
// to what does not matter after a long one.
Status WaitUntilReady(StreamApi& api, const Queried& queried, std::string_view what,
                      Deadline deadline) {
  const auto began = Clock::now();
  auto pause = std::chrono::duration_cast<Clock::duration>(kFirstPause);
  for (;;) {
    FERRY_TRY_ASSIGN(const bool ready, api.Query(queried));
    if (ready) return Ok();
    const auto now = Clock::now();
    if (deadline.expired()) {
      return Error(Code::kTimedOut,
                   fmt::format("waiting for {} of device {}: not ready after {} ms; see what the "
                               "device does, or wait longer",
                               what, queried.ordinal(),
                               std::chrono::duration_cast<milliseconds>(now - began).count()));
    }
    std::this_thread::sleep_until(std::min(now + pause, deadline.when()));
    pause = std::min<Clock::duration>(pause * 2, kLongestPause);
  }
}

}  // namespace

const char* MemoryKindName(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kHost: return "host";
    case MemoryKind::kPinned: return "pinned";
    case MemoryKind::kDevice: return "device";
    case MemoryKind::kManaged: return "managed";
  }
  return "unknown";
}

const char* CopyKindName(CopyKind kind) noexcept {
  switch (kind) {
    case CopyKind::kHostToDevice: return "H2D";
    case CopyKind::kDeviceToHost: return "D2H";
    case CopyKind::kDeviceToDevice: return "D2D";
  }
  return "unknown";
}

template <Resource kResource>
void ResourceTraits<kResource>::Destroy(Handle handle) noexcept {
  handle.api->Release(kResource, handle);
}
template struct ResourceTraits<Resource::kDeviceMemory>;
template struct ResourceTraits<Resource::kPinnedMemory>;
template struct ResourceTraits<Resource::kRegistration>;
template struct ResourceTraits<Resource::kImport>;
template struct ResourceTraits<Resource::kStream>;
template struct ResourceTraits<Resource::kEvent>;
template struct ResourceTraits<Resource::kGraph>;
template struct ResourceTraits<Resource::kCurrentDevice>;

Status StreamApi::Wait(const Event& event, Deadline deadline) {
  return WaitUntilReady(*this, event, "an event", deadline);
}

Status StreamApi::Wait(StreamRef stream, Deadline deadline) {
  return WaitUntilReady(*this, stream, "a stream", deadline);
}

Result<Graph> GraphApi::Capture(StreamRef stream, FunctionRef<Status()> give) {
  FERRY_TRY(BeginCapture(stream));
  const Status given = give();
  // Always end the capture, or the stream would stay in capture mode.
  Result<Graph> graph = EndCapture(stream);
  if (!given) return given.error();
  return graph;
}

Result<bool> ProbeFlags(DeviceApi& api, int ordinal) {
  FERRY_TRY_ASSIGN(const Stream stream, api.CreateStream(ordinal, StreamPriority::kNormal));
  FERRY_TRY_ASSIGN(const PinnedBuffer word, api.AllocatePinned(ordinal, sizeof(std::uint32_t)));
  FERRY_TRY_ASSIGN(void* const flag, api.MappedAddress(ordinal, word.data()));
  StoreFlag(word.data(), 0);
  // Queue the write first: the stream then ends whatever fails.
  Status queued = api.WriteFlag(stream, flag, 1);
  if (queued) queued = api.WaitForFlag(stream, flag, 1);
  // The word must stay until the stream is done with it, also where the second call has failed.
  const Status ended = api.Wait(stream, Deadline::After(kProbeTimeout));
  if (!queued && queued.error().code() == Code::kUnsupported) return false;
  FERRY_TRY(queued);
  FERRY_TRY(ended);
  return LoadFlag(word.data()) == 1;
}

std::uint32_t MaxHeldStreams(const char* connections) noexcept {
  const std::string_view text = connections != nullptr ? connections : "";
  // CUDA_DEVICE_MAX_CONNECTIONS, 1 to 32. Half of the queues stay free for streams that do not
  // wait.
  int queues = 8;  // the default, also for a value that is not a number
  (void)std::from_chars(text.data(), text.data() + text.size(), queues);
  return static_cast<std::uint32_t>(std::clamp(queues, 1, 32) / 2);
}

}  // namespace ferry::cuda
