// Host memory through a kernel and back, in chunks whose copies and kernels overlap.
// FERRY_DEVICES=simulated:1 runs it without a GPU. Exits with 77 where there is no GPU.
#include "ferry/copy/pipeline.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/open_devices.h"
#include "increment.h"

namespace {

using ferry::Deadline;
using ferry::PipelineChunk;
using ferry::Status;
using ferry::cuda::DeviceApi;
using ferry::cuda::EmulatedMemory;
using ferry::cuda::StreamRef;

constexpr std::size_t kBytes = 10'000'000;
constexpr std::size_t kChunkBytes = 1 << 20;

// The kernel on simulated GPUs.
Status EmulateIncrement(EmulatedMemory& memory, const void* arguments) {
  const auto& job = *static_cast<const IncrementArguments*>(arguments);
  FERRY_TRY_ASSIGN(const std::byte* const in, memory.At(job.in, job.bytes));
  FERRY_TRY_ASSIGN(std::byte* const out, memory.At(job.out, job.bytes));
  for (std::size_t i = 0; i < job.bytes; ++i) {
    out[i] = static_cast<std::byte>(std::to_integer<unsigned>(in[i]) + 1);
  }
  return ferry::Ok();
}

#ifdef EXAMPLES_HAVE_CUDA
constexpr ferry::cuda::Kernel kIncrement = {"increment", LaunchIncrement, EmulateIncrement};
#else
constexpr ferry::cuda::Kernel kIncrement = {"increment", nullptr, EmulateIncrement};
#endif

Status Run(DeviceApi* gpus) {
  ferry::PipelineOptions options;
  options.chunk_bytes = kChunkBytes;
  FERRY_TRY_ASSIGN(const auto pipeline, ferry::Pipeline::Create(gpus, /*ordinal=*/0, options));

  std::vector<std::byte> source(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i % 251);
  std::vector<std::byte> destination(kBytes);
  // Called for each chunk; only queues work on the stream. Launch a kernel of your own on
  // static_cast<cudaStream_t>(stream.native()).
  const auto increment = [&](StreamRef stream, const PipelineChunk& chunk) {
    const IncrementArguments job{reinterpret_cast<std::uintptr_t>(chunk.out),
                                 reinterpret_cast<std::uintptr_t>(chunk.in), chunk.bytes};
    return ferry::cuda::LaunchKernel(*gpus, stream, kIncrement, job);
  };
  FERRY_TRY(
      pipeline->Run(source, destination, increment, Deadline::After(std::chrono::seconds(30))));

  for (std::size_t i = 0; i < kBytes; ++i) {
    if (destination[i] == static_cast<std::byte>(i % 251 + 1)) continue;
    return ferry::Error(ferry::Code::kInternal, "byte " + std::to_string(i) + " is wrong");
  }
  std::printf("%zu bytes went through the kernel in chunks of %zu\n", kBytes, kChunkBytes);
  return ferry::Ok();
}

Status RunWithGpus(bool* skipped) {
  FERRY_TRY_ASSIGN(const ferry::Config config, ferry::Config::FromEnvironment());
  const auto gpus = ferry::cuda::OpenDevices(config);
  *skipped = !gpus;
  if (!gpus) return gpus.error();
  *skipped =
      kIncrement.launch == nullptr && config.devices.kind != ferry::DeviceChoice::Kind::kSimulated;
  if (*skipped) return ferry::Error(ferry::Code::kUnsupported, "built without nvcc");
  return Run(*gpus);
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
