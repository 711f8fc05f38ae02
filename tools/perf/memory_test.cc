// Tests of the memory whose transfers are measured, on the host and on a simulated GPU.

#include "tools/perf/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tools/perf/cmd_perf.h"

namespace ferry::tools {
namespace {

struct MemoryKindCase {
  const char* name;
  int ordinal;
};
void PrintTo(const MemoryKindCase& one, std::ostream* out) { *out << one.name; }

constexpr PerfCase kSmallCase{.op = Op::kWrite, .size = 1000, .block_size = 64};

class PerfMemoryTest : public testing::TestWithParam<MemoryKindCase> {
 protected:
  static Config Devices() {
    Config config;
    config.devices = DeviceChoice::Simulated("2:201");
    return config;
  }
  static MemoryChoice Choice() { return {GetParam().ordinal}; }

  void SetUp() override {
    auto memory = PerfMemory::Allocate(Choice(), kSlots * kSmallCase.SlotBytes(), Devices());
    ASSERT_TRUE(memory) << memory.error().ToString();
    memory_ = *std::move(memory);
  }
  LaidOut Slot(std::uint64_t slot) const { return {layout_, slot * kSmallCase.SlotBytes()}; }
  std::optional<std::uint64_t> WrongIn(std::uint64_t slot, std::uint64_t seed) {
    const auto wrong = memory_.FindWrong(Slot(slot), seed);
    EXPECT_TRUE(wrong) << wrong.error().ToString();
    return wrong ? *wrong : std::nullopt;
  }

  static constexpr std::uint64_t kSlots = 3;
  const Layout layout_{kSmallCase, 5};
  PerfMemory memory_;
};

TEST_P(PerfMemoryTest, HasTheSizeThatWasAskedForOnBothSides) {
  EXPECT_EQ(memory_.bytes().size(), kSlots * kSmallCase.SlotBytes());
  EXPECT_EQ(memory_.host().size(), memory_.bytes().size());
  EXPECT_EQ(memory_.host().data() == memory_.bytes().data(), Choice().is_host());
}

TEST_P(PerfMemoryTest, EachSlotHasItsOwnPattern) {
  ASSERT_TRUE(memory_.Fill(Slot(0), 1));
  ASSERT_TRUE(memory_.Fill(Slot(2), 2));
  EXPECT_EQ(WrongIn(0, 1), std::nullopt);
  EXPECT_EQ(WrongIn(2, 2), std::nullopt);
  EXPECT_EQ(WrongIn(0, 2), 0U);
  EXPECT_EQ(WrongIn(1, 1), 0U) << "a slot that was never filled";
}

TEST_P(PerfMemoryTest, PoisonLeavesNothingOfAPattern) {
  ASSERT_TRUE(memory_.Fill(Slot(0), 1));
  ASSERT_TRUE(memory_.Fill(Slot(1), 1));
  ASSERT_TRUE(memory_.Poison());
  for (const std::uint64_t slot : {0U, 1U}) EXPECT_EQ(WrongIn(slot, 1), 0U);
}

TEST_P(PerfMemoryTest, WhatIsLookedAtIsTheMemoryThatIsTransferred) {
  ASSERT_TRUE(memory_.Fill(Slot(0), 1));
  // A GPU's copy on the host is not looked at.
  std::memset(memory_.host().data(), 0, memory_.host().size());
  EXPECT_EQ(WrongIn(0, 1), Choice().is_host() ? std::optional<std::uint64_t>(0) : std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Kinds, PerfMemoryTest,
                         testing::Values(MemoryKindCase{"Host", -1}, MemoryKindCase{"Gpu", 1}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST(PerfMemoryOfAGpu, TellsTheRateOfAPlainCopy) {
  Config config;
  config.devices = DeviceChoice::Simulated("1:202");
  auto memory = PerfMemory::Allocate({0}, 100000, config);
  ASSERT_TRUE(memory) << memory.error().ToString();
  for (const auto kind : {cuda::CopyKind::kHostToDevice, cuda::CopyKind::kDeviceToHost}) {
    const auto rate = memory->CopyRate(kind, 100000);
    ASSERT_TRUE(rate) << rate.error().ToString();
    EXPECT_GT(*rate, 0);
  }
}

TEST(PerfMemoryOfAGpu, ThatThereIsNotIsAnError) {
  Config config;
  config.devices = DeviceChoice::Simulated("1:202");
  EXPECT_EQ(PerfMemory::Allocate({1}, 8, config).error().code(), Code::kInvalidArgument);
  config.devices = DeviceChoice::None();
  EXPECT_EQ(PerfMemory::Allocate({0}, 8, config).error().code(), Code::kUnsupported);
  EXPECT_EQ(PerfMemory::Allocate({}, ~std::uint64_t{0} / 2, config).error().code(),
            Code::kUnavailable);
}

TEST(FloorSettings, TakeTheCongestionControlThatALaneReports) {
  Config config;
  config.congestion_control = {};
  config.lanes = 3;
  const Config floor = FloorConfig(config, "cubic (in place of bbr, which is unfair)");
  EXPECT_EQ(floor.congestion_control.name, "cubic");
  EXPECT_EQ(floor.lanes, 3);
  EXPECT_EQ(FloorConfig(config, "reno").congestion_control.name, "reno");
}

}  // namespace
}  // namespace ferry::tools
