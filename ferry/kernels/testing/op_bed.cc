// Implements the fixture that runs one op test on several targets.

#include "ferry/kernels/testing/op_bed.h"

#include <chrono>
#include <cstring>

#include "ferry/core/deadline.h"

namespace ferry::kernels {
namespace {

constexpr auto kBedTimeout = std::chrono::seconds(60);

template <class T>
T Made(Result<T> result) {
  EXPECT_TRUE(result) << (result ? "" : result.error().ToString());
  return *std::move(result);
}

}  // namespace

OpBed::OpBed(cuda::DeviceApi* api) : api_(api) {
  if (api_ != nullptr) stream_ = Made(api_->CreateStream(0, cuda::StreamPriority::kNormal));
}

Tensor OpBed::View(TestTensor& tensor) {
  Tensor view = tensor.view();
  if (api_ == nullptr) return view;
  const auto skip = static_cast<std::byte*>(view.data) - tensor.memory().data();
  for (const Mirror& mirror : mirrors_) {
    if (mirror.tensor == &tensor) {
      view.data = static_cast<std::byte*>(mirror.device.data()) + skip;
      return view;
    }
  }
  const std::size_t bytes = tensor.memory().size();
  mirrors_.push_back(
      {&tensor, Made(api_->AllocatePinned(0, bytes)), Made(api_->AllocateDevice(0, bytes))});
  view.data = static_cast<std::byte*>(mirrors_.back().device.data()) + skip;
  return view;
}

void OpBed::Upload() {
  for (const Mirror& mirror : mirrors_) {
    const std::size_t bytes = mirror.pinned.size();
    std::memcpy(mirror.pinned.data(), mirror.tensor->memory().data(), bytes);
    const cuda::CopyItem item{mirror.device.data(), mirror.pinned.data(), bytes};
    const Status copied = api_->Copy(*stream_, cuda::CopyKind::kHostToDevice, {&item, 1});
    EXPECT_TRUE(copied) << copied.error().ToString();
  }
}

Status OpBed::Finish() {
  // Before the copies down, which would put the kernel's failure down to themselves.
  FERRY_TRY(api_->Wait(*stream_, Deadline::After(kBedTimeout)));
  for (const Mirror& mirror : mirrors_) {
    const cuda::CopyItem item{mirror.pinned.data(), mirror.device.data(), mirror.pinned.size()};
    FERRY_TRY(api_->Copy(*stream_, cuda::CopyKind::kDeviceToHost, {&item, 1}));
  }
  FERRY_TRY(api_->Wait(*stream_, Deadline::After(kBedTimeout)));
  for (const Mirror& mirror : mirrors_) {
    std::memcpy(mirror.tensor->memory().data(), mirror.pinned.data(), mirror.pinned.size());
  }
  return Ok();
}

Status OpBed::Replay() {
  if (api_ == nullptr) return call_();
  Upload();
  FERRY_TRY(api_->Replay(*stream_, graph_));
  return Finish();
}

void OpTest::SetUp() {
  // Simulated devices and GPUs get what the CPU gets.
  random_.seed(TestSeed());
  if (GetParam().make == nullptr) return;
  target_ = GetParam().make();
  if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
}

int OpTest::ComputeMajor() const {
  return OnGpu() ? Made(target_->api().Describe(0)).compute_major : 0;
}

const cuda::DeviceCase kCpuCase = {"Cpu", nullptr};

Tensor TensorAt(std::uintptr_t gigabyte, std::initializer_list<std::int64_t> shape, DType dtype) {
  return Tensor::Contiguous(reinterpret_cast<void*>(gigabyte << 30), dtype, shape);
}

}  // namespace ferry::kernels
