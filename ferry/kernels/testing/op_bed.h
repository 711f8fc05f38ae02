// Test fixture that runs the same op test on CPU, simulated device and GPU.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ferry/cuda/device_api.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/kernels/op.h"
#include "ferry/kernels/testing/compare.h"
#include "ferry/kernels/testing/test_tensor.h"

namespace ferry::kernels {

// Runs ops on the tensors of a test: by the CPU form in place, or on a device, in device memory
// that is filled before and read back afterwards.
class OpBed {
 public:
  // Null for the CPU.
  explicit OpBed(cuda::DeviceApi* api);

  // The view of the tensor to put into the op's arguments. The tensor must outlive this object.
  Tensor View(TestTensor& tensor);

  template <class Args>
  Status Run(const cuda::Kernel& kernel, Status (*cpu)(const Args&), const Args& args) {
    if (api_ == nullptr) return cpu(args);
    Upload();
    FERRY_TRY(cuda::LaunchKernel(*api_, *stream_, kernel, args));
    return Finish();
  }

  // Tensors that follow each other without gaps.
  template <class Args>
  Status RunEach(const cuda::Kernel& kernel, Status (*cpu)(const Args&),
                 const std::vector<Args>& calls) {
    if (api_ != nullptr) Upload();
    for (const Args& args : calls) {
      FERRY_TRY(api_ == nullptr ? cpu(args) : cuda::LaunchKernel(*api_, *stream_, kernel, args));
    }
    return api_ == nullptr ? Ok() : Finish();
  }

  // Records a call that Replay() repeats on the tensors' contents at that time: on devices by
  // capturing it into a graph, on the CPU by keeping the call.
  template <class Args>
  Status Capture(const cuda::Kernel& kernel, Status (*cpu)(const Args&), const Args& args) {
    if (api_ == nullptr) {
      call_ = [cpu, args] { return cpu(args); };
      return Ok();
    }
    FERRY_TRY_ASSIGN(graph_, api_->Capture(*stream_, [&] {
      return cuda::LaunchKernel(*api_, *stream_, kernel, args);
    }));
    return Ok();
  }
  Status Replay();

 private:
  struct Mirror {
    TestTensor* tensor;
    cuda::PinnedBuffer pinned;
    cuda::DeviceBuffer device;
  };

  void Upload();
  Status Finish();  // waits for the device and reads back all tensors

  cuda::DeviceApi* const api_;
  std::optional<cuda::Stream> stream_;
  std::vector<Mirror> mirrors_;
  std::function<Status()> call_;  // on the CPU
  cuda::Graph graph_;
};

// A suite for ops:
//
//   class BarTest : public OpTest {};
//   FERRY_INSTANTIATE_OP_TEST(BarTest);
//
// runs each of its tests on the CPU, on a simulated device, and on a GPU.
class OpTest : public ::testing::TestWithParam<cuda::DeviceCase> {
 protected:
  void SetUp() override;

  // `tensors` has FillAnew(random), Args(bed), and ExpectRight() for what the op has written.
  template <class Tensors, class Args>
  void ExpectRightResults(Tensors* tensors, const cuda::Kernel& kernel,
                          Status (*cpu)(const Args&)) {
    tensors->FillAnew(&random());
    OpBed bed = Bed();
    const Status ran = bed.Run(kernel, cpu, tensors->Args(&bed));
    ASSERT_TRUE(ran) << ran.error().ToString();
    tensors->ExpectRight();
  }
  // Captures a call once and replays it on other values.
  template <class Tensors, class Args>
  void ExpectRightReplays(Tensors* tensors, const cuda::Kernel& kernel,
                          Status (*cpu)(const Args&)) {
    OpBed bed = Bed();
    const Status captured = bed.Capture(kernel, cpu, tensors->Args(&bed));
    ASSERT_TRUE(captured) << captured.error().ToString();
    for (int round = 0; round < 3; ++round) {
      tensors->FillAnew(&random());
      const Status replayed = bed.Replay();
      ASSERT_TRUE(replayed) << replayed.error().ToString();
      tensors->ExpectRight();
    }
  }

  // A fresh bed for each run of an op, so that no memory is kept.
  OpBed Bed() { return OpBed(target_ ? &target_->api() : nullptr); }
  std::mt19937_64& random() { return random_; }
  // Seeded identically for the same test on every target; the number of trials is lower where
  // elements are expensive.
  bool OnGpu() const { return target_ && target_->simulated() == nullptr; }
  bool OnCpu() const { return target_ == nullptr; }
  // Major compute capability of the GPU; 0 on other targets.
  int ComputeMajor() const;

 private:
  std::unique_ptr<cuda::DeviceTarget> target_;
  std::mt19937_64 random_;
};

// An address without memory behind it, for checks and plans, which never dereference it.
Tensor TensorAt(std::uintptr_t gigabyte, std::initializer_list<std::int64_t> shape,
                DType dtype = DType::kBfloat16);

// Each of `cases` spoils valid arguments in one way and expects the sentence of the check.
template <class Args, class Case>
void ExpectSentences(const Args& good, const std::vector<Case>& cases, Status (*check)(const Args&),
                     Code code) {
  ASSERT_TRUE(check(good));
  for (const Case& wrong : cases) {
    Args args = good;
    wrong.spoil(&args);
    const Status status = check(args);
    ASSERT_FALSE(status) << wrong.sentence;
    EXPECT_EQ(status.error().code(), code) << status.error().message();
    EXPECT_THAT(status.error().message(), ::testing::HasSubstr(wrong.sentence));
  }
}

extern const cuda::DeviceCase kCpuCase;  // its `make` is null

#define FERRY_INSTANTIATE_OP_TEST(Suite)                                                   \
  INSTANTIATE_TEST_SUITE_P(Cpu, Suite, ::testing::Values(kCpuCase), cuda::DeviceCaseName); \
  INSTANTIATE_TEST_SUITE_P(Simulated, Suite, ::testing::Values(cuda::kSimulatedCases[0]),  \
                           cuda::DeviceCaseName);                                          \
  INSTANTIATE_TEST_SUITE_P(Gpu, Suite, ::testing::Values(cuda::kRealCase), cuda::DeviceCaseName)

}  // namespace ferry::kernels
