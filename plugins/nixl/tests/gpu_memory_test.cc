// Tests transfers of GPU memory, on simulated GPUs, between two agents of this process.
#include <gtest/gtest.h>

#include "plugins/nixl/tests/agents_test.h"
#include "tests/load/placed_memory.h"

namespace ferry::nixl::testing {
namespace {

using abi::Direction;
using abi::Outcome;

constexpr std::size_t kGpuBytes = 1 << 20;
constexpr const char* kDevices = "simulated:2";

TEST(NixlGpuMemoryTest, MemoryOfGpusAndOfTheHostIsWrittenAndRead) {
  cuda::DeviceApi* const devices = tests::DevicesOf(kDevices);
  const abi::Params params = FastParams({{"devices", kDevices}});
  const auto memory_of = [](int place) {
    return place == tests::kOnHost ? abi::Memory::kDram : abi::Memory::kVram;
  };
  for (const auto& [own, others] :
       {std::pair(0, 1), std::pair(tests::kOnHost, 1), std::pair(0, -1)}) {
    tests::PlacedMemory mine(devices, own, kGpuBytes);
    tests::PlacedMemory theirs(devices, others, kGpuBytes);
    const std::vector<std::byte> pattern = Pattern(kOwnSeed, kGpuBytes);
    mine.Put(pattern);
    StandInAgent one("one", params, LinkedPlugin());
    StandInAgent other("other", params, LinkedPlugin());
    ASSERT_EQ(one.Register(mine.span(), memory_of(own)), Outcome::kSuccess);
    ASSERT_EQ(other.Register(theirs.span(), memory_of(others)), Outcome::kSuccess);
    ASSERT_EQ(one.Load(other.Metadata()), Outcome::kSuccess);
    const Range from{reinterpret_cast<std::uintptr_t>(mine.span().data()), kGpuBytes};
    const Range to{reinterpret_cast<std::uintptr_t>(theirs.span().data()), kGpuBytes};
    const Deadline soon = Deadline::After(std::chrono::seconds(20));
    auto write = one.Prepare(Direction::kWrite, {&from, 1}, {&to, 1}, "other");
    ASSERT_GE(static_cast<int>(write.Post("written")), 0);
    ASSERT_EQ(write.Wait(soon), Outcome::kSuccess);
    EXPECT_EQ(other.Await(1, soon).size(), 1U);
    EXPECT_EQ(DigestOf(theirs.Look(kGpuBytes)), DigestOf(pattern));
    mine.Put(Pattern(kPeerSeed, kGpuBytes));
    auto read = one.Prepare(Direction::kRead, {&from, 1}, {&to, 1}, "other");
    ASSERT_GE(static_cast<int>(read.Post("read")), 0);
    ASSERT_EQ(read.Wait(soon), Outcome::kSuccess);
    EXPECT_EQ(DigestOf(mine.Look(kGpuBytes)), DigestOf(pattern));
    EXPECT_EQ(other.Await(1, soon).size(), 1U);
  }
}

TEST(NixlGpuMemoryTest, MemoryOfTheHostIsNotRegisteredAsAGpus) {
  StandInAgent agent("one", FastParams({{"devices", kDevices}}), LinkedPlugin());
  std::vector<std::byte> memory(64);
  EXPECT_EQ(agent.Register(memory, abi::Memory::kVram), Outcome::kInvalidParam);
  EXPECT_EQ(agent.Register(memory, abi::Memory::kFile), Outcome::kNotSupported);
}

}  // namespace
}  // namespace ferry::nixl::testing
