// Tests checksums of payloads that GPUs sum on their way through staging slots.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/crc32c.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/transfer/lane/lane_engine.h"
#include "ferry/transfer/testing/device_mirror.h"
#include "ferry/transfer/testing/lane_bed.h"

// Two lanes, between which the test carries the frames: it sees the slots of both sides.
namespace ferry::transfer {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using wire::Type;

constexpr std::size_t kStagedSize = 50'000;
constexpr std::uint64_t kStagedSlice = 16 * 1024;

enum class Staged { kNo, kByKernel, kByCopyEngine };

// One side: a lane and its memory, which is a GPU's or the host's.
struct StagedEnd {
  StagedEnd(cuda::DeviceApi* api, Staged staged, unsigned seed)
      : on_device(api, 0, kStagedSize, seed), on_host(kStagedSize, seed) {
    if (staged != Staged::kNo) {
      stager = Must(Stager::Create(
          api, 0,
          {.slot_bytes = kStagedSlice, .slots = 8, .by_kernel = staged == Staged::kByKernel}));
    }
    bed.config.slice_bytes = kStagedSlice;
    bed.context.window_bytes = 1 << 20;
    region = Must(bed.regions.Add(span(), Rights::kReadWrite, nullptr, stager.get()));
    engine.emplace(bed.context, bed.loop.get(), 0);
    auto made = std::make_unique<ScriptedLane>();
    lane = made.get();
    engine->Adopt(std::move(made));
  }
  // The stager's thread may still be posting to the loop when its copy has been seen.
  ~StagedEnd() {
    engine->Close(Error(Code::kCancelled, "the test is over"));
    engine.reset();
    stager.reset();
  }

  std::span<std::byte> span() { return stager ? on_device.span() : on_host.span(); }
  std::vector<std::byte> Copy() { return stager ? on_device.Copy() : on_host.Copy(); }
  void DriveUntilItSends() {
    ASSERT_TRUE(bed.loop->DriveUntil(
        [this] {
          engine->FlushDueAck();
          return !lane->queue.empty();
        },
        Soon(), microseconds(0)));
  }

  MirroredMemory on_device;
  GuardedMemory on_host;
  std::unique_ptr<Stager> stager;
  LaneBed bed;
  std::shared_ptr<RegionState> region;  // shared with the table
  std::optional<LaneEngine> engine;
  ScriptedLane* lane = nullptr;  // owned by the engine
};

class StagedChecksumTest : public ::testing::TestWithParam<cuda::DeviceCase> {
 protected:
  enum class Flip { kNothing, kBeforeSending, kAfterReceiving };

  void SetUp() override {
    target_ = GetParam().make();
    if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
  void MakeEnds(Staged near, Staged far) {
    near_ = std::make_unique<StagedEnd>(&target_->api(), near, 1);
    far_ = std::make_unique<StagedEnd>(&target_->api(), far, 2);
    before_ = far_->Copy();
  }
  // Odd blocks of one slice.
  void Begin(Direction direction) {
    PlanPart part;
    part.local_base = near_->span().data();
    part.local = near_->region;
    part.remote = {far_->region->id, far_->region->generation, far_->region->token};
    part.stager = near_->stager.get();
    part.blocks.Add({.dst = 5, .src = 5, .len = 10'001});
    part.blocks.Add({.dst = 30'000, .src = 30'000, .len = 3});
    part.blocks.Add({.dst = 20'003, .src = 20'003, .len = 777});
    std::vector<PlanPart> parts;
    parts.push_back(std::move(part));
    operation_ = std::make_shared<OperationState>();
    operation_->kind =
        direction == Direction::kWrite ? OperationKind::kWrite : OperationKind::kRead;
    operation_->id = 17;
    operation_->checksum = true;
    operation_->plan =
        Must(MakePlan(direction, Uuid{}, std::move(parts), {.slice_bytes = kStagedSlice}));
    ASSERT_EQ(operation_->plan->slice_count, 1U);
    operation_->ledger.Begin(1);
    near_->engine->AddWork(operation_);
  }
  // Brings the next frame from one side to the other.
  void Carry(StagedEnd* from, StagedEnd* to, Flip flip = Flip::kNothing) {
    from->DriveUntilItSends();
    net::OutFrame& frame = *from->lane->queue.front();
    header_ = from->lane->Header(0);
    std::vector<std::byte> payload;
    if (flip == Flip::kBeforeSending) FlipABit(frame.payload.front());
    for (const iovec& piece : frame.payload) {
      const auto* const at = static_cast<const std::byte*>(piece.iov_base);
      payload.insert(payload.end(), at, at + piece.iov_len);
    }
    sum_ = Crc32c(payload);
    const auto placed = to->lane->handler().OnFrame(frame.meta, payload.size());
    ASSERT_TRUE(placed) << placed.error().ToString();
    std::size_t at = 0;
    for (const iovec& piece : placed->memory) {
      std::memcpy(piece.iov_base, payload.data() + at, piece.iov_len);
      at += piece.iov_len;
    }
    if (!payload.empty()) {
      if (flip == Flip::kAfterReceiving) FlipABit(placed->memory.front());
      ASSERT_TRUE(to->lane->handler().OnPayload());
    }
    from->lane->handler().OnSent(from->lane->TakeSent());
  }
  static void FlipABit(const iovec& piece) {
    static_cast<std::byte*>(piece.iov_base)[piece.iov_len / 2] ^= std::byte{4};
  }
  // The blocks of Begin() of one side's memory, the rest of the other's.
  static std::vector<std::byte> Copied(const std::vector<std::byte>& from,
                                       std::vector<std::byte> to) {
    for (const auto& [at, length] : {std::pair(5, 10'001), {30'000, 3}, {20'003, 777}}) {
      std::copy_n(from.begin() + at, length, to.begin() + at);
    }
    return to;
  }
  void Write(Flip flip) {
    Begin(Direction::kWrite);
    Carry(near_.get(), far_.get(), flip);
    far_->DriveUntilItSends();
  }
  void Read(Flip flip) {
    Begin(Direction::kRead);
    Carry(near_.get(), far_.get());
    Carry(far_.get(), near_.get(), flip);
    ASSERT_TRUE(near_->bed.loop->DriveUntil([this] { return !near_->bed.operations.done.empty(); },
                                            Soon(), microseconds(0)));
  }

  std::unique_ptr<cuda::DeviceTarget> target_;
  std::unique_ptr<StagedEnd> near_;
  std::unique_ptr<StagedEnd> far_;
  std::vector<std::byte> before_;  // bytes of far_
  OperationRef operation_;
  wire::MessageHeader header_;  // of the frame that was carried last
  std::uint32_t sum_ = 0;       // of its payload, as sent
};

TEST_P(StagedChecksumTest, EitherSideMayBeHostMemoryOrAnyGpu) {
  constexpr Staged kAll[] = {Staged::kNo, Staged::kByKernel, Staged::kByCopyEngine};
  for (const Staged near : kAll) {
    for (const Staged far : kAll) {
      SCOPED_TRACE(fmt::format("{} {}", static_cast<int>(near), static_cast<int>(far)));
      MakeEnds(near, far);
      Write(Flip::kNothing);
      EXPECT_EQ(header_.crc, sum_) << "the GPU's value is the CPU's";
      EXPECT_EQ(far_->lane->Types(), std::vector{Type::kAck});
      EXPECT_TRUE(SameBytes(far_->Copy(), Copied(near_->Copy(), before_)));
      MakeEnds(near, far);
      const auto local = near_->Copy();
      Read(Flip::kNothing);
      EXPECT_EQ(header_.crc, sum_);
      EXPECT_FALSE(operation_->ledger.error());
      EXPECT_TRUE(SameBytes(near_->Copy(), Copied(before_, local)));
    }
  }
}

TEST_P(StagedChecksumTest, ABitOfAWriteThatFlipsInASlotOfEitherSideIsRefused) {
  for (const Flip flip : {Flip::kBeforeSending, Flip::kAfterReceiving}) {
    MakeEnds(Staged::kByKernel, Staged::kByKernel);
    Write(flip);
    EXPECT_EQ(far_->lane->Types().front(), Type::kNack) << "before the frame is acknowledged";
    EXPECT_EQ(far_->lane->Header(0).ack, 0U);
    EXPECT_THAT(far_->bed.owner.events, ::testing::Contains("mismatch"));
    ASSERT_EQ(far_->bed.owner.refusals.size(), 1U);
    EXPECT_THAT(far_->bed.owner.refusals[0],
                ContainsRegex("10781 bytes at offset 5 of region 0 have CRC32C [0-9a-f]{8}, but "
                              "[0-9a-f]{8} was sent"));
    EXPECT_THAT(far_->bed.owner.refusals[0],
                HasSubstr("the sender may have written to its memory while it was sent"));
  }
}

TEST_P(StagedChecksumTest, ABitOfAReadThatFlipsInASlotOfEitherSideFailsIt) {
  for (const Flip flip : {Flip::kBeforeSending, Flip::kAfterReceiving}) {
    MakeEnds(Staged::kByKernel, Staged::kByKernel);
    Read(flip);
    EXPECT_THAT(near_->bed.owner.events, ::testing::Contains("mismatch"));
    const auto error = operation_->ledger.error();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), Code::kCorrupt);
    EXPECT_THAT(error->message(), HasSubstr("10781 bytes at slice 0 of read 17 have CRC32C"));
    EXPECT_THAT(error->message(),
                HasSubstr("the owner of the memory may have written to it while it was read"));
  }
}

INSTANTIATE_TEST_SUITE_P(Simulated, StagedChecksumTest, ::testing::ValuesIn(cuda::kSimulatedCases),
                         cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, StagedChecksumTest, ::testing::Values(cuda::kRealCase),
                         cuda::DeviceCaseName);

}  // namespace
}  // namespace ferry::transfer
