// Tests transfers and notifications of an agent to itself.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "plugins/nixl/tests/agents_test.h"
#include "tests/load/placed_memory.h"

namespace ferry::nixl::testing {
namespace {

using abi::Direction;
using abi::Outcome;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr std::size_t kSelfBytes = 4 << 20;
constexpr std::size_t kSelfGpuBytes = 1 << 20;
constexpr const char* kSimulated = "simulated:2";

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

Range RangeOf(std::span<const std::byte> memory) {
  return {reinterpret_cast<std::uintptr_t>(memory.data()), memory.size()};
}

StandInAgent::Transfer PrepareSelf(StandInAgent* agent, Direction direction,
                                   std::span<const std::byte> local,
                                   std::span<const std::byte> remote) {
  const Range own = RangeOf(local);
  const Range same = RangeOf(remote);
  return agent->Prepare(direction, {&own, 1}, {&same, 1}, agent->name());
}

// Every socket of this process stops, the listening ones as well.
void ShutDownSockets() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)::shutdown(std::stoi(entry.path().filename().string()), SHUT_RDWR);
  }
}

class NixlSelfTest : public ::testing::Test {
 protected:
  NixlSelfTest() {
    EXPECT_EQ(agent_.Register(from_), Outcome::kSuccess);
    EXPECT_EQ(agent_.Register(to_), Outcome::kSuccess);
  }

  std::vector<std::byte> from_ = Pattern(kOwnSeed, kSelfBytes);
  std::vector<std::byte> to_ = Pattern(kPeerSeed, kSelfBytes);
  StandInAgent agent_{kOwnName, FastParams()};
};

TEST_F(NixlSelfTest, AWriteArrivesWithItsNotificationAndIsPostedAgain) {
  auto write = PrepareSelf(&agent_, Direction::kWrite, from_, to_);
  for (int round = 0; round < 3; ++round) {
    from_[0] = static_cast<std::byte>(round);
    ASSERT_GE(static_cast<int>(write.Post("written")), 0);
    ASSERT_EQ(write.Wait(Soon()), Outcome::kSuccess);
    EXPECT_EQ(to_, from_);
    EXPECT_THAT(agent_.Await(1, Soon()), ElementsAre(Pair(kOwnName, "written")));
  }
}

TEST_F(NixlSelfTest, AReadBringsTheBytesWithItsNotification) {
  auto read = PrepareSelf(&agent_, Direction::kRead, to_, from_);
  // The connection is not up yet, and nothing waits for it here.
  EXPECT_EQ(read.Post("read"), Outcome::kInProgress);
  ASSERT_EQ(read.Wait(Soon()), Outcome::kSuccess);
  EXPECT_EQ(to_, from_);
  EXPECT_THAT(agent_.Await(1, Soon()), ElementsAre(Pair(kOwnName, "read")));
}

TEST_F(NixlSelfTest, NotificationsArriveWithTheOwnName) {
  const std::string large = Text(7, 1 << 20);
  ASSERT_EQ(agent_.engine().Notify(kOwnName, ""), Outcome::kSuccess);
  EXPECT_THAT(agent_.Await(1, Soon()), ElementsAre(Pair(kOwnName, "")));
  ASSERT_EQ(agent_.engine().Notify(kOwnName, large), Outcome::kSuccess);
  EXPECT_THAT(agent_.Await(1, Soon()), ElementsAre(Pair(kOwnName, large)));
}

TEST_F(NixlSelfTest, DeregistrationEndsATransferToItself) {
  auto write = PrepareSelf(&agent_, Direction::kWrite, from_, to_);
  ASSERT_GE(static_cast<int>(write.Post()), 0);
  agent_.Deregister(to_);
  const Outcome ended = write.Wait(Soon());
  EXPECT_TRUE(ended == Outcome::kSuccess || static_cast<int>(ended) < 0);
}

// The agent forgets its own memory where it is told that the peer is gone.
TEST_F(NixlSelfTest, ALostConnectionIsAnErrorAndNotALostPeer) {
  auto write = PrepareSelf(&agent_, Direction::kWrite, from_, to_);
  ASSERT_GE(static_cast<int>(write.Post()), 0);
  ASSERT_EQ(write.Wait(Soon()), Outcome::kSuccess);
  ShutDownSockets();
  Outcome ended = Outcome::kSuccess;
  for (const Deadline end = Soon(); ended == Outcome::kSuccess && !end.expired();) {
    ended = write.Post();
    if (ended == Outcome::kInProgress) ended = write.Wait(Soon());
  }
  EXPECT_EQ(ended, Outcome::kBackend);
  EXPECT_EQ(write.Post(), Outcome::kInProgress);
  EXPECT_EQ(write.Wait(Soon()), Outcome::kBackend);
}

TEST(NixlSelfTransferTest, NeitherThreadsNorDescriptorsStayAfterOne) {
  const Holdings at_start = Holdings::AtStart();
  {
    std::vector<std::byte> memory = Pattern(kOwnSeed, kSelfBytes);
    const auto half = std::span(memory).subspan(0, kSelfBytes / 2);
    StandInAgent agent(kOwnName, FastParams());
    ASSERT_EQ(agent.Register(memory), Outcome::kSuccess);
    auto write =
        PrepareSelf(&agent, Direction::kWrite, half, std::span(memory).subspan(kSelfBytes / 2));
    ASSERT_GE(static_cast<int>(write.Post("x")), 0);
    ASSERT_EQ(write.Wait(Soon()), Outcome::kSuccess);
  }
  EXPECT_EQ(at_start.Difference(), "");
}

TEST(NixlSelfTransferTest, MemoryOfGpusIsWrittenAndRead) {
  cuda::DeviceApi* const devices = tests::DevicesOf(kSimulated);
  const auto memory_of = [](int place) {
    return place == tests::kOnHost ? abi::Memory::kDram : abi::Memory::kVram;
  };
  for (const auto& [source, target] :
       {std::pair(0, 0), std::pair(0, 1), std::pair(tests::kOnHost, 1),
        std::pair(0, tests::kOnHost)}) {
    tests::PlacedMemory from(devices, source, kSelfGpuBytes);
    tests::PlacedMemory to(devices, target, kSelfGpuBytes);
    const std::vector<std::byte> pattern = Pattern(kOwnSeed, kSelfGpuBytes);
    from.Put(pattern);
    StandInAgent agent(kOwnName, FastParams({{"devices", kSimulated}}), LinkedPlugin());
    ASSERT_EQ(agent.Register(from.span(), memory_of(source)), Outcome::kSuccess);
    ASSERT_EQ(agent.Register(to.span(), memory_of(target)), Outcome::kSuccess);
    auto write = PrepareSelf(&agent, Direction::kWrite, from.span(), to.span());
    ASSERT_GE(static_cast<int>(write.Post("written")), 0);
    ASSERT_EQ(write.Wait(Soon()), Outcome::kSuccess);
    EXPECT_EQ(DigestOf(to.Look(kSelfGpuBytes)), DigestOf(pattern)) << source << " to " << target;
    to.Put(Pattern(kPeerSeed, kSelfGpuBytes));
    auto read = PrepareSelf(&agent, Direction::kRead, from.span(), to.span());
    ASSERT_GE(static_cast<int>(read.Post("read")), 0);
    ASSERT_EQ(read.Wait(Soon()), Outcome::kSuccess);
    EXPECT_EQ(DigestOf(from.Look(kSelfGpuBytes)), DigestOf(Pattern(kPeerSeed, kSelfGpuBytes)));
    EXPECT_EQ(agent.Await(2, Soon()).size(), 2U);
  }
}

}  // namespace
}  // namespace ferry::nixl::testing
