// Endpoints over plugins with memory of a GPU on both sides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/net/testing/fault_proxy.h"
#include "ferry/tcpx/tests/testing/nccl_plugin_file.h"
#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/device_mirror.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using tcpx::testing::StandIn;
using tcpx::testing::Variables;

struct GpuEndpointCase {
  const char* name;
  const char* devices;
  bool straight;  // the library's own plugin, which receives into host memory; else the stand-in
  bool reaches = true;    // GPU memory
  Variables variables{};  // of the stand-in
};
void PrintTo(const GpuEndpointCase& one, std::ostream* out) { *out << one.name; }

bool AllUp(const Connection& connection) {
  const auto counters = connection.Counters();
  return std::all_of(counters.lanes.begin(), counters.lanes.end(),
                     [](const auto& lane) { return lane.up; });
}

class GpuEndpoints : public ::testing::TestWithParam<GpuEndpointCase> {
 protected:
  void SetUp() override {
    EXPECT_TRUE(config_.Set("devices", GetParam().devices));
    const auto api = cuda::OpenDevices(config_);
    if (!api) GTEST_SKIP() << api.error().message();
  }
  void Connect(Variables variables = {}) {
    variables.insert(variables.end(), GetParam().variables.begin(), GetParam().variables.end());
    config_ = SmallSlices();
    EXPECT_TRUE(config_.Set("devices", GetParam().devices));
    config_.cuda_ipc = AutoOff::kOff;
    // Larger than what goes over the control lane.
    config_.slice_bytes = config_.stage_slice_bytes = 32 * 1024;
    config_.window_bytes = 256 * 1024;
    config_.stage_bytes = 512 * 1024;
    api_ = Must(cuda::OpenDevices(config_));
    standin_ = std::make_unique<StandIn>(variables);
    config_.provider = "plugin:" + tcpx::testing::NcclPluginFile();
    if (!GetParam().straight) {
      (void)Must(standin_->Open());
      config_.provider = "plugin:" + standin_->path();
    }
    link_ = MakeLink(config_);
  }
  void TearDown() override {
    link_ = {};
    if (!GetParam().straight && standin_ != nullptr) {
      EXPECT_EQ(standin_->Misuse(), "");
    }
  }

  MirroredMemory OnDevice(std::size_t bytes, unsigned seed) {
    return MirroredMemory(api_, 0, bytes, seed);
  }
  Connection& near() { return *link_.near.connection; }
  Region Near(std::span<std::byte> memory) {
    return Must(link_.near.endpoint->Register(memory, Rights::kNone));
  }
  Region Far(std::span<std::byte> memory) {
    return Must(link_.far.endpoint->Register(memory, Rights::kReadWrite));
  }
  Operation Post(Direction direction, const Region& local, const RemoteRegion& remote,
                 BlockList blocks, bool checksum = false) {
    std::vector<TransferPart> parts;
    parts.push_back({&local, &remote, std::move(blocks)});
    if (direction == Direction::kWrite) {
      return Must(
          near().Write(Must(near().PrepareWrite(std::move(parts))), {.checksum = checksum}));
    }
    return Must(near().Read(Must(near().PrepareRead(std::move(parts))), {.checksum = checksum}));
  }
  static BlockList Whole(std::uint64_t bytes) {
    BlockList list;
    list.Add({.dst = 0, .src = 0, .len = bytes});
    return list;
  }

  Config config_;
  cuda::DeviceApi* api_ = nullptr;
  std::unique_ptr<StandIn> standin_;
  Link link_;
};

TEST_P(GpuEndpoints, MemoryOfAnySizeGoesFromGpuToGpu) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  for (const bool checksum : {false, true}) {
    for (const std::size_t bytes : {1U, 8U, 4095U, 4097U, 100'000U, 1'000'001U}) {
      auto source = OnDevice(bytes, 1);
      auto target = OnDevice(bytes, 2);
      auto back = OnDevice(bytes, 3);
      const Region local = Near(source.span());
      const Region remote = Far(target.span());
      const Region into = Near(back.span());
      EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), Whole(bytes), checksum)));
      EXPECT_TRUE(SameBytes(target.Copy(), source.Copy())) << bytes;
      EXPECT_TRUE(target.GuardsIntact());
      EXPECT_TRUE(EndsOk(Post(Direction::kRead, into, remote.remote(), Whole(bytes), checksum)));
      EXPECT_TRUE(SameBytes(back.Copy(), source.Copy())) << bytes;
      EXPECT_TRUE(back.GuardsIntact());
    }
  }
}

// The thread that waits drives the lanes, whose plugin wants another GPU to be current.
TEST_P(GpuEndpoints, AThreadThatWaitsKeepsItsCurrentDevice) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  if (dynamic_cast<cuda::SimulatedDevices*>(api_) == nullptr) {
    GTEST_SKIP() << "other GPUs are not asked which one is current";
  }
  auto source = OnDevice(1'000'001, 1);
  auto target = OnDevice(1'000'001, 2);
  const Region local = Near(source.span());
  const Region remote = Far(target.span());
  auto others = Must(cuda::SimulatedDevices::Create({.devices = 2}));
  const auto current = Must(others->MakeCurrent(1));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), Whole(1'000'001))));
    EXPECT_EQ(cuda::SimulatedDevices::current(), 1);
  }
}

TEST_P(GpuEndpoints, EitherSideMayBeHostMemory) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  for (const std::size_t bytes : {3000U, 300'003U}) {
    auto on_device = OnDevice(bytes, 1);
    GuardedMemory on_host(bytes, 2);
    GuardedMemory target(bytes, 3);
    auto device_target = OnDevice(bytes, 4);
    const Region from_device = Near(on_device.span());
    const Region from_host = Near(on_host.span());
    const Region to_host = Far(target.span());
    const Region to_device = Far(device_target.span());
    EXPECT_TRUE(EndsOk(Post(Direction::kWrite, from_device, to_host.remote(), Whole(bytes))));
    EXPECT_TRUE(SameBytes(target.Copy(), on_device.Copy()));
    EXPECT_TRUE(EndsOk(Post(Direction::kWrite, from_host, to_device.remote(), Whole(bytes))));
    EXPECT_TRUE(SameBytes(device_target.Copy(), on_host.Copy()));
    device_target.Fill(RandomBytes(bytes, 5));
    EXPECT_TRUE(EndsOk(Post(Direction::kRead, from_host, to_device.remote(), Whole(bytes))));
    EXPECT_TRUE(SameBytes(on_host.Copy(), RandomBytes(bytes, 5)));
    EXPECT_TRUE(EndsOk(Post(Direction::kRead, from_device, to_host.remote(), Whole(bytes))));
    EXPECT_TRUE(SameBytes(on_device.Copy(), target.Copy()));
    EXPECT_TRUE(on_host.GuardsIntact());
    EXPECT_TRUE(target.GuardsIntact());
  }
}

TEST_P(GpuEndpoints, PagesAreScatteredOnBothSides) {
  constexpr std::size_t kBytes = 1'000'000;
  constexpr std::uint64_t kPage = 1000;
  ASSERT_NO_FATAL_FAILURE(Connect({{"FRAGMENTS", "random"}}));
  auto source = OnDevice(kBytes, 1);
  auto target = OnDevice(kBytes, 2);
  const Region local = Near(source.span());
  const Region remote = Far(target.span());
  std::vector<std::uint64_t> to(kBytes / kPage);
  std::iota(to.begin(), to.end(), 0);
  auto from = to;
  std::mt19937 random(5);
  std::shuffle(to.begin(), to.end(), random);
  std::shuffle(from.begin(), from.end(), random);
  to.resize(700);  // the rest stays unchanged
  from.resize(700);
  auto expected = target.Copy();
  const auto bytes = source.Copy();
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(from[i] * kPage), kPage,
                expected.begin() + static_cast<std::ptrdiff_t>(to[i] * kPage));
  }
  const BlockList pages = Must(BlockList::FromPages(to, from, kPage));
  EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), pages)));
  EXPECT_TRUE(SameBytes(target.Copy(), expected));
  auto fetched = OnDevice(kBytes, 2);
  const Region into = Near(fetched.span());
  const BlockList back = Must(BlockList::FromPages(to, to, kPage));
  EXPECT_TRUE(EndsOk(Post(Direction::kRead, into, remote.remote(), back)));
  EXPECT_TRUE(SameBytes(fetched.Copy(), expected));
}

TEST_P(GpuEndpoints, MessagesGoFromAndToGpuMemory) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  Connection& far = *link_.far.connection;
  for (const std::size_t bytes : {1U, 5000U, 200'000U}) {
    auto source = OnDevice(bytes, 1);
    auto target = OnDevice(bytes, 2);
    Operation receive = Must(far.Recv(1, kWholeTag, target.span()));
    EXPECT_TRUE(EndsOk(near().Send(1, source.span())));
    EXPECT_TRUE(EndsOk(receive));
    EXPECT_TRUE(SameBytes(target.Copy(), source.Copy()));
    target.Fill(RandomBytes(bytes, 9));
    Operation send = Must(near().Send(2, source.span()));
    EXPECT_TRUE(Works(&link_));
    EXPECT_TRUE(EndsOk(far.Recv(2, kWholeTag, target.span())));
    EXPECT_TRUE(EndsOk(send));
    EXPECT_TRUE(SameBytes(target.Copy(), source.Copy()));
  }
}

// A process with several GPUs has an endpoint for each, as it has a communicator of NCCL.
TEST(EndpointsOfSeveralGpus, AreForTheGpuThatIsCurrentWhenTheyAreMade) {
  constexpr std::size_t kBytes = 300'000;
  StandIn standin({});
  (void)Must(standin.Open());
  Config config = SmallSlices();
  ASSERT_TRUE(config.Set("devices", "simulated:2:1:open"));
  config.cuda_ipc = AutoOff::kOff;
  config.provider = "plugin:" + standin.path();
  cuda::DeviceApi* const api = Must(cuda::OpenDevices(config));
  for (const int gpu : {1, 0}) {
    Link link;
    {
      const auto current = Must(api->MakeCurrent(gpu));
      link = MakeLink(config);
    }
    for (const int with : {0, 1}) {
      MirroredMemory source(api, with, kBytes, 1);
      MirroredMemory target(api, with, kBytes, 2);
      const Region local = Must(link.near.endpoint->Register(source.span(), Rights::kNone));
      const Region remote = Must(link.far.endpoint->Register(target.span(), Rights::kReadWrite));
      EXPECT_TRUE(EndsOk(link.near.connection->Write(local, 0, remote.remote(), 0, kBytes)));
      EXPECT_TRUE(SameBytes(target.Copy(), source.Copy()));
    }
    const auto staging = link.far.endpoint->Counters().staging;
    ASSERT_EQ(staging.size(), 2U);
    for (const StagingCounters& one : staging) {
      EXPECT_EQ(one.from_network.slots == 0, one.ordinal == gpu) << one.ordinal;
    }
  }
  EXPECT_EQ(standin.Misuse(), "");
}

// Where the GPU's memory is not reached, slots of the host's carry it.
TEST_P(GpuEndpoints, SlotsAreUsedOnlyWhereTheLaneDoesNotReachTheGpu) {
  constexpr std::size_t kBytes = 1'000'000;
  ASSERT_NO_FATAL_FAILURE(Connect());
  auto source = OnDevice(kBytes, 1);
  auto target = OnDevice(kBytes, 2);
  const Region local = Near(source.span());
  const Region remote = Far(target.span());
  const auto received = [&] {
    return link_.far.endpoint->Counters().staging.at(0).from_network.slots;
  };
  EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), Whole(kBytes))));
  EXPECT_EQ(received() == 0, GetParam().reaches);
  EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), Whole(kBytes), true)));
  EXPECT_GT(received(), 0U);  // checked payloads go through slots
  EXPECT_TRUE(SameBytes(target.Copy(), source.Copy()));
}

// Memory freed after the end causes no error; a later copy would lose the device.
TEST_P(GpuEndpoints, MemoryMayBeFreedWhenACancelledOperationHasEnded) {
  constexpr std::size_t kBytes = 2'000'000;
  ASSERT_NO_FATAL_FAILURE(Connect());
  for (unsigned round = 0; round < 8; ++round) {
    auto source = OnDevice(kBytes, round);
    auto target = OnDevice(kBytes, 100);
    {
      const Region local = Near(source.span());
      const Region remote = Far(target.span());
      const auto direction = round % 2 == 0 ? Direction::kWrite : Direction::kRead;
      Operation operation = Post(direction, local, remote.remote(), Whole(kBytes));
      for (unsigned spin = 0; spin < 300 * round; ++spin) (void)operation.Poll();
      operation.Cancel();
      const Status ended = operation.Wait(Soon());
      if (!ended) {
        EXPECT_EQ(ended.error().code(), Code::kCancelled) << ended.error().message();
      }
    }
    source.Free();
    target.Free();
  }
  EXPECT_TRUE(Works(&link_));
  EXPECT_FALSE(api_->IsLost(0));
}

TEST_P(GpuEndpoints, ARegionThatIsDeregisteredInTheMiddleIsTouchedNoMore) {
  constexpr std::size_t kBytes = 2'000'000;
  ASSERT_NO_FATAL_FAILURE(Connect());
  for (unsigned round = 0; round < 6; ++round) {
    auto source = OnDevice(kBytes, 1);
    auto target = OnDevice(kBytes, 2);
    const Region local = Near(source.span());
    Region remote = Far(target.span());
    const auto direction = round % 2 == 0 ? Direction::kWrite : Direction::kRead;
    Operation operation = Post(direction, local, remote.remote(), Whole(kBytes));
    for (unsigned spin = 0; spin < 200 * round; ++spin) (void)operation.Poll();
    EXPECT_TRUE(remote.Deregister(Soon()));
    target.Free();
    const Status ended = operation.Wait(Soon());
    if (!ended) {
      EXPECT_EQ(ended.error().code(), Code::kRefused) << ended.error().message();
    }
  }
  EXPECT_TRUE(Works(&link_));
  EXPECT_FALSE(api_->IsLost(0));
}

TEST_P(GpuEndpoints, BlocksBeyondTheTargetAreRefused) {
  constexpr std::size_t kBytes = 100'000;
  ASSERT_NO_FATAL_FAILURE(Connect());
  auto source = OnDevice(kBytes, 1);
  auto target = OnDevice(kBytes, 2);
  const auto before = target.Copy();
  const Region local = Near(source.span());
  const Region remote = Far(target.span().first(kBytes / 2));
  RemoteRegion key = remote.remote();
  key.length = kBytes;  // as a peer that lies would have it
  const Operation write = Must(near().Write(local, 0, key, kBytes / 2, 40'000));
  EXPECT_TRUE(EndsWith(Code::kRefused, write));
  EXPECT_TRUE(SameBytes(target.Copy(), before));
}

TEST_P(GpuEndpoints, LanesThatAreLostLoseNothing) {
  constexpr std::size_t kBytes = 2'000'000;
  ASSERT_NO_FATAL_FAILURE(Connect());
  auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", link_.far.endpoint->port()}, 1));
  Connection connection = Must(link_.near.endpoint->Connect(proxy->address().ToString(), Soon()));
  const Connection accepted = Must(link_.far.endpoint->Accept(Soon()));
  // If all lanes are reset the peer is lost.
  const auto reset_one = [&](unsigned which) {
    const Deadline timeout = Soon();
    while (!(AllUp(connection) && AllUp(accepted)) && !timeout.expired()) {
    }
    proxy->ResetOne(which);
  };
  auto target = OnDevice(kBytes, 2);
  const Region remote = Far(target.span());
  const RemoteRegion key = remote.remote();
  for (unsigned round = 0; round < 6; ++round) {
    auto source = OnDevice(kBytes, round);
    auto fetched = OnDevice(kBytes, 200);
    const Region local = Near(source.span());
    const Region into = Near(fetched.span());
    Operation write = Must(connection.Write(local, 0, key, 0, kBytes));
    for (unsigned spin = 0; spin < 300 * round; ++spin) (void)write.Poll();
    reset_one(round);
    const Status written = write.Wait(Soon());
    ASSERT_TRUE(written) << written.error().ToString();
    EXPECT_TRUE(SameBytes(target.Copy(), source.Copy())) << round;
    Operation read = Must(connection.Read(into, 0, key, 0, kBytes));
    for (unsigned spin = 0; spin < 300 * round; ++spin) (void)read.Poll();
    reset_one(round + 1);
    const Status fetched_well = read.Wait(Soon());
    ASSERT_TRUE(fetched_well) << fetched_well.error().ToString();
    EXPECT_TRUE(SameBytes(fetched.Copy(), source.Copy())) << round;
  }
}

TEST_P(GpuEndpoints, AWriteOutlivesALaneThatThePluginLost) {
  constexpr std::size_t kBytes = 4'000'000;
  ASSERT_NO_FATAL_FAILURE(Connect({{"FAULT", "half_close@20"}}));
  auto source = OnDevice(kBytes, 1);
  auto target = OnDevice(kBytes, 2);
  const Region local = Near(source.span());
  const Region remote = Far(target.span());
  EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), Whole(kBytes))));
  EXPECT_TRUE(SameBytes(target.Copy(), source.Copy()));
}

INSTANTIATE_TEST_SUITE_P(Plugin, GpuEndpoints,
                         ::testing::Values(GpuEndpointCase{"StandIn", "simulated:1:1:open", false},
                                           GpuEndpointCase{"Straight", "simulated:1:1:open", true},
                                           GpuEndpointCase{"GpuNotReached", "simulated:1:1", false,
                                                           false}),
                         [](const auto& one) { return std::string(one.param.name); });
// The stand-in's pool is the GPU's, or the host's.
INSTANTIATE_TEST_SUITE_P(
    Gpu, GpuEndpoints,
    ::testing::Values(GpuEndpointCase{"StandIn", "auto", false, true, {{"GPU", "1"}}},
                      GpuEndpointCase{"HostPool", "auto", false, true, {{"GPU", "mapped"}}},
                      GpuEndpointCase{"Straight", "auto", true}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace ferry::transfer
