// Tests every operation with GPU memory as source and destination.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/net/testing/fault_proxy.h"
#include "ferry/transfer/gpu/staged_copy.h"
#include "ferry/transfer/gpu/stager.h"
#include "ferry/transfer/testing/device_mirror.h"
#include "ferry/transfer/testing/linked_endpoints.h"

// GPU memory as source and destination of every operation, between two endpoints over TCP.
namespace ferry::transfer {
namespace {

// 16 slots of 4 KiB per direction, for 2 lanes that may hold 8 each.
Config WithDevices(const std::string& devices, Config config = SmallSlices()) {
  EXPECT_TRUE(config.Set("devices", devices)) << devices;
  config.cuda_ipc = AutoOff::kOff;
  config.stage_slice_bytes = 4096;
  config.stage_bytes = 64 * 1024;
  return config;
}

bool AllLanesAreUp(const Connection& connection) {
  const auto counters = connection.Counters();
  return std::all_of(counters.lanes.begin(), counters.lanes.end(),
                     [](const auto& lane) { return lane.up; });
}

class DeviceTransferTest : public ::testing::TestWithParam<DevicesCase> {
 protected:
  void SetUp() override {
    const auto api = cuda::OpenDevices(config_);
    if (!api) GTEST_SKIP() << api.error().message();
    api_ = *api;
    link_ = MakeLink(config_);
  }

  MirroredMemory OnDevice(std::size_t bytes, unsigned seed, int ordinal = 0) {
    return MirroredMemory(api_, ordinal, bytes, seed);
  }
  int last_device() const { return api_->count() - 1; }
  Connection& near() { return *link_.near.connection; }
  Region Near(std::span<std::byte> memory) {
    return Must(link_.near.endpoint->Register(memory, Rights::kNone));
  }
  Region Far(std::span<std::byte> memory) {
    return Must(link_.far.endpoint->Register(memory, Rights::kReadWrite));
  }
  Operation Post(Direction direction, const Region& local, const RemoteRegion& remote,
                 const BlockList& blocks, bool checksum = false) {
    std::vector<TransferPart> parts;
    parts.push_back({&local, &remote, blocks});
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

  Config config_ = WithDevices(GetParam().devices);
  cuda::DeviceApi* api_ = nullptr;
  Link link_;
};

TEST_P(DeviceTransferTest, MemoryOfAnySizeGoesFromGpuToGpu) {
  for (const std::size_t bytes : {1U, 15U, 4095U, 4096U, 4097U, 300'001U}) {
    auto source = OnDevice(bytes, 1);
    auto target = OnDevice(bytes, 2, last_device());
    const Region local = Near(source.span());
    const Region remote = Far(target.span());
    EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), Whole(bytes))));
    EXPECT_TRUE(SameBytes(target.Copy(), source.Copy())) << bytes;
    EXPECT_TRUE(target.GuardsIntact());
    auto back = OnDevice(bytes, 3);
    const Region into = Near(back.span());
    EXPECT_TRUE(EndsOk(Post(Direction::kRead, into, remote.remote(), Whole(bytes))));
    EXPECT_TRUE(SameBytes(back.Copy(), source.Copy())) << bytes;
    EXPECT_TRUE(back.GuardsIntact());
  }
}

TEST_P(DeviceTransferTest, EitherSideMayBeHostMemory) {
  constexpr std::size_t kBytes = 100'003;
  auto on_device = OnDevice(kBytes, 1);
  GuardedMemory on_host(kBytes, 2);
  GuardedMemory target(kBytes, 3);
  auto device_target = OnDevice(kBytes, 4, last_device());
  const Region from_device = Near(on_device.span());
  const Region from_host = Near(on_host.span());
  const Region to_host = Far(target.span());
  const Region to_device = Far(device_target.span());
  EXPECT_TRUE(EndsOk(Post(Direction::kWrite, from_device, to_host.remote(), Whole(kBytes))));
  EXPECT_TRUE(SameBytes(target.Copy(), on_device.Copy()));
  EXPECT_TRUE(EndsOk(Post(Direction::kWrite, from_host, to_device.remote(), Whole(kBytes))));
  EXPECT_TRUE(SameBytes(device_target.Copy(), on_host.Copy()));
  device_target.Fill(RandomBytes(kBytes, 5));
  EXPECT_TRUE(EndsOk(Post(Direction::kRead, from_host, to_device.remote(), Whole(kBytes))));
  EXPECT_TRUE(SameBytes(on_host.Copy(), RandomBytes(kBytes, 5)));
  EXPECT_TRUE(EndsOk(Post(Direction::kRead, from_device, to_host.remote(), Whole(kBytes))));
  EXPECT_TRUE(SameBytes(on_device.Copy(), target.Copy()));
  EXPECT_TRUE(on_host.GuardsIntact());
  EXPECT_TRUE(target.GuardsIntact());
}

TEST_P(DeviceTransferTest, PagesAreScatteredOnBothSides) {
  constexpr std::size_t kBytes = 1'000'000;
  constexpr std::uint64_t kPage = 1000;
  auto source = OnDevice(kBytes, 1);
  auto target = OnDevice(kBytes, 2, last_device());
  const Region local = Near(source.span());
  const Region remote = Far(target.span());
  std::vector<std::uint64_t> to(kBytes / kPage);
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = i;
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
  EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), pages, true)));
  EXPECT_TRUE(SameBytes(target.Copy(), expected));
  auto fetched = OnDevice(kBytes, 2);
  const Region into = Near(fetched.span());
  const BlockList back = Must(BlockList::FromPages(to, to, kPage));
  EXPECT_TRUE(EndsOk(Post(Direction::kRead, into, remote.remote(), back, true)));
  EXPECT_TRUE(SameBytes(fetched.Copy(), expected));
}

TEST_P(DeviceTransferTest, MessagesGoFromAndToGpuMemory) {
  Connection& far = *link_.far.connection;
  for (const std::size_t bytes : {0U, 1U, 5000U, 40'000U, 200'000U}) {
    auto source = OnDevice(bytes + 1, 1);
    auto target = OnDevice(bytes + 1, 2, last_device());
    GuardedMemory on_host(bytes, 3);
    const auto from = source.span().first(bytes);
    const auto into = target.span().first(bytes);
    const auto expect_same = [&](const std::vector<std::byte>& sent) {
      const auto got = target.Copy();
      EXPECT_TRUE(
          std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(bytes), sent.begin()))
          << bytes;
      EXPECT_TRUE(target.GuardsIntact());
    };
    // Once with the receive posted first, and once with the message first.
    Operation receive = Must(far.Recv(1, kWholeTag, into));
    EXPECT_TRUE(EndsOk(near().Send(1, from)));
    EXPECT_TRUE(EndsOk(receive));
    expect_same(source.Copy());
    target.Fill(RandomBytes(bytes + 1, 9));
    Operation send = Must(near().Send(2, from));
    EXPECT_TRUE(Works(&link_));
    EXPECT_TRUE(EndsOk(far.Recv(2, kWholeTag, into)));
    EXPECT_TRUE(EndsOk(send));
    expect_same(source.Copy());
    // From host memory; small messages are sent eagerly.
    receive = Must(far.Recv(3, kWholeTag, into));
    EXPECT_TRUE(EndsOk(near().Send(3, on_host.span())));
    EXPECT_TRUE(EndsOk(receive));
    expect_same(on_host.Copy());
    target.Fill(RandomBytes(bytes + 1, 9));
    send = Must(near().Send(4, on_host.span()));
    EXPECT_TRUE(Works(&link_));
    EXPECT_TRUE(EndsOk(far.Recv(4, kWholeTag, into)));
    EXPECT_TRUE(EndsOk(send));
    expect_same(on_host.Copy());
    // And into host memory.
    receive = Must(far.Recv(5, kWholeTag, on_host.span()));
    EXPECT_TRUE(EndsOk(near().Send(5, from)));
    EXPECT_TRUE(EndsOk(receive));
    const auto sent = source.Copy();
    EXPECT_TRUE(std::equal(on_host.span().begin(), on_host.span().end(), sent.begin()));
    EXPECT_TRUE(on_host.GuardsIntact());
  }
  EXPECT_EQ(far.Info().refused_accesses, 0U);
}

TEST_P(DeviceTransferTest, MessagesOfOneTagKeepTheirOrderOnTheirWayIntoGpuMemory) {
  constexpr std::size_t kBytes = 9000;  // some are sent eagerly, some by rendezvous
  constexpr unsigned kMessages = 24;
  Connection& far = *link_.far.connection;
  std::vector<GuardedMemory> sent;
  std::deque<MirroredMemory> got;
  std::deque<GuardedMemory> got_on_host;
  for (unsigned i = 0; i < kMessages; ++i) sent.emplace_back(1 + i * 911 % kBytes, i);
  std::vector<Operation> receives;
  std::vector<Operation> sends;
  for (unsigned i = 0; i < kMessages; ++i) {
    if (i >= kMessages / 2) sends.push_back(Must(near().Send(7, sent[i - kMessages / 2].span())));
    got.emplace_back(api_, 0, kBytes, 100);
    got_on_host.emplace_back(kBytes, 100);
    const auto into = i % 3 == 0 ? got_on_host.back().span() : got.back().span();
    receives.push_back(Must(far.Recv(i % 4 == 0 ? 0 : 7, i % 4 == 0 ? 0 : kWholeTag, into)));
  }
  for (unsigned i = kMessages / 2; i < kMessages; ++i) {
    sends.push_back(Must(near().Send(7, sent[i].span())));
  }
  for (unsigned i = 0; i < kMessages; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(EndsOk(receives[i]));
    ASSERT_TRUE(EndsOk(sends[i]));
    ASSERT_EQ(receives[i].bytes(), sent[i].span().size());
    auto bytes = i % 3 == 0 ? got_on_host[i].Copy() : got[i].Copy();
    bytes.resize(receives[i].bytes());
    EXPECT_EQ(bytes, sent[i].Copy());
  }
}

TEST_P(DeviceTransferTest, WhatHasChangedOnItsWayIsTold) {
  constexpr std::size_t kBytes = 200'000;
  auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", link_.far.endpoint->port()}, 1));
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    const bool writes = direction == Direction::kWrite;
    Connection connection = Must(link_.near.endpoint->Connect(proxy->address().ToString(), Soon()));
    (void)Must(link_.far.endpoint->Accept(Soon()));
    auto here = OnDevice(kBytes, 1);
    auto there = OnDevice(kBytes, 1, last_device());
    MirroredMemory& target = writes ? there : here;
    const auto sent = here.Copy();
    auto before = sent;
    for (std::byte& byte : before) byte ^= std::byte{1};
    target.Fill(before);
    const Region local = Near(here.span());
    const Region remote = Far(there.span());
    const RemoteRegion key = remote.remote();
    std::vector<TransferPart> parts;
    parts.push_back({&local, &key, Whole(kBytes)});
    const auto way = writes ? net::ProxyDirection::kToTarget : net::ProxyDirection::kToClient;
    proxy->CorruptAt(way, proxy->forwarded(way) + 10'000);
    EXPECT_TRUE(EndsWith(
        Code::kCorrupt,
        writes
            ? connection.Write(Must(connection.PrepareWrite(std::move(parts))), {.checksum = true})
            : connection.Read(Must(connection.PrepareRead(std::move(parts))), {.checksum = true})));
    // The GPU sums what it puts in place. Inverted, the byte is in neither of them.
    const auto after = target.Copy();
    std::size_t others = 0;
    for (std::size_t i = 0; i < kBytes; ++i) {
      others += after[i] != sent[i] && after[i] != before[i] ? 1 : 0;
    }
    EXPECT_LE(others, 1U);
    EXPECT_NE(after, sent);
  }
}

TEST_P(DeviceTransferTest, ReceivesThatAreCancelledLeaveTheirMemory) {
  Connection& far = *link_.far.connection;
  for (unsigned round = 0; round < 12; ++round) {
    auto source = OnDevice(200'000, round);
    GuardedMemory small(20'000, 5);
    auto target = OnDevice(200'000, 100, last_device());
    const bool large = round % 3 != 0;
    // A small message that arrives after its receive was cancelled is kept, and must not match the
    // next receive.
    const std::uint64_t tag = 100 + round;
    Operation send = Must(near().Send(tag, large ? source.span() : small.span()));
    if (round % 2 == 0) {
      EXPECT_TRUE(Works(&link_));  // the message waits there
    }
    Operation receive = Must(far.Recv(tag, kWholeTag, target.span()));
    for (unsigned spin = 0; spin < 60 * round; ++spin) (void)receive.Poll();
    receive.Cancel();
    const Status received = receive.Wait(Soon());
    target.Free();
    EXPECT_TRUE(receive.Poll());
    if (!received) {
      EXPECT_EQ(received.error().code(), Code::kCancelled) << received.error().message();
      send.Cancel();
    }
    (void)send.Wait(Soon());
    EXPECT_TRUE(send.Poll());
  }
  EXPECT_TRUE(Works(&link_));
}

TEST_P(DeviceTransferTest, ManyOperationsAtOnceShareTheSlots) {
  constexpr std::size_t kBytes = 40'000;
  constexpr int kOperations = 12;
  std::vector<Connection> connections;
  for (int i = 0; i < 3; ++i) {
    connections.push_back(
        Must(link_.near.endpoint->Connect(link_.far.endpoint->address(), Soon())));
    (void)Must(link_.far.endpoint->Accept(Soon()));
  }
  auto source = OnDevice(kBytes * kOperations, 1);
  auto target = OnDevice(kBytes * kOperations, 2, last_device());
  auto fetched = OnDevice(kBytes * kOperations, 3);
  // The range that is read is not written at the same time.
  auto beside = OnDevice(kBytes * kOperations, 4, last_device());
  const Region local = Near(source.span());
  const Region remote = Far(target.span());
  const Region spare = Far(beside.span());
  const Region into = Near(fetched.span());
  const RemoteRegion key = remote.remote();
  const RemoteRegion spare_key = spare.remote();
  std::vector<Operation> all;
  for (std::size_t i = 0; i < kOperations; ++i) {
    Connection& connection = connections[i % connections.size()];
    all.push_back(Must(connection.Write(local, i * kBytes, key, i * kBytes, kBytes)));
  }
  for (const Operation& operation : all) EXPECT_TRUE(EndsOk(operation));
  EXPECT_TRUE(SameBytes(target.Copy(), source.Copy()));
  all.clear();
  for (std::size_t i = 0; i < kOperations; ++i) {
    Connection& connection = connections[i % connections.size()];
    all.push_back(Must(connection.Read(into, i * kBytes, key, i * kBytes, kBytes)));
    all.push_back(Must(connection.Write(local, i * kBytes, spare_key, i * kBytes, kBytes)));
  }
  for (const Operation& operation : all) EXPECT_TRUE(EndsOk(operation));
  EXPECT_TRUE(SameBytes(fetched.Copy(), source.Copy()));
  EXPECT_TRUE(SameBytes(beside.Copy(), source.Copy()));
}

// Memory freed after the end causes no error; a later copy would lose the device.
TEST_P(DeviceTransferTest, MemoryMayBeFreedWhenACancelledOperationHasEnded) {
  constexpr std::size_t kBytes = 400'000;
  for (unsigned round = 0; round < 8; ++round) {
    auto source = OnDevice(kBytes, round);
    auto target = OnDevice(kBytes, 100, last_device());
    {
      const Region local = Near(source.span());
      const Region remote = Far(target.span());
      const auto direction = round % 2 == 0 ? Direction::kWrite : Direction::kRead;
      Operation operation = Post(direction, local, remote.remote(), Whole(kBytes));
      for (unsigned spin = 0; spin < 100 * round; ++spin) (void)operation.Poll();
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
  auto source = OnDevice(5000, 7);
  auto target = OnDevice(5000, 8, last_device());
  const Region local = Near(source.span());
  const Region remote = Far(target.span());
  EXPECT_TRUE(EndsOk(Post(Direction::kWrite, local, remote.remote(), Whole(5000))));
  EXPECT_TRUE(SameBytes(target.Copy(), source.Copy()));
}

TEST_P(DeviceTransferTest, ARegionThatIsDeregisteredInTheMiddleIsTouchedNoMore) {
  constexpr std::size_t kBytes = 400'000;
  for (unsigned round = 0; round < 6; ++round) {
    auto source = OnDevice(kBytes, 1);
    auto target = OnDevice(kBytes, 2, last_device());
    const Region local = Near(source.span());
    Region remote = Far(target.span());
    const auto direction = round % 2 == 0 ? Direction::kWrite : Direction::kRead;
    Operation operation = Post(direction, local, remote.remote(), Whole(kBytes));
    for (unsigned spin = 0; spin < 50 * round; ++spin) (void)operation.Poll();
    EXPECT_TRUE(remote.Deregister(Soon()));
    target.Free();
    const Status ended = operation.Wait(Soon());
    if (!ended) {
      EXPECT_EQ(ended.error().code(), Code::kRefused) << ended.error().message();
    }
  }
  EXPECT_TRUE(Works(&link_));
}

TEST_P(DeviceTransferTest, LanesThatAreLostLoseNothing) {
  constexpr std::size_t kBytes = 600'000;
  auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", link_.far.endpoint->port()}, 1));
  Connection connection = Must(link_.near.endpoint->Connect(proxy->address().ToString(), Soon()));
  const Connection accepted = Must(link_.far.endpoint->Accept(Soon()));
  // If all lanes are reset the peer is lost.
  const auto reset_one = [&](unsigned which) {
    const Deadline timeout = Soon();
    while (!(AllLanesAreUp(connection) && AllLanesAreUp(accepted)) && !timeout.expired()) {
    }
    proxy->ResetOne(which);
  };
  auto target = OnDevice(kBytes, 2, last_device());
  const Region remote = Far(target.span());
  const RemoteRegion key = remote.remote();
  for (unsigned round = 0; round < 10; ++round) {
    auto source = OnDevice(kBytes, round);
    auto fetched = OnDevice(kBytes, 200);
    const Region local = Near(source.span());
    const Region into = Near(fetched.span());
    Operation write = Must(connection.Write(local, 0, key, 0, kBytes));
    for (unsigned spin = 0; spin < 100 * round; ++spin) (void)write.Poll();
    reset_one(round);
    const Status written = write.Wait(Soon());
    ASSERT_TRUE(written) << written.error().ToString();
    EXPECT_TRUE(SameBytes(target.Copy(), source.Copy())) << round;
    Operation read = Must(connection.Read(into, 0, key, 0, kBytes));
    for (unsigned spin = 0; spin < 100 * round; ++spin) (void)read.Poll();
    reset_one(round + 1);
    const Status fetched_well = read.Wait(Soon());
    ASSERT_TRUE(fetched_well) << fetched_well.error().ToString();
    EXPECT_TRUE(SameBytes(fetched.Copy(), source.Copy())) << round;
  }
}

TEST_P(DeviceTransferTest, SlicesThatNoSlotHoldsAreRefused) {
  constexpr std::size_t kBytes = 9000;
  auto target = OnDevice(kBytes, 2, last_device());
  const Region remote = Far(target.span());
  GuardedMemory source(kBytes, 1);
  Config large = config_;
  large.slice_bytes = 64 * 1024;
  Endpoint other = Must(Endpoint::Create(large));
  Connection connection = Must(other.Connect(link_.far.endpoint->address(), Soon()));
  const Region local = Must(other.Register(source.span(), Rights::kNone));
  RemoteRegion key = remote.remote();
  EXPECT_EQ(key.most_slice(), 4096U);
  key.most_slice_log2 = 0;
  const Operation write = Must(connection.Write(local, 0, key, 0, kBytes));
  EXPECT_TRUE(EndsWith(Code::kUnsupported, write));
  EXPECT_THAT(EndMessage(write), ::testing::HasSubstr("exceeds the limit of 4096 bytes"));
  EXPECT_TRUE(EndsWith(Code::kUnsupported, connection.Read(local, 0, key, 0, kBytes)));
  EXPECT_TRUE(EndsOk(connection.Write(local, 0, remote.remote(), 0, kBytes)));
  EXPECT_TRUE(SameBytes(target.Copy(), source.Copy()));
}

TEST_P(DeviceTransferTest, MemoryThatWasFreedOrEndsSoonerIsNotRegistered) {
  auto memory = OnDevice(1000, 1);
  const auto beyond =
      link_.near.endpoint->Register({memory.span().data(), 100'000'000}, Rights::kNone);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(beyond.error().message(), ::testing::HasSubstr("exceed their allocation"));
}

INSTANTIATE_TEST_SUITE_P(Simulated, DeviceTransferTest, ::testing::ValuesIn(kSimulatedDevices),
                         DevicesCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceTransferTest, ::testing::Values(kRealDevices), DevicesCaseName);

// ---- mistakes that the simulated devices detect -------------------------------------------------

// A stager whose GPU is stuck, and one slot that is being copied into memory.
class MistakeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    devices_ = Must(cuda::SimulatedDevices::Create({}));
    stager_ = Must(Stager::Create(devices_.get(), 0, {.slot_bytes = kBytes, .slots = 8}));
    memory_.emplace(devices_.get(), 0, kBytes, 1);
    devices_->Pause();
    copy_->slot = *stager_->Take(StageWay::kFromNetwork, [](const StageSlot&) {});
    std::fill(copy_->slot.memory().begin(), copy_->slot.memory().end(), std::byte{7});
    const Block block{.dst = cuda::AddressOf(memory_->span().data()), .src = 0, .len = kBytes};
    BeginScatter(stager_.get(), copy_, {&block, 1}, [] {});
    const Deadline limit = Soon();
    while (stager_->Counters(StageWay::kFromNetwork).launches == 0) {
      ASSERT_FALSE(limit.expired());
      std::this_thread::yield();
    }
  }

  static constexpr std::size_t kBytes = 8192;
  std::unique_ptr<cuda::SimulatedDevices> devices_;
  std::unique_ptr<Stager> stager_;
  std::optional<MirroredMemory> memory_;
  std::shared_ptr<StagedCopy> copy_ = std::make_shared<StagedCopy>();  // shared with the stager
};

TEST_F(MistakeTest, ASlotThatIsUsedAgainTooSoonShowsInTheBytes) {
  std::fill(copy_->slot.memory().begin(), copy_->slot.memory().end(), std::byte{8});
  devices_->Resume();
  ASSERT_TRUE(AwaitStagedCopy(*copy_));
  EXPECT_NE(memory_->Copy(), std::vector(kBytes, std::byte{7}));
}

TEST_F(MistakeTest, MemoryThatIsFreedTooSoonLosesTheDevice) {
  memory_->Free();  // as the caller of Deregister may do
  devices_->Resume();
  ASSERT_TRUE(AwaitStagedCopy(*copy_));
  ASSERT_FALSE(copy_->outcome);
  EXPECT_EQ(copy_->outcome.error().code(), Code::kDeviceLost);
}

TEST_F(MistakeTest, WithoutOneAllIsWell) {
  devices_->Resume();
  ASSERT_TRUE(AwaitStagedCopy(*copy_));
  EXPECT_TRUE(copy_->outcome);
  EXPECT_TRUE(SameBytes(memory_->Copy(), std::vector(kBytes, std::byte{7})));
}

// ---- a GPU that fails ---------------------------------------------------------------------------

TEST(LostDeviceTest, ItsOperationsEndAndHostTransfersGoOn) {
  const Config config = WithDevices("simulated:2:991");
  auto* const devices = dynamic_cast<cuda::SimulatedDevices*>(Must(cuda::OpenDevices(config)));
  ASSERT_NE(devices, nullptr);
  Link link = MakeLink(config);
  MirroredMemory source(devices, 0, 300'000, 1);
  MirroredMemory target(devices, 1, 300'000, 2);
  const Region local = Must(link.near.endpoint->Register(source.span(), Rights::kNone));
  const Region remote = Must(link.far.endpoint->Register(target.span(), Rights::kReadWrite));
  const RemoteRegion key = remote.remote();
  Connection& near = *link.near.connection;
  devices->Inject({.ordinal = 0,
                   .at = cuda::FaultPoint::kLaunch,
                   .fault = cuda::Fault::kIllegalAddress,
                   .skip = 3});
  const Operation first = Must(near.Write(local, 0, key, 0, 300'000));
  EXPECT_TRUE(EndsWith(Code::kDeviceLost, first));
  EXPECT_TRUE(EndsWith(Code::kDeviceLost, near.Write(local, 0, key, 0, 300'000)));
  EXPECT_TRUE(EndsWith(Code::kDeviceLost, near.Read(local, 0, key, 0, 300'000)));
  EXPECT_TRUE(Works(&link));
  GuardedMemory on_host(300'000, 5);
  const Region host = Must(link.near.endpoint->Register(on_host.span(), Rights::kNone));
  EXPECT_TRUE(EndsOk(near.Write(host, 0, key, 0, 300'000)));
  EXPECT_TRUE(SameBytes(target.Copy(), on_host.Copy()));
  // Then the other device, which belongs to the peer.
  devices->Inject(
      {.ordinal = 1, .at = cuda::FaultPoint::kLaunch, .fault = cuda::Fault::kIllegalAddress});
  const Operation second = Must(near.Write(host, 0, key, 0, 300'000));
  EXPECT_TRUE(EndsWith(Code::kDeviceLost, second));
  EXPECT_TRUE(EndsWith(Code::kDeviceLost, near.Read(host, 0, key, 0, 300'000)));
  EXPECT_TRUE(Works(&link));
}

}  // namespace
}  // namespace ferry::transfer
