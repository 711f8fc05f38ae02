// Tests that the kernel that sums copies the same bytes and has the CPU's checksums.
#include "ferry/copy/sum_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ferry/copy/testing/copy_bed.h"
#include "ferry/core/crc32c.h"
#include "ferry/cuda/testing/device_target.h"

namespace ferry {
namespace {

using cuda::CopyKind;

class SumKernelTest : public ::testing::TestWithParam<cuda::DeviceCase> {
 protected:
  void SetUp() override {
    target_ = GetParam().make();
    if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
    bed_.emplace(&target_->api());
    MakeExecutor({});
    sheet_memory_ = Must(target_->api().AllocatePinned(0, kSumSheetBytes));
    const Place place = Must(Place::OnHost(target_->api(), 0, sheet_memory_.data()));
    sheet_ = {static_cast<std::uint32_t*>(sheet_memory_.data()), place.mapped};
  }
  void MakeExecutor(const KernelExecutorOptions& options) {
    executor_ = Must(MakeSummingExecutor(&target_->api(), 0, options));
  }

  // Blocks of these lengths: in order and without gaps on the side of `order`, scattered with gaps
  // on the other.
  static std::vector<Block> Scattered(const std::vector<std::uint64_t>& lengths, SumOrder order,
                                      std::uint64_t* span, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::size_t> turns(lengths.size());
    std::iota(turns.begin(), turns.end(), 0);
    std::shuffle(turns.begin(), turns.end(), random);
    std::vector<std::uint64_t> places(lengths.size());
    for (const std::size_t i : turns) {
      places[i] = *span + random() % 40;
      *span = places[i] + lengths[i];
    }
    std::vector<Block> blocks;
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      blocks.push_back(order == SumOrder::kDestination ? Block{at, places[i], lengths[i]}
                                                       : Block{places[i], at, lengths[i]});
      at += lengths[i];
    }
    return blocks;
  }

  // Copies the lists between GPU memory and slots of host memory that begin at `first_slot` and lie
  // `stride` bytes apart, and compares bytes and sums.
  void ExpectRight(SumOrder order, const std::vector<std::vector<std::uint64_t>>& lists,
                   std::uint64_t first_slot = 0) {
    const bool gathers = order == SumOrder::kDestination;
    std::uint64_t stride = 0;
    std::uint64_t span = 0;
    std::vector<std::vector<Block>> blocks;
    for (const auto& lengths : lists) {
      stride = std::max(stride, std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0}));
      blocks.push_back(Scattered(lengths, order, &span, static_cast<unsigned>(blocks.size())));
    }
    const std::uint64_t slots = first_slot + stride * lists.size() + 64;
    const CopyKind kind = gathers ? CopyKind::kDeviceToHost : CopyKind::kHostToDevice;
    auto src = bed_->MakeSource(gathers ? span + 64 : slots, kind);
    auto dst = bed_->MakeDestination(gathers ? slots : span + 64, kind);
    const std::vector<std::byte> source = bed_->Look(&src);
    std::vector<std::byte> expected = bed_->Look(&dst);
    std::vector<std::uint32_t> sums;
    std::vector<PlacedList> placed;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::uint64_t slot = first_slot + stride * i;
      const std::uint64_t to = gathers ? slot : 0;
      const std::uint64_t from = gathers ? 0 : slot;
      std::uint32_t sum = 0;
      for (const Block& block : blocks[i]) {
        const auto bytes = std::span(source).subspan(from + block.src, block.len);
        std::copy(bytes.begin(), bytes.end(),
                  expected.begin() + static_cast<std::ptrdiff_t>(to + block.dst));
        sum = Crc32c(bytes, sum);
      }
      sums.push_back(sum);
      placed.push_back({blocks[i], dst.place + to, src.place + from});
    }
    FillRandomly(sheet_memory_.bytes(), 9);  // as an earlier call leaves it
    Must(executor_->EnqueueSummed(bed_->stream(), order, placed, sheet_));
    bed_->Finish();
    EXPECT_TRUE(bed_->Look(&dst) == expected);
    for (std::size_t i = 0; i < lists.size(); ++i) {
      const auto bytes = std::accumulate(lists[i].begin(), lists[i].end(), std::uint64_t{0});
      EXPECT_EQ(ReadSum(sheet_, i, bytes), sums[i]) << "list " << i << " of " << bytes << " bytes";
    }
  }
  void ExpectRight(const std::vector<std::vector<std::uint64_t>>& lists,
                   std::uint64_t first_slot = 0) {
    ExpectRight(SumOrder::kDestination, lists, first_slot);
    ExpectRight(SumOrder::kSource, lists, first_slot);
  }
  static std::vector<std::uint64_t> Random(std::mt19937* random, std::uint64_t longest,
                                           std::size_t count) {
    std::vector<std::uint64_t> lengths(count);
    for (std::uint64_t& length : lengths) length = (*random)() % (longest + 1);
    return lengths;
  }

  std::unique_ptr<cuda::DeviceTarget> target_;
  std::optional<CopyBed> bed_;
  cuda::PinnedBuffer sheet_memory_;
  SumSheet sheet_;
  std::unique_ptr<SummingExecutor> executor_;
};

TEST_P(SumKernelTest, SumsOfWholeSlicesAreThoseOfTheCpu) {
  ExpectRight({{262'144}});
  ExpectRight(std::vector(kMaxSummed, std::vector<std::uint64_t>{65'536}));
  ExpectRight({std::vector<std::uint64_t>(32, 16'384), {4096}, {16}});
}

TEST_P(SumKernelTest, SumsOfEveryShortLengthAreThoseOfTheCpu) {
  for (std::uint64_t length = 0; length < 600; length += 16 - length % 3) {
    std::vector<std::vector<std::uint64_t>> lists;
    for (std::uint64_t i = 0; i < kMaxSummed; ++i) lists.push_back({length + i});
    ExpectRight(lists, length % 16);
  }
}

TEST_P(SumKernelTest, SumsOfOddBlocksAreThoseOfTheCpu) {
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    std::vector<std::vector<std::uint64_t>> lists;
    for (std::size_t i = 0; i < 1 + random() % kMaxSummed; ++i) {
      lists.push_back(Random(&random, round % 3 == 0 ? 70 : 9000, 1 + random() % 30));
    }
    ExpectRight(lists, random() % 4096);
  }
}

TEST_P(SumKernelTest, AListMayBeAsLongAsTheLimit) {
  ExpectRight(SumOrder::kSource, {{kMaxSummedBytes}});
  ExpectRight(SumOrder::kDestination, {{kMaxSummedBytes - 5}}, 3);
}

// Several launches for one call, which all add to the same sums.
TEST_P(SumKernelTest, SumsOfListsThatDoNotFitTheRingAreThoseOfTheCpu) {
  MakeExecutor({.most_blocks = 64});
  std::mt19937 random(8);
  ExpectRight({Random(&random, 300, 400), {262'144}, Random(&random, 5000, 100)});
}

TEST_P(SumKernelTest, OrdinaryCopiesGoThroughTheSameExecutor) {
  auto src = bed_->MakeSource(10'000, CopyKind::kDeviceToHost);
  auto dst = bed_->MakeDestination(10'000, CopyKind::kDeviceToHost);
  const Block block{0, 0, 10'000};
  const PlacedList list{{&block, 1}, dst.place, src.place};
  Must(executor_->Enqueue(bed_->stream(), CopyKind::kDeviceToHost, {&list, 1}));
  bed_->Finish();
  EXPECT_TRUE(bed_->Look(&dst) == bed_->Look(&src));
}

INSTANTIATE_TEST_SUITE_P(Simulated, SumKernelTest, ::testing::ValuesIn(cuda::kSimulatedCases),
                         cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, SumKernelTest, ::testing::Values(cuda::kRealCase),
                         cuda::DeviceCaseName);

}  // namespace
}  // namespace ferry
