// One write from GPU memory to GPU memory, ordered with the work of two streams: it begins when one
// stream has filled the source, and another stream waits for it before it reads the destination.
// FERRY_DEVICES=simulated:2 runs it without a GPU. Exits with 77 where there is no GPU.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>

#include "ferry/cuda/device_api.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/ferry.h"

namespace {

using ferry::Deadline;
using ferry::Status;
using ferry::cuda::CopyItem;
using ferry::cuda::CopyKind;
using ferry::cuda::DeviceApi;
using ferry::cuda::StreamPriority;
using ferry::transfer::Endpoint;
using ferry::transfer::Rights;

constexpr std::size_t kBytes = 1 << 20;

Deadline Soon() { return Deadline::After(std::chrono::seconds(30)); }

// Memory from cudaMalloc() is registered in the same way.
std::span<std::byte> BytesOf(const ferry::cuda::DeviceBuffer& buffer) {
  return {static_cast<std::byte*>(buffer.data()), buffer.size()};
}

Status Run(DeviceApi* gpus, const ferry::Config& config) {
  const int from = 0;
  const int to = gpus->count() > 1 ? 1 : 0;
  // Declared first, because they must outlive the regions and the queued copies.
  FERRY_TRY_ASSIGN(const auto pattern, gpus->AllocatePinned(from, kBytes));
  FERRY_TRY_ASSIGN(const auto result, gpus->AllocatePinned(to, kBytes));
  FERRY_TRY_ASSIGN(const auto here, gpus->AllocateDevice(from, kBytes));
  FERRY_TRY_ASSIGN(const auto there, gpus->AllocateDevice(to, kBytes));
  // For a cudaStream_t of your own: StreamRef::Foreign(ordinal, stream).
  FERRY_TRY_ASSIGN(const auto producer, gpus->CreateStream(from, StreamPriority::kNormal));
  FERRY_TRY_ASSIGN(const auto consumer, gpus->CreateStream(to, StreamPriority::kNormal));

  FERRY_TRY_ASSIGN(Endpoint target, Endpoint::Create(config));
  FERRY_TRY_ASSIGN(Endpoint source, Endpoint::Create(config));
  FERRY_TRY_ASSIGN(const auto target_region, target.Register(BytesOf(there), Rights::kWrite));
  FERRY_TRY_ASSIGN(const auto source_region, source.Register(BytesOf(here), Rights::kNone));
  FERRY_TRY_ASSIGN(auto connection, source.Connect(target.address(), Soon()));
  FERRY_TRY_ASSIGN(const auto remote, connection.Import(target_region.key()));

  // Stands for a kernel that produces the bytes. Nothing waits for it on the host.
  std::memset(pattern.data(), 42, kBytes);
  const CopyItem fill{here.data(), pattern.data(), kBytes};
  FERRY_TRY(gpus->Copy(producer, CopyKind::kHostToDevice, {&fill, 1}));

  FERRY_TRY_ASSIGN(auto write, connection.Write(source_region, 0, remote, 0, kBytes,
                                                {.deadline = Soon(), .after = producer}));
  FERRY_TRY(write.MakeStreamWait(consumer));

  // Stands for a kernel that consumes them: queued now, runs when the write has ended.
  const CopyItem fetch{result.data(), there.data(), kBytes};
  FERRY_TRY(gpus->Copy(consumer, CopyKind::kDeviceToHost, {&fetch, 1}));
  FERRY_TRY(gpus->Wait(consumer, Soon()));
  FERRY_TRY(write.Wait(Soon()));  // the stream goes on after an error, too

  std::printf("wrote %zu bytes from GPU %d to GPU %d, path: %s\n", kBytes, from, to,
              ferry::transfer::PathName(write.path().path));
  return std::memcmp(pattern.data(), result.data(), kBytes) == 0
             ? ferry::Ok()
             : Status(ferry::Error(ferry::Code::kInternal, "the bytes differ"));
}

Status RunWithGpus(bool* skipped) {
  FERRY_TRY_ASSIGN(const ferry::Config config, ferry::Config::FromEnvironment());
  const auto gpus = ferry::cuda::OpenDevices(config);
  *skipped = !gpus;
  return gpus ? Run(*gpus, config) : Status(gpus.error());
}

}  // namespace

int main() {
  bool skipped = false;
  const Status status = RunWithGpus(&skipped);
  if (!status) {
    std::fprintf(stderr, "%s%s\n", skipped ? "skipped: " : "", status.error().ToString().c_str());
  }
  return status ? 0 : skipped ? 77 : 1;
}
