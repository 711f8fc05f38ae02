// Tests that all GPU executors copy exactly the same bytes.
#include "ferry/copy/device_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ferry/copy/testing/copy_bed.h"
#include "ferry/copy/testing/copy_blocks.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/core/units.h"
#include "ferry/cuda/testing/device_target.h"

// Every executor copies the same bytes as the host, for any blocks, and touches no others: between
// all kinds of memory, on simulated devices and on GPUs.
namespace ferry {
namespace {

using cuda::CopyKind;
using cuda::DeviceApi;

struct ExecutorCase {
  const char* name;
  std::unique_ptr<DeviceExecutor> (*make)(DeviceApi* api);
};

std::unique_ptr<DeviceExecutor> MakeDma(DeviceApi* api) { return MakeDmaExecutor(api); }
std::unique_ptr<DeviceExecutor> MakeHost(DeviceApi* api) { return Must(MakeHostExecutor(api, 0)); }
std::unique_ptr<DeviceExecutor> MakeKernel(DeviceApi* api) {
  return Must(MakeKernelExecutor(api, 0));
}
// Small limits, so that lists wrap around its ring of blocks and need several launches.
std::unique_ptr<DeviceExecutor> MakeSmallKernel(DeviceApi* api) {
  KernelExecutorOptions options;
  options.host_groups = options.device_groups = 2;
  options.most_blocks = 64;
  return Must(MakeKernelExecutor(api, 0, options));
}

using Case = std::tuple<cuda::DeviceCase, ExecutorCase, CopyKind>;

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const auto& [device, executor, kind] = info.param;
  return std::string(device.name) + "_" + executor.name + "_" + cuda::CopyKindName(kind);
}

class DeviceExecutorTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    target_ = std::get<0>(GetParam()).make();
    if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
    bed_.emplace(&target_->api());
    executor_ = std::get<1>(GetParam()).make(&target_->api());
  }

  CopyKind kind() const { return std::get<2>(GetParam()); }

  // Copies the lists, and compares the whole destination with the host's result.
  void ExpectRight(std::size_t dst_bytes, std::size_t src_bytes,
                   const std::vector<BlockList>& lists) {
    auto src = bed_->MakeSource(src_bytes, kind());
    auto dst = bed_->MakeDestination(dst_bytes, kind());
    std::vector<std::byte> expected = bed_->Look(&dst);
    const std::vector<std::byte> source = bed_->Look(&src);
    std::vector<PlacedList> placed;
    for (const BlockList& list : lists) {
      CopyBlocks(list, expected, source);
      placed.push_back({list.blocks(), dst.place, src.place});
    }
    Must(executor_->Enqueue(bed_->stream(), kind(), placed));
    bed_->Finish();
    const std::vector<std::byte> got = bed_->Look(&dst);
    if (!SameBytes(got, expected)) {
      const auto wrong = std::mismatch(got.begin(), got.end(), expected.begin()).first;
      ADD_FAILURE() << "byte " << (wrong - got.begin()) << " of " << got.size() << " is wrong";
    }
    EXPECT_TRUE(SameBytes(bed_->Look(&src), source));
  }

  // The host's side is contiguous from `begin` on; the GPU's has gaps. Returns the bytes of both
  // sides.
  struct Sides {
    std::uint64_t host;
    std::uint64_t device;
  };
  Sides AddPacked(Sides begin, std::uint64_t bytes, std::uint64_t longest, BlockList* list) const {
    std::mt19937_64 random(begin.host + bytes);
    Sides at = begin;
    while (at.host < begin.host + bytes) {
      const std::uint64_t len = 1 + random() % longest;
      at.device += random() % 40;
      const bool to_host = kind() == CopyKind::kDeviceToHost;
      list->Add({to_host ? at.host : at.device, to_host ? at.device : at.host, len});
      at = {at.host + len, at.device + len};
    }
    return at;
  }
  void ExpectPackedRight(const Sides& end, const std::vector<BlockList>& lists) {
    const bool to_host = kind() == CopyKind::kDeviceToHost;
    constexpr std::uint64_t kBeyond = 100;
    ExpectRight((to_host ? end.host : end.device) + kBeyond,
                (to_host ? end.device : end.host) + kBeyond, lists);
  }

  std::unique_ptr<cuda::DeviceTarget> target_;
  std::optional<CopyBed> bed_;
  std::unique_ptr<DeviceExecutor> executor_;
};

// Each block is surrounded by bytes that must not change.
TEST_P(DeviceExecutorTest, EveryAlignmentOfBothSidesIsCopiedToTheByte) {
  std::vector<std::uint64_t> lengths{1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65};
  for (const std::uint64_t more : {127U, 200U, 255U, 256U, 257U, 511U, 512U, 513U, 599U, 600U}) {
    lengths.push_back(more);
  }
  constexpr std::uint64_t kRoom = 704;
  BlockList list;
  std::uint64_t at = 32;
  for (const std::uint64_t len : lengths) {
    for (std::uint64_t dst = 0; dst < 16; ++dst) {
      for (std::uint64_t src = 0; src < 16; ++src) {
        list.Add({at + dst, at + src, len});
        at += kRoom;
      }
    }
  }
  ExpectRight(at, at, {list});
}

TEST_P(DeviceExecutorTest, EveryLengthUpTo600IsCopiedToTheByte) {
  BlockList list;
  std::uint64_t at = 0;
  for (std::uint64_t len = 1; len <= 600; ++len) {
    list.Add({at + len % 16, at + len / 16 % 16, len});
    at += 640;
  }
  ExpectRight(at, at, {list});
}

// The last byte of both memories is the last byte of a block.
TEST_P(DeviceExecutorTest, NothingBeyondTheEndsOfMemoryIsTouched) {
  for (const std::uint64_t bytes : {1ULL, 77ULL, 4099ULL, 100'003ULL}) {
    for (const std::uint64_t skip : {0ULL, 1ULL, 7ULL}) {
      if (skip >= bytes) continue;
      BlockList list;
      list.Add({skip, 0, bytes - skip});
      ExpectRight(bytes, bytes - skip, {list});
    }
  }
}

TEST_P(DeviceExecutorTest, ShuffledPagesGoToTheirPlaces) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kPages = 100;  // every touched byte costs time
#else
  constexpr std::size_t kPages = 500;
#endif
  for (const std::uint64_t page_bytes : {std::uint64_t{4096}, std::uint64_t{24'576}}) {
    std::vector<std::uint64_t> dst(2 * kPages);
    std::iota(dst.begin(), dst.end(), 0);
    std::vector<std::uint64_t> src = dst;
    std::mt19937_64 random(5);
    std::shuffle(dst.begin(), dst.end(), random);
    std::shuffle(src.begin(), src.end(), random);
    dst.resize(kPages);
    src.resize(kPages);
    const auto list = Must(BlockList::FromPages(dst, src, page_bytes));
    ExpectRight(2 * kPages * page_bytes, 2 * kPages * page_bytes, {list});
  }
}

TEST_P(DeviceExecutorTest, OneLargeBlockIsCopiedWhole) {
  constexpr std::uint64_t kLarge = (std::uint64_t{9} << 20) + 5;
  BlockList list;
  list.Add({3, 8, kLarge});
  ExpectRight(kLarge + 20, kLarge + 20, {list});
}

TEST_P(DeviceExecutorTest, ManyListsAreCarriedOutByOneCall) {
  std::mt19937_64 random(9);
  std::vector<BlockList> lists(20);
  std::uint64_t at = 0;
  for (BlockList& list : lists) {
    for (std::size_t i = random() % 40; i > 0; --i) {
      const std::uint64_t len = 1 + random() % 3000;
      list.Add({at, at + 5, len});
      at += len + random() % 10;
    }
    if (list.empty()) {
      list.Add({at, at, 1});
      ++at;
    }
  }
  ExpectRight(at, at + 5, lists);
}

TEST_P(DeviceExecutorTest, CallsOnOneStreamAreCarriedOutInTheirOrder) {
  constexpr std::uint64_t kBytes = 70'000;
  auto src = bed_->MakeSource(kBytes + 100, kind());
  auto dst = bed_->MakeDestination(kBytes, kind());
  const std::vector<std::byte> source = bed_->Look(&src);
  BlockList list;
  for (std::uint64_t at = 0; at < kBytes; at += 700) list.Add({at, at, 700});
  for (std::uint64_t round = 0; round <= 50; ++round) {
    const PlacedList placed{list.blocks(), dst.place, src.place + round};
    Must(executor_->Enqueue(bed_->stream(), kind(), {&placed, 1}));
  }
  bed_->Finish();
  const std::vector<std::byte> got = bed_->Look(&dst);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), source.begin() + 50));
}

// ---- a host's side without gaps -----------------------------------------------------------------

TEST_P(DeviceExecutorTest, SmallBlocksThatLieTogetherOnTheHostAreCopiedToTheByte) {
  BlockList list;
  const Sides end = AddPacked({3, 11}, 3 * kMiB, 3000, &list);
  ExpectPackedRight(end, {list});
}

TEST_P(DeviceExecutorTest, RunsOfAllLengthsAndLargeBlocksBetweenThemAreCopiedToTheByte) {
  BlockList list;
  Sides at{1, 2};
  for (const std::uint64_t bytes : {1ULL, 100ULL, 8191ULL, 8192ULL, 70'000ULL, 600'000ULL, 5ULL}) {
    at = AddPacked(at, bytes, 1 + bytes / 10, &list);
    at.host += 13;  // the run ends
    at = AddPacked({at.host, at.device + 1}, 1, 40'000, &list);
    at = AddPacked({at.host, at.device + 1}, 1, 600'000, &list);
  }
  ExpectPackedRight(at, {list});
}

TEST_P(DeviceExecutorTest, BlocksThatContinueOneAnotherOnBothSidesAreCopiedToTheByte) {
  BlockList list;
  for (std::uint64_t at = 0; at < kMiB; at += 1000) {
    const std::uint64_t len = std::min<std::uint64_t>(1000, kMiB - at);
    list.Add({at + 7, at + at / 300'000 * 9, len});
  }
  ExpectRight(kMiB + 20, kMiB + 40, {list});
}

// Blocks that are contiguous in memory but go to different destinations.
TEST_P(DeviceExecutorTest, ListsThatAreHalvesOfOneGoToTheirOwnPlaces) {
  constexpr std::uint64_t kHalf = 300 * kKiB;
  constexpr std::uint64_t kLen = 500;
  auto src = bed_->MakeSource(2 * kHalf, kind());
  auto dst = bed_->MakeDestination(4 * kHalf, kind());
  std::vector<std::byte> expected = bed_->Look(&dst);
  BlockList list;
  for (std::uint64_t at = 0; at + kLen <= kHalf; at += kLen) list.Add({at, at, kLen});
  const std::size_t half = list.size() / 2;
  const PlacedList placed[]{{list.blocks().first(half), dst.place + 5, src.place},
                            {list.blocks().subspan(half), dst.place + 2 * kHalf, src.place + 1}};
  const std::vector<std::byte> source = bed_->Look(&src);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto from =
        source.begin() + static_cast<std::ptrdiff_t>(list[i].src + (i < half ? 0 : 1));
    std::copy_n(
        from, kLen,
        expected.begin() + static_cast<std::ptrdiff_t>(list[i].dst + (i < half ? 5 : 2 * kHalf)));
  }
  Must(executor_->Enqueue(bed_->stream(), kind(), placed));
  bed_->Finish();
  EXPECT_TRUE(bed_->Look(&dst) == expected);
}

// The next call reads what this one writes, and the other way round.
TEST_P(DeviceExecutorTest, ACallThatUndoesTheOneBeforeSeesAllOfIt) {
  constexpr std::uint64_t kBytes = 2 * kMiB;
  auto src = bed_->MakeSource(kBytes, kind());
  auto dst = bed_->MakeDestination(kBytes, kind());
  const std::vector<std::byte> source = bed_->Look(&src);
  std::vector<std::uint64_t> pages(kBytes / 4096);
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<std::uint64_t> shuffled = pages;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(3));
  const bool to_host = kind() == CopyKind::kDeviceToHost;
  const auto there = Must(to_host ? BlockList::FromPages(pages, shuffled, 4096)
                                  : BlockList::FromPages(shuffled, pages, 4096));
  const auto back = Must(to_host ? BlockList::FromPages(shuffled, pages, 4096)
                                 : BlockList::FromPages(pages, shuffled, 4096));
  const CopyKind other = to_host                             ? CopyKind::kHostToDevice
                         : kind() == CopyKind::kHostToDevice ? CopyKind::kDeviceToHost
                                                             : kind();
  for (int round = 0; round < 10; ++round) {
    const PlacedList first{there.blocks(), dst.place, src.place};
    Must(executor_->Enqueue(bed_->stream(), kind(), {&first, 1}));
    const PlacedList second{back.blocks(), src.place, dst.place};
    Must(executor_->Enqueue(bed_->stream(), other, {&second, 1}));
  }
  bed_->Finish();
  EXPECT_TRUE(bed_->Look(&src) == source);
}

const auto kExecutors =
    ::testing::Values(ExecutorCase{"dma", MakeDma}, ExecutorCase{"kernel", MakeKernel},
                      ExecutorCase{"host", MakeHost}, ExecutorCase{"small", MakeSmallKernel});
const auto kDirections =
    ::testing::Values(CopyKind::kHostToDevice, CopyKind::kDeviceToHost, CopyKind::kDeviceToDevice);

INSTANTIATE_TEST_SUITE_P(Simulated, DeviceExecutorTest,
                         ::testing::Combine(::testing::Values(cuda::kSimulatedCases[1]), kExecutors,
                                            kDirections),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceExecutorTest,
                         ::testing::Combine(::testing::Values(cuda::kRealCase), kExecutors,
                                            kDirections),
                         CaseName);

TEST(KernelExecutor, WhatAFailedCallHasWrittenIsNotCopiedByTheNext) {
  const auto target = cuda::kSimulatedCases[0].make();
  CopyBed bed(&target->api());
  auto src = bed.MakeSource(2000, CopyKind::kDeviceToDevice);
  auto dst = bed.MakeDestination(2000, CopyKind::kDeviceToDevice);
  std::vector<std::byte> expected = bed.Look(&dst);
  const std::vector<std::byte> source = bed.Look(&src);
  const auto executor = MakeSmallKernel(&target->api());
  const Block near{0, 0, 100};
  const Block far{std::uint64_t{1} << 50, 0, 100};
  const Block next{1000, 1001, 100};
  for (int round = 0; round < 10; ++round) {  // not to the ring's end, which launches what is there
    const PlacedList bad[]{{{&near, 1}, dst.place, src.place}, {{&far, 1}, dst.place, src.place}};
    const Status failed = executor->Enqueue(bed.stream(), CopyKind::kDeviceToDevice, bad);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), Code::kInvalidArgument);
    const PlacedList good{{&next, 1}, dst.place, src.place};
    Must(executor->Enqueue(bed.stream(), CopyKind::kDeviceToDevice, {&good, 1}));
  }
  bed.Finish();
  std::copy_n(source.begin() + 1001, 100, expected.begin() + 1000);
  EXPECT_TRUE(bed.Look(&dst) == expected);
}

}  // namespace
}  // namespace ferry
