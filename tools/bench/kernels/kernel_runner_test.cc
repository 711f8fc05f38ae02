// Tests of the runner of kernel cases on a simulated device, with cases that do not do what they
// should.

#include "tools/bench/kernels/kernel_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"

namespace ferry::tools {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kFloats = 64;

// What the made-up op writes into its results: nothing, half of them, or all.
struct FillArguments {
  std::uint64_t at = 0;
  std::uint64_t floats = 0;
  float value = 0;
};
Status EmulateFill(cuda::EmulatedMemory& memory, const void* arguments) {
  const auto& fill = *static_cast<const FillArguments*>(arguments);
  if (fill.floats == 0) return Ok();
  FERRY_TRY_ASSIGN(std::byte* const to, memory.At(fill.at, fill.floats * sizeof(float)));
  for (std::uint64_t i = 0; i < fill.floats; ++i) {
    std::memcpy(to + i * sizeof(float), &fill.value, sizeof(float));
  }
  return Ok();
}
constexpr cuda::Kernel kFill{"fill", nullptr, EmulateFill};

struct MadeUp {
  std::uint64_t written = kFloats;  // on the device; the CPU writes all
  float on_device = 7;
  float on_cpu = 7;
};

KernelCase CaseOf(const MadeUp& made_up) {
  KernelCase one;
  one.op = "made_up";
  one.dtype = kernels::DType::kFloat32;
  one.sizes = {{"floats", kFloats}};
  one.bytes = kFloats * sizeof(float);
  one.units = 1;
  const auto results = one.AddResults(kernels::DType::kFloat32, {kFloats});
  one.launch = [=](const KernelStream& to, KernelAddresses at) {
    const std::uint64_t floats = to.on_cpu() ? kFloats : made_up.written;
    return to.Put(kFill, FillArguments{.at = cuda::AddressOf(results.At(at).data),
                                       .floats = floats,
                                       .value = to.on_cpu() ? made_up.on_cpu : made_up.on_device});
  };
  return one;
}

class KernelRunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    Config config;
    config.devices = DeviceChoice::Simulated("1:302");
    const auto api = cuda::OpenDevices(config);
    ASSERT_TRUE(api);
    auto runner = KernelRunner::Create(*api, {.ordinal = 0, .seconds = 0, .tiny = true});
    ASSERT_TRUE(runner) << runner.error().ToString();
    runner_ = *std::move(runner);
  }
  std::string FailureOf(const KernelCase& one) {
    const auto times = runner_->Measure(one);
    return times ? std::string() : times.error().message();
  }

  std::unique_ptr<KernelRunner> runner_;
};

TEST_F(KernelRunnerTest, MeasuresAnOpThatIsRight) {
  const auto times = runner_->Measure(CaseOf({}));
  ASSERT_TRUE(times) << times.error().ToString();
  EXPECT_EQ(times->checked, static_cast<std::size_t>(kFloats));
  EXPECT_GE(times->samples, 3U);
  EXPECT_EQ(times->launches, 3U);
  EXPECT_GT(times->least, 0);
  EXPECT_LE(times->least, times->p10);
  EXPECT_LE(times->p10, times->median);
  EXPECT_LE(times->median, times->p90);
  EXPECT_LE(times->p90, times->most);
}

TEST_F(KernelRunnerTest, FindsResultsThatAreNotWritten) {
  for (const std::uint64_t written : {std::uint64_t{0}, std::uint64_t{kFloats - 4}}) {
    EXPECT_THAT(FailureOf(CaseOf({.written = written})),
                HasSubstr("left parts of its result unwritten (buffer 0, 256 bytes)"));
  }
}

TEST_F(KernelRunnerTest, FindsResultsThatAreWrong) {
  EXPECT_THAT(FailureOf(CaseOf({.on_device = 8})),
              HasSubstr("made_up fp32 floats=64 is wrong: an element is 8; the CPU's result is 7"));
}

TEST_F(KernelRunnerTest, AnOpThatFailsToLaunchIsItsOwnError) {
  KernelCase one = CaseOf({});
  one.launch = [](const KernelStream&, KernelAddresses) -> Status {
    return Error(Code::kUnsupported, "not on this device");
  };
  const auto times = runner_->Measure(one);
  ASSERT_FALSE(times);
  EXPECT_EQ(times.error().code(), Code::kUnsupported);
  EXPECT_EQ(FailureOf(CaseOf({})), "") << "and the next case is measured";
}

TEST_F(KernelRunnerTest, AnOpThatFailsInItsCaptureGivesTheStreamBack) {
  KernelCase one = CaseOf({});
  // Shared by copies of the function.
  const auto launches = std::make_shared<int>(0);
  one.launch = [launches, right = one.launch](const KernelStream& to,
                                              KernelAddresses at) -> Status {
    // Once alone and once on the CPU; then captured.
    if (++*launches > 3) return Error(Code::kUnavailable, "enough");
    return right(to, at);
  };
  EXPECT_EQ(FailureOf(one), "enough");
  EXPECT_EQ(FailureOf(CaseOf({})), "");
}

TEST_F(KernelRunnerTest, ACeilingIsMeasuredOncePerSize) {
  const auto first = runner_->CeilingFor(8 * kKiB);
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_GT(first->gbps, 0);
  EXPECT_THAT((std::set<std::string>{"kernel, early", "kernel", "engine"}),
              testing::Contains(first->by));
  const auto again = runner_->CeilingFor(8 * kKiB + 1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->gbps, first->gbps) << "the same copies";
  EXPECT_TRUE(runner_->CeilingFor(1)) << "of less than a piece";
}

// ---- sets ---------------------------------------------------------------------------------------

KernelCase CaseOfBytes(std::uint64_t bytes, double flops = 0) {
  KernelCase one;
  one.bytes = bytes;
  one.flops = flops;
  one.AddNumbers(kernels::DType::kBfloat16, {static_cast<std::int64_t>(bytes / 2)});
  return one;
}

TEST(KernelSets, AreMoreWhereAnOpIsShortAndNeverOneAlone) {
  EXPECT_EQ(SetsOf(CaseOfBytes(kMiB), true), 3U);
  EXPECT_EQ(SetsOf(CaseOfBytes(kKiB), false), 256U);
  EXPECT_GT(SetsOf(CaseOfBytes(16 * kMiB), false), SetsOf(CaseOfBytes(512 * kMiB), false));
  EXPECT_EQ(SetsOf(CaseOfBytes(100 * kGiB), false), 2U) << "whatever there is room for";
  EXPECT_EQ(SetsOf(CaseOfBytes(kKiB, 1e15), false), 2U) << "by its flops";
}

TEST(KernelSets, BuffersThatAreSharedTakeNoRoomInEach) {
  KernelCase shared = CaseOfBytes(16);
  shared.AddSharedNumbers(kernels::DType::kBfloat16, {std::int64_t{4} << 30});
  EXPECT_EQ(SetsOf(shared, false), 256U);
  KernelCase each = CaseOfBytes(16);
  each.AddNumbers(kernels::DType::kBfloat16, {std::int64_t{2} << 30});
  EXPECT_EQ(SetsOf(each, false), 2U);
}

// ---- cases --------------------------------------------------------------------------------------

TEST(KernelCaseNames, HaveTypeSizesAndVariant) {
  KernelCase one;
  one.op = "rope";
  EXPECT_EQ(ShapeOf(one), "");
  one.sizes = {{"tokens", 16}};
  EXPECT_EQ(NameOf(one), "rope bf16 tokens=16");
  one.sizes.push_back({"heads", 8});
  one.dtype = kernels::DType::kFloat32;
  one.variant = "paged";
  EXPECT_EQ(ShapeOf(one), "tokens=16 heads=8");
  EXPECT_EQ(NameOf(one), "rope fp32 tokens=16 heads=8, paged");
}

TEST(KernelCaseBuffers, AreNumberedInTheOrderInWhichTheyAreAdded) {
  KernelCase one;
  EXPECT_EQ(one.AddNumbers(kernels::DType::kBfloat16, {10}).buffer, 0U);
  EXPECT_EQ(one.AddSharedNumbers(kernels::DType::kFloat32, {10}).buffer, 1U);
  EXPECT_EQ(one.AddLogits({5, 2}).buffer, 2U);
  EXPECT_EQ(one.AddResults(kernels::DType::kInt64, {10}).buffer, 3U);
  EXPECT_EQ(one.AddScratch(kernels::DType::kFloat32, {25}).buffer, 4U);
  EXPECT_EQ(one.AddTable(kernels::DType::kInt32, {3}, std::vector<std::int32_t>{1, 2, 3}).buffer,
            5U);
  const std::uint64_t bytes[] = {20, 40, 20, 80, 100, 12};
  const bool shared[] = {false, true, false, false, true, false};
  for (std::size_t i = 0; i < one.buffers.size(); ++i) {
    EXPECT_EQ(one.buffers[i].bytes, bytes[i]) << i;
    EXPECT_EQ(one.buffers[i].shared, shared[i]) << i;
  }
  EXPECT_EQ(one.buffers[5].table.size(), 12U);
}

TEST(KernelCaseBuffers, TheUnitsOfATensorAreItsRows) {
  std::vector<float> floats(6 * 4);
  const auto tensor = kernels::Tensor::Contiguous(floats.data(), kernels::DType::kFloat32, {6, 4});
  const KernelStream device;
  EXPECT_EQ(device.Of(tensor).data, floats.data());
  EXPECT_EQ(device.Of(tensor).shape[0], 6);
  const KernelStream some{.units = {2, 3}};
  const auto rows = some.RowsOf(tensor);
  EXPECT_EQ(rows.data, floats.data() + 8);
  EXPECT_EQ(rows.shape[0], 3);
  EXPECT_EQ(rows.shape[1], 4);
}

TEST(KernelCaseLists, DescribeEveryCaseInBothSizes) {
  cuda::DeviceFacts facts;
  facts.compute_major = 9;
  facts.multiprocessors = 132;
  for (const bool tiny : {true, false}) {
    std::set<std::string> names;
    bool last = false;
    for (const KernelCase& one : KernelCases({.facts = facts, .tiny = tiny})) {
      SCOPED_TRACE(NameOf(one));
      EXPECT_TRUE(names.insert(NameOf(one)).second) << "twice";
      EXPECT_GT(one.bytes, 0U);
      EXPECT_TRUE(one.launch);
      EXPECT_FALSE(last && !one.comes_last);
      last = one.comes_last;
      bool has_results = false;
      for (const KernelBuffer& buffer : one.buffers) {
        has_results |= buffer.holds == KernelBuffer::Holds::kResults;
        EXPECT_EQ(buffer.table.empty(), buffer.holds != KernelBuffer::Holds::kTable);
        EXPECT_TRUE(buffer.table.empty() || buffer.table.size() == buffer.bytes);
      }
      EXPECT_TRUE(has_results);
    }
  }
}

}  // namespace
}  // namespace ferry::tools
