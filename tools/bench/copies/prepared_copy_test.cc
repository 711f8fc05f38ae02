// Tests of prepared copies: shifts, order and limits.
#include "tools/bench/copies/prepared_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "ferry/copy/testing/copy_bed.h"
#include "ferry/copy/testing/copy_blocks.h"
#include "ferry/core/units.h"
#include "ferry/cuda/testing/device_target.h"

namespace ferry::tools {
namespace {

using cuda::CopyKind;
using PreparedCase = std::tuple<cuda::DeviceCase, CopyKind>;

std::string PreparedCaseName(const ::testing::TestParamInfo<PreparedCase>& info) {
  const auto& [device, kind] = info.param;
  return std::string(device.name) + "_" + cuda::CopyKindName(kind);
}

class PreparedCopyTest : public ::testing::TestWithParam<PreparedCase> {
 protected:
  static constexpr std::uint64_t kLayer = 40 * 4096;  // bytes, half of which are copied

  void SetUp() override {
    target_ = std::get<0>(GetParam()).make();
    if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
    bed_.emplace(&target_->api());
  }

  cuda::DeviceApi& api() { return target_->api(); }
  CopyKind kind() const { return std::get<1>(GetParam()); }

  // Every second page of a layer, shuffled.
  static BlockList Pages() {
    std::vector<std::uint64_t> dst(20);
    std::iota(dst.begin(), dst.end(), 0);
    for (std::uint64_t& page : dst) page *= 2;
    std::vector<std::uint64_t> src = dst;
    std::shuffle(src.begin(), src.end(), std::mt19937_64(7));
    return Must(BlockList::FromPages(dst, src, 4096));
  }
  Result<std::unique_ptr<PreparedCopy>> Prepare(const BlockList& list, const Place& dst,
                                                const Place& src,
                                                const PrepareOptions& options = {}) {
    const PlacedList placed{list.blocks(), dst, src};
    return PrepareCopy(&api(), 0, kind(), {&placed, 1}, options);
  }

  std::unique_ptr<cuda::DeviceTarget> target_;
  std::optional<CopyBed> bed_;
};

// One thread block gives each warp many rounds. Each block is surrounded by bytes that must not
// change.
TEST_P(PreparedCopyTest, EveryAlignmentAndManyLengthsAreCopiedToTheByte) {
  BlockList list;
  std::uint64_t at = 32;
  for (const std::uint64_t len :
       {1U, 2U, 15U, 16U, 17U, 31U, 33U, 48U, 65U, 255U, 257U, 513U, 600U}) {
    for (std::uint64_t offset = 0; offset < 256; ++offset) {
      list.Add({at + offset / 16, at + offset % 16, len});
      at += 640;
    }
  }
  constexpr std::uint64_t kLarge = (std::uint64_t{9} << 20) + 5;
  list.Add({at + 3, at + 8, kLarge});
  at += kLarge + 20;
  for (const PrepareOptions& options :
       {PrepareOptions{}, PrepareOptions{.groups = 1, .early = false}}) {
    auto src = bed_->MakeSource(at, kind());
    auto dst = bed_->MakeDestination(at, kind());
    std::vector<std::byte> expected = bed_->Look(&dst);
    CopyBlocks(list, expected, bed_->Look(&src));
    const auto copy = Must(Prepare(list, dst.place, src.place, options));
    Must(copy->Enqueue(bed_->stream()));
    bed_->Finish();
    EXPECT_TRUE(bed_->Look(&dst) == expected) << options.groups;
  }
}

TEST_P(PreparedCopyTest, ShiftsTakeOneLayoutFromLayerToLayer) {
  constexpr std::uint64_t kLayers = 6;
  for (const bool early : {true, false}) {
    auto src = bed_->MakeSource(kLayers * kLayer, kind());
    auto dst = bed_->MakeDestination(kLayers * kLayer + 1, kind());
    std::vector<std::byte> expected = bed_->Look(&dst);
    const std::vector<std::byte> source = bed_->Look(&src);
    const BlockList list = Pages();
    // A layer in the middle, so that shifts go both ways, and one byte too many on one side.
    const auto copy = Must(Prepare(list, dst.place + 2 * kLayer, src.place + 3 * kLayer,
                                   {.groups = 0, .early = early}));
    EXPECT_EQ(copy->bytes(), 20U * 4096);
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      const auto at = static_cast<std::int64_t>(layer * kLayer);
      const auto step = static_cast<std::int64_t>(kLayer);
      Must(copy->Enqueue(bed_->stream(), at - 2 * step + 1, at - 3 * step));
      for (const Block& block : list.blocks()) {
        std::copy_n(source.begin() + at + static_cast<std::ptrdiff_t>(block.src), block.len,
                    expected.begin() + at + 1 + static_cast<std::ptrdiff_t>(block.dst));
      }
    }
    bed_->Finish();
    EXPECT_TRUE(bed_->Look(&dst) == expected) << early;
  }
}

// Each kernel reads what the previous one has written; most may start early.
TEST_P(PreparedCopyTest, ManyInARowKeepTheOrderOfTheirStream) {
  if (kind() != CopyKind::kDeviceToDevice) GTEST_SKIP() << "needs one memory on both sides";
  constexpr std::uint64_t kBytes = 2 * kMiB;
  constexpr int kSteps = 100;
  auto a = bed_->MakeSource(kBytes, kind());
  auto b = bed_->MakeDestination(kBytes, kind());
  const std::vector<std::byte> source = bed_->Look(&a);
  std::vector<std::uint64_t> pages(kBytes / 512);
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<std::uint64_t> turned = pages;
  std::rotate(turned.begin(), turned.begin() + 1, turned.end());
  const auto turn = Must(BlockList::FromPages(turned, pages, 512));  // each page to the next one
  const auto there = Must(Prepare(turn, b.place, a.place));
  const auto back = Must(Prepare(turn, a.place, b.place));
  for (int step = 0; step < kSteps; ++step) {
    Must((step % 2 == 0 ? there : back)->Enqueue(bed_->stream()));
  }
  bed_->Finish();
  std::vector<std::byte> expected = source;
  std::rotate(expected.begin(), expected.end() - kSteps * 512, expected.end());
  EXPECT_TRUE(bed_->Look(&a) == expected);
}

// An early kernel must not start before anything other than a kernel.
TEST_P(PreparedCopyTest, CopiesAndEventsAroundItKeepTheirOrder) {
  if (kind() != CopyKind::kDeviceToDevice) GTEST_SKIP() << "needs GPU memory on both sides";
  constexpr std::uint64_t kBytes = 256 * kKiB;
  constexpr std::uint64_t kRounds = 30;
  auto given = bed_->Make(kRounds * kBytes, false, 5);
  auto got = bed_->Make(kRounds * kBytes, false, 6);
  auto a = bed_->MakeSource(kBytes, kind());
  auto b = bed_->MakeDestination(kBytes, kind());
  auto c = bed_->MakeDestination(kBytes, kind());
  BlockList whole;
  whole.Add({0, 0, kBytes});
  const auto there = Must(Prepare(whole, b.place, a.place));
  const auto further = Must(Prepare(whole, c.place, b.place));
  const auto other = Must(api().CreateStream(0, cuda::StreamPriority::kNormal));
  const auto filled = Must(api().CreateEvent(0, cuda::EventTiming::kOff));
  const auto copied = Must(api().CreateEvent(0, cuda::EventTiming::kOff));
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    std::byte* const from = given.host.bytes().data() + round * kBytes;
    std::byte* const to = got.host.bytes().data() + round * kBytes;
    const cuda::CopyItem in{a.device.data(), from, kBytes};
    const bool same_stream = round % 2 == 0;
    Must(api().WaitFor(other, copied));
    Must(api().Copy(same_stream ? bed_->stream() : other, CopyKind::kHostToDevice, {&in, 1}));
    Must(api().Record(filled, other));
    Must(api().WaitFor(bed_->stream(), filled));
    Must(there->Enqueue(bed_->stream()));
    Must(further->Enqueue(bed_->stream()));
    const cuda::CopyItem out{to, c.device.data(), kBytes};
    Must(api().Copy(bed_->stream(), CopyKind::kDeviceToHost, {&out, 1}));
    Must(api().Record(copied, bed_->stream()));
  }
  bed_->Finish();
  EXPECT_TRUE(bed_->Look(&got) == bed_->Look(&given));
}

TEST_P(PreparedCopyTest, OneCallIsOneKernelAndNothingElse) {
  auto* const simulated = target_->simulated();
  if (simulated == nullptr) GTEST_SKIP() << "GPUs do not count";
  auto src = bed_->MakeSource(kLayer, kind());
  auto dst = bed_->MakeDestination(kLayer, kind());
  const auto copy = Must(Prepare(Pages(), dst.place, src.place));
  auto expected = simulated->counters();
  Must(copy->Enqueue(bed_->stream()));
  Must(copy->Enqueue(bed_->stream()));
  expected.launches += 2;
  EXPECT_EQ(simulated->counters(), expected);
  bed_->Finish();
}

TEST_P(PreparedCopyTest, ListsThatAreWrongAreRefused) {
  auto src = bed_->MakeSource(kLayer, kind());
  auto dst = bed_->MakeDestination(kLayer, kind());
  BlockList twice;
  twice.Add({0, 0, 100});
  twice.Add({99, 200, 100});
  BlockList far;
  far.Add({kLayer, std::uint64_t{1} << 60, 1});
  for (const BlockList& list : {BlockList(), twice, far}) {
    const auto copy = Prepare(list, dst.place, src.place);
    ASSERT_FALSE(copy);
    EXPECT_EQ(copy.error().code(), Code::kInvalidArgument) << copy.error().ToString();
  }
}

TEST_P(PreparedCopyTest, ShiftsOutOfTheAddressSpaceAreRefused) {
  auto src = bed_->MakeSource(kLayer, kind());
  auto dst = bed_->MakeDestination(kLayer, kind());
  const auto copy = Must(Prepare(Pages(), dst.place, src.place));
  constexpr std::int64_t kFar = std::int64_t{1} << 48;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t shift : {kFar, -kFar, kMax, -kMax - 1}) {
    for (const bool of_dst : {true, false}) {
      const Status status = copy->Enqueue(bed_->stream(), of_dst ? shift : 0, of_dst ? 0 : shift);
      ASSERT_FALSE(status) << shift;
      EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
    }
  }
}

const auto kPreparedWays =
    ::testing::Values(CopyKind::kHostToDevice, CopyKind::kDeviceToHost, CopyKind::kDeviceToDevice);

INSTANTIATE_TEST_SUITE_P(Simulated, PreparedCopyTest,
                         ::testing::Combine(::testing::Values(cuda::kSimulatedCases[1]),
                                            kPreparedWays),
                         PreparedCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, PreparedCopyTest,
                         ::testing::Combine(::testing::Values(cuda::kRealCase), kPreparedWays),
                         PreparedCaseName);

}  // namespace
}  // namespace ferry::tools
