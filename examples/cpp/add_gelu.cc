// A fused kernel on the first GPU beside its formula: gelu(x + bias), as torch's gelu is by
// default. FERRY_DEVICES=simulated:1 runs it without a GPU. Exits with 77 where there is no GPU.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>

#include "ferry/core/config.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/kernels.h"

namespace {

using ferry::Status;
using ferry::cuda::CopyItem;
using ferry::cuda::CopyKind;
using ferry::cuda::DeviceApi;
using ferry::kernels::DType;
using ferry::kernels::Tensor;

constexpr int kRows = 33;
constexpr int kCols = 1000;
constexpr std::size_t kBiasBytes = kCols * sizeof(float);
constexpr std::size_t kBytes = kRows * kBiasBytes;

float XAt(int i) { return static_cast<float>(i % 201 - 100) * 0.05F; }
float BiasAt(int column) { return static_cast<float>(column % 7) * 0.125F; }

Status Run(DeviceApi* gpu) {
  FERRY_TRY_ASSIGN(const auto stream, gpu->CreateStream(0, ferry::cuda::StreamPriority::kNormal));
  FERRY_TRY_ASSIGN(const auto pinned, gpu->AllocatePinned(0, kBytes + kBiasBytes));
  FERRY_TRY_ASSIGN(const auto device, gpu->AllocateDevice(0, kBytes + kBiasBytes));
  auto* const host = static_cast<float*>(pinned.data());
  for (int i = 0; i < kRows * kCols; ++i) host[i] = XAt(i);
  for (int i = 0; i < kCols; ++i) host[kRows * kCols + i] = BiasAt(i);

  auto* const there = static_cast<std::byte*>(device.data());
  const CopyItem in{there, pinned.data(), kBytes + kBiasBytes};
  FERRY_TRY(gpu->Copy(stream, CopyKind::kHostToDevice, {&in, 1}));
  const Tensor x = Tensor::Contiguous(there, DType::kFloat32, {kRows, kCols});
  const Tensor bias = Tensor::Contiguous(there + kBytes, DType::kFloat32, {kCols});
  const ferry::kernels::AddGeluArgs arguments{.x = x, .bias = bias, .out = x};
  FERRY_TRY(
      ferry::cuda::LaunchKernel(*gpu, stream, ferry::kernels::kFusedAddGeluKernel, arguments));
  const CopyItem out{pinned.data(), there, kBytes};
  FERRY_TRY(gpu->Copy(stream, CopyKind::kDeviceToHost, {&out, 1}));
  FERRY_TRY(gpu->Wait(stream, ferry::Deadline::After(std::chrono::seconds(30))));

  double difference = 0;
  for (int i = 0; i < kRows * kCols; ++i) {
    const double sum = XAt(i) + BiasAt(i % kCols);
    const double right = sum / 2 * (1 + std::erf(sum / std::sqrt(2.0)));
    difference = std::max(difference, std::abs(host[i] - right));
  }
  std::printf("gelu(x + bias) of [%d, %d] in one kernel: at most %.1e from its formula\n", kRows,
              kCols, difference);
  return difference < 1e-5 ? ferry::Ok()
                           : Status(ferry::Error(ferry::Code::kInternal, "the values differ"));
}

}  // namespace

int main() {
  const auto config = ferry::Config::FromEnvironment();
  const auto gpus = config ? ferry::cuda::OpenDevices(*config) : config.error();
  if (!gpus) {
    std::fprintf(stderr, "skipped: %s\n", gpus.error().ToString().c_str());
    return config ? 77 : 1;
  }
  const Status status = Run(*gpus);
  if (!status) std::fprintf(stderr, "%s\n", status.error().ToString().c_str());
  return status ? 0 : 1;
}
