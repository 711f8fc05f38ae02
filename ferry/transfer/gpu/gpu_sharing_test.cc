// Tests copies between GPUs of one machine in place of the network.
#include "ferry/transfer/gpu/gpu_sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/net/testing/fault_proxy.h"
#include "ferry/transfer/gpu/stager.h"
#include "ferry/transfer/testing/device_mirror.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Copies between GPUs in place of the network. Both endpoints are in this process; the memory is
// mapped as if they were in two. tests/cli/cli_test.cc runs two processes.
namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kSharingBytes = 300'001;

BlockList Whole(std::uint64_t bytes) {
  BlockList list;
  list.Add({.dst = 0, .src = 0, .len = bytes});
  return list;
}

Config TwoGpus(const char* devices = "simulated:2:77") {
  Config config = SmallSlices();
  EXPECT_TRUE(config.Set("devices", devices)) << devices;
  config.stage_slice_bytes = 4096;
  config.stage_bytes = 64 * 1024;
  // Long enough that no answer of a peer is late, however busy the machine.
  config.drain_grace = std::chrono::seconds(20);
  return config;
}

class GpuSharingTest : public ::testing::Test {
 protected:
  explicit GpuSharingTest(Config config = TwoGpus()) : config_(std::move(config)) {
    api_ = Must(cuda::OpenDevices(config_));
    link_ = MakeLink(config_);
    source_.emplace(api_, 0, kSharingBytes, 1);
    target_.emplace(api_, 1, kSharingBytes, 2);
    local_.emplace(Near(source_->span()));
    remote_.emplace(Far(target_->span()));
  }

  Connection& near() { return *link_.near.connection; }
  Region Near(std::span<std::byte> memory, Rights rights = Rights::kNone) {
    return Must(link_.near.endpoint->Register(memory, rights));
  }
  Region Far(std::span<std::byte> memory, Rights rights = Rights::kReadWrite) {
    return Must(link_.far.endpoint->Register(memory, rights));
  }
  PreparedTransfer Prepare(Direction direction, const Region& local, const RemoteRegion& remote,
                           BlockList blocks) {
    std::vector<TransferPart> parts;
    parts.push_back({&local, &remote, std::move(blocks)});
    return Must(direction == Direction::kWrite ? near().PrepareWrite(std::move(parts))
                                               : near().PrepareRead(std::move(parts)));
  }
  PreparedTransfer Prepare(Direction direction) {
    return Prepare(direction, *local_, remote_->remote(), Whole(kSharingBytes));
  }
  Operation Post(const PreparedTransfer& transfer) {
    return Must(transfer.direction() == Direction::kWrite ? near().Write(transfer)
                                                          : near().Read(transfer));
  }
  // Writes all of it over one of the two paths, and checks it.
  void ExpectWrites(unsigned seed) {
    source_->Fill(RandomBytes(kSharingBytes, seed));
    EXPECT_TRUE(EndsOk(Post(Prepare(Direction::kWrite))));
    EXPECT_TRUE(SameBytes(target_->Copy(), RandomBytes(kSharingBytes, seed)));
    EXPECT_TRUE(target_->GuardsIntact());
  }
  std::uint64_t PayloadSent() {
    std::uint64_t bytes = 0;
    for (const auto& lane : near().Counters().lanes) bytes += lane.traffic.payload_bytes_sent;
    return bytes;
  }

  Config config_;
  cuda::DeviceApi* api_ = nullptr;
  Link link_;
  std::optional<MirroredMemory> source_;
  std::optional<MirroredMemory> target_;
  std::optional<Region> local_;
  std::optional<Region> remote_;
};

TEST_F(GpuSharingTest, WritesAndReadsBetweenGpusAreCopiesAndSaySo) {
  const PreparedTransfer write = Prepare(Direction::kWrite);
  EXPECT_EQ(write.path().path, Path::kGpuCopy);
  EXPECT_THAT(write.path().why, HasSubstr("both GPUs are on this machine"));
  Operation written = Post(write);
  EXPECT_EQ(written.path().path, Path::kGpuCopy);
  EXPECT_TRUE(EndsOk(written));
  EXPECT_EQ(written.bytes(), kSharingBytes);
  EXPECT_TRUE(SameBytes(target_->Copy(), source_->Copy()));
  EXPECT_TRUE(target_->GuardsIntact());

  target_->Fill(RandomBytes(kSharingBytes, 5));
  EXPECT_TRUE(EndsOk(Post(Prepare(Direction::kRead))));
  EXPECT_TRUE(SameBytes(source_->Copy(), RandomBytes(kSharingBytes, 5)));
  EXPECT_TRUE(source_->GuardsIntact());
  EXPECT_EQ(PayloadSent(), 0u) << "nothing went through a socket";
}

TEST_F(GpuSharingTest, ScatteredBlocksGoWhereTheyBelong) {
  std::mt19937 random(7);
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    const auto before = RandomBytes(kSharingBytes, 11);
    MirroredMemory& from = direction == Direction::kWrite ? *source_ : *target_;
    MirroredMemory& to = direction == Direction::kWrite ? *target_ : *source_;
    const auto content = RandomBytes(kSharingBytes, 12);
    from.Fill(content);
    to.Fill(before);
    std::vector<std::byte> expected = before;
    BlockList blocks;
    std::uint64_t at = 0;
    while (at + 200 < kSharingBytes) {
      const std::uint64_t length = 1 + random() % 97;
      const std::uint64_t src = random() % (kSharingBytes - length);
      blocks.Add({.dst = at, .src = src, .len = length});
      std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(src), length,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
      at += length + random() % 50;
    }
    EXPECT_TRUE(EndsOk(Post(Prepare(direction, *local_, remote_->remote(), blocks))));
    EXPECT_TRUE(SameBytes(to.Copy(), expected));
    EXPECT_TRUE(to.GuardsIntact());
  }
}

TEST_F(GpuSharingTest, ANotificationComesAfterTheBytes) {
  const auto words = BytesOf("it is there");
  Operation write = Must(near().Write(Prepare(Direction::kWrite), {.notification = words}));
  EXPECT_EQ(TextOf(Must(link_.far.connection->TakeNotification(Soon()))), "it is there");
  EXPECT_TRUE(SameBytes(target_->Copy(), source_->Copy()));
  EXPECT_TRUE(EndsOk(write));
}

TEST_F(GpuSharingTest, PartsGoTheirOwnWays) {
  GuardedMemory host(kSharingBytes, 3);
  GuardedMemory host_target(kSharingBytes, 4);
  const Region local_host = Near(host.span());
  const Region remote_host = Far(host_target.span());
  const RemoteRegion keys[] = {remote_->remote(), remote_host.remote()};
  std::vector<TransferPart> parts;
  parts.push_back({&*local_, &keys[0], Whole(kSharingBytes)});
  parts.push_back({&local_host, &keys[1], Whole(kSharingBytes)});
  const PreparedTransfer both = Must(near().PrepareWrite(std::move(parts)));
  EXPECT_EQ(both.path().path, Path::kBoth);
  EXPECT_TRUE(EndsOk(Post(both)));
  EXPECT_TRUE(SameBytes(target_->Copy(), source_->Copy()));
  EXPECT_TRUE(SameBytes(host_target.Copy(), host.Copy()));
  const PreparedTransfer half = Prepare(Direction::kWrite, local_host, remote_->remote(), Whole(9));
  EXPECT_EQ(half.path().path, Path::kNetwork);
  EXPECT_THAT(half.path().why, HasSubstr("here is host memory"));
}

TEST_F(GpuSharingTest, RightsAndBoundsAreThoseOfTheRegionsOwner) {
  auto key = remote_->remote();
  key.length = 2 * kSharingBytes;
  auto twice = MirroredMemory(api_, 0, 2 * kSharingBytes, 3);
  const Region local = Near(twice.span());
  EXPECT_TRUE(EndsWith(Code::kRefused,
                       Post(Prepare(Direction::kWrite, local, key, Whole(kSharingBytes + 1)))));
  MirroredMemory ten(api_, 1, 10, 1);
  const Region readable = Far(ten.span(), Rights::kRead);
  auto lie = readable.remote();
  lie.rights = Rights::kReadWrite;
  EXPECT_TRUE(EndsWith(Code::kRefused, Post(Prepare(Direction::kWrite, *local_, lie, Whole(10)))));
  EXPECT_TRUE(SameBytes(target_->Copy(), RandomBytes(kSharingBytes, 2)));
  EXPECT_TRUE(Works(&link_));
}

TEST_F(GpuSharingTest, DeregisteringTakesTheMemoryBackFirst) {
  ExpectWrites(3);
  EXPECT_TRUE(local_->Deregister(Soon()));
  source_->Free();
  source_.emplace(api_, 0, kSharingBytes, 4);
  local_.emplace(Near(source_->span()));
  ExpectWrites(5);
  EXPECT_TRUE(remote_->Deregister(Soon()));
  EXPECT_TRUE(EndsWith(Code::kRefused, Post(Prepare(Direction::kWrite))));
}

TEST_F(GpuSharingTest, DeregisteringWaitsForOperations) {
  for (int round = 0; round < 20; ++round) {
    const PreparedTransfer write = Prepare(Direction::kWrite);
    Operation operation = Post(write);
    EXPECT_TRUE(local_->Deregister(Soon()));
    EXPECT_TRUE(EndsOk(operation));
    EXPECT_TRUE(SameBytes(target_->Copy(), source_->Copy()));
    local_.emplace(Near(source_->span()));
    source_->Fill(RandomBytes(kSharingBytes, static_cast<unsigned>(round)));
  }
}

TEST_F(GpuSharingTest, APostThatIsRefusedDoesNotKeepTheMemory) {
  Config few = config_;
  few.max_operations = 1;
  link_ = MakeLink(few, config_);
  local_.emplace(Near(source_->span()));
  remote_.emplace(Far(target_->span()));
  const PreparedTransfer write = Prepare(Direction::kWrite);
  std::vector<std::byte> buffer(1);
  Operation waits = Must(near().Recv(1, kWholeTag, buffer));
  for (int i = 0; i < 3; ++i) {
    const auto refused = near().Write(write);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  }
  EXPECT_TRUE(local_->Deregister(Soon()));
  EXPECT_FALSE(near().lost());
  waits.Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, waits));
}

TEST_F(GpuSharingTest, APreparedTransferGoesOnOverAnotherConnection) {
  const PreparedTransfer write = Prepare(Direction::kWrite);
  Connection second = Must(link_.near.endpoint->Connect(link_.far.endpoint->address(), Soon()));
  Operation operation = Must(second.Write(write));
  EXPECT_EQ(operation.path().path, Path::kGpuCopy);
  EXPECT_TRUE(EndsOk(operation));
  EXPECT_TRUE(SameBytes(target_->Copy(), source_->Copy()));
  near().Close();
  EXPECT_TRUE(EndsOk(Must(second.Write(write))));
}

// Its endpoint would take it back only from its own connections.
TEST_F(GpuSharingTest, ARegionOfAnotherEndpointGoesOverTheNetwork) {
  ExpectWrites(3);
  Endpoint other = Must(Endpoint::Create(config_));
  MirroredMemory memory(api_, 0, kSharingBytes, 42);
  Region theirs = Must(other.Register(memory.span(), Rights::kNone));
  const PreparedTransfer write =
      Prepare(Direction::kWrite, theirs, remote_->remote(), Whole(kSharingBytes));
  EXPECT_THAT(write.path().why, HasSubstr("another endpoint"));
  EXPECT_TRUE(EndsOk(Post(write)));
  EXPECT_TRUE(SameBytes(target_->Copy(), RandomBytes(kSharingBytes, 42)));
  EXPECT_TRUE(theirs.Deregister(Soon()));
}

TEST_F(GpuSharingTest, WhatIsCopiedStaysUntilTheCopyIsOver) {
  auto* const devices = dynamic_cast<cuda::SimulatedDevices*>(api_);
  ASSERT_NE(devices, nullptr);
  const PreparedTransfer write = Prepare(Direction::kWrite);
  EXPECT_TRUE(EndsOk(Post(write)));
  devices->Pause();
  Operation operation = Post(write);
  EXPECT_FALSE(local_->Deregister(Deadline::After(milliseconds(200))));
  EXPECT_FALSE(near().lost());
  devices->Resume();
  EXPECT_TRUE(local_->Deregister(Soon()));
  EXPECT_TRUE(EndsOk(operation));
  EXPECT_FALSE(near().lost());
}

TEST_F(GpuSharingTest, ACancelAmongManyCopiesKeepsTheConnection) {
  const PreparedTransfer write = Prepare(Direction::kWrite);
  std::vector<Operation> operations;
  for (int i = 0; i < 300; ++i) operations.push_back(Post(write));
  operations[150].Cancel();
  for (Operation& operation : operations) (void)operation.Wait(Soon());
  EXPECT_FALSE(near().lost());
  EXPECT_TRUE(Works(&link_));
}

TEST_F(GpuSharingTest, ClosingInTheMiddleEndsWhatIsInFlight) {
  Config hasty = config_;
  hasty.drain_grace = milliseconds(300);
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    link_ = MakeLink(hasty);
    const Region local = Near(source_->span());
    const Region remote = Far(target_->span());
    const auto transfer = Prepare(direction, local, remote.remote(), Whole(kSharingBytes));
    std::vector<Operation> operations;
    for (int i = 0; i < 50; ++i) operations.push_back(Post(transfer));
    link_.far.connection.reset();
    link_.far.endpoint.reset();
    for (Operation& operation : operations) {
      const Status status = operation.Wait(Soon());
      EXPECT_TRUE(status || status.error().code() == Code::kPeerLost) << status.error().ToString();
    }
    const auto last = source_->Copy();
    EXPECT_TRUE(SameBytes(source_->Copy(), last));
  }
}

TEST_F(GpuSharingTest, ManyOperationsAtOnceAllArrive) {
  std::vector<Operation> operations;
  const PreparedTransfer write = Prepare(Direction::kWrite);
  const PreparedTransfer read = Prepare(Direction::kRead);
  for (int i = 0; i < 3000; ++i) {
    BlockList one;
    const auto at = static_cast<std::uint64_t>(i) * 100;
    one.Add({.dst = at, .src = at, .len = 100});
    operations.push_back(Post(Prepare(Direction::kWrite, *local_, remote_->remote(), one)));
  }
  for (Operation& operation : operations) EXPECT_TRUE(EndsOk(operation));
  const auto there = target_->Copy();
  const auto here = source_->Copy();
  EXPECT_TRUE(std::equal(there.begin(), there.begin() + 300'000, here.begin()));
}

class LostGpuTest : public GpuSharingTest {
 protected:
  LostGpuTest() : GpuSharingTest(TwoGpus("simulated:2:78")) {}
};

TEST_F(LostGpuTest, EndsItsOperationsAndNoOthers) {
  auto* const devices = dynamic_cast<cuda::SimulatedDevices*>(api_);
  ASSERT_NE(devices, nullptr);
  const PreparedTransfer write = Prepare(Direction::kWrite);
  EXPECT_TRUE(EndsOk(Post(write)));
  devices->Inject(
      {.ordinal = 1, .at = cuda::FaultPoint::kLaunch, .fault = cuda::Fault::kIllegalAddress});
  EXPECT_TRUE(EndsWith(Code::kDeviceLost, Post(write)));
  EXPECT_TRUE(EndsWith(Code::kDeviceLost, Post(write)));
  EXPECT_TRUE(Works(&link_));
}

// ---- where it cannot be used --------------------------------------------------------------------

TEST_F(GpuSharingTest, EitherSideCanKeepItToTheNetwork) {
  for (const bool near_off : {true, false}) {
    Config off = config_;
    off.cuda_ipc = AutoOff::kOff;
    link_ = MakeLink(near_off ? off : config_, near_off ? config_ : off);
    local_.emplace(Near(source_->span()));
    remote_.emplace(Far(target_->span()));
    const PreparedTransfer write = Prepare(Direction::kWrite);
    EXPECT_EQ(write.path().path, Path::kNetwork);
    EXPECT_THAT(write.path().why, HasSubstr("FERRY_CUDA_IPC=off"));
    ExpectWrites(near_off ? 21 : 22);
  }
}

TEST_F(GpuSharingTest, MemoryThatCannotBeMappedGoesOverTheNetwork) {
  auto* const devices = dynamic_cast<cuda::SimulatedDevices*>(api_);
  ASSERT_NE(devices, nullptr);
  devices->Inject({.ordinal = 1,
                   .at = cuda::FaultPoint::kPeerAccess,
                   .fault = cuda::Fault::kPeerAccessUnsupported});
  const PreparedTransfer write = Prepare(Direction::kWrite);
  EXPECT_EQ(write.path().path, Path::kNetwork);
  EXPECT_THAT(write.path().why, HasSubstr("cudaErrorPeerAccessUnsupported"));
  ExpectWrites(31);
}

// ---- a dishonest peer ---------------------------------------------------------------------------

class HostileSharingTest : public ::testing::Test {
 protected:
  ~HostileSharingTest() override {
    to_proved_.Close();  // its peer takes memory and gives none back
    EXPECT_TRUE(SameBytes(target_.Copy(), RandomBytes(kSharingBytes, 2)));
    EXPECT_TRUE(target_.GuardsIntact());
    EXPECT_TRUE(Works(&link_));
  }

  static Saying Of(wire::Type type, std::vector<std::byte> body) {
    return {.type = type, .operation = 7, .body = std::move(body)};
  }
  Saying Copy(const std::vector<wire::CopyOnWire>& blocks, std::uint32_t share = 1) {
    auto body = Pod(wire::CopyBody{.key = region_.remote().key,
                                   .blocks = static_cast<std::uint32_t>(blocks.size()),
                                   .share = share,
                                   .into = 1});
    for (const auto& block : blocks) wire::Append(&body, block);
    return Of(wire::Type::kCopy, std::move(body));
  }
  // Claims to be memory of another process.
  static wire::ShareBody SomeShare() {
    wire::ShareBody body;
    body.share = 1;
    body.allocation = body.bytes = 4096;
    return body;
  }
  void ExpectClosed(const Saying& saying, const std::string& words) {
    ASSERT_TRUE(peer_.lane().Say(saying));
    peer_.lane().WaitClosed();
    const auto end = theirs_.TakeNotification(Soon());
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kCorrupt) << end.error().ToString();
    EXPECT_THAT(end.error().message(), HasSubstr(words));
  }

  // Writes 16 bytes of our memory to "GPU memory" of the peer, which may answer the share of it in
  // between.
  template <class Talk>
  void WriteFrom(const Region& mine, Connection& theirs, const RawPeer& peer, Talk talk) {
    RemoteRegion lie;
    lie.endpoint = peer.id();
    lie.key = {1, 1, 1};
    lie.rights = Rights::kReadWrite;
    lie.length = 4096;
    lie.gpu = 1;
    // On another thread, because it waits for the answer.
    auto write = std::async(std::launch::async, [&] { return theirs.Write(mine, 0, lie, 0, 16); });
    talk();
    (void)write.get();
  }
  // The share of our memory that the peer gets; says that it was mapped, which keeps it alive.
  wire::ShareBody ShareOf(const Region& mine, Connection& theirs, RawPeer* peer) {
    wire::ShareBody share;
    WriteFrom(mine, theirs, *peer, [&] {
      share = peer->lane().Expect(wire::Type::kShare).Body<wire::ShareBody>();
      peer->lane().Say(Of(wire::Type::kShared, Pod(wire::RefuseBody{.sequence = share.share})));
    });
    (void)peer->lane().Expect(wire::Type::kCopy);
    return share;
  }
  // The peer says that our own memory is its, and that is not believed.
  void ExpectDeclined(RawPeer* peer, wire::ShareBody share, const std::string& why) {
    share.share = 9;
    share.gpu = 0;
    ASSERT_TRUE(peer->lane().Say(Of(wire::Type::kShare, Pod(share))));
    const RawFrame answer = peer->lane().Expect(wire::Type::kShared);
    EXPECT_NE(answer.Body<wire::RefuseBody>().code, 0);
    EXPECT_THAT(answer.Text<wire::RefuseBody>(), HasSubstr(why));
    ASSERT_TRUE(peer->lane().Say(Copy({{0, 0, 1000}}, share.share)));
    EXPECT_THAT(peer->lane().Expect(wire::Type::kNack).Text<wire::RefuseBody>(),
                HasSubstr("share 9 is not mapped"));
  }

  const Config config_ = TwoGpus();
  cuda::DeviceApi* const api_ = Must(cuda::OpenDevices(config_));
  Link link_ = MakeLink(config_);
  MirroredMemory target_{api_, 0, kSharingBytes, 2};
  Region region_ = Must(link_.far.endpoint->Register(target_.span(), Rights::kReadWrite));
  RawPeer peer_{link_.far.endpoint->port()};
  Connection theirs_ = Must(link_.far.endpoint->Accept(Soon()));
  // A peer that is a process of ours, and hostile all the same.
  RawPeer proved_{link_.far.endpoint->port(), 1, 64 * 1024, /*proved=*/true};
  Connection to_proved_ = Must(link_.far.endpoint->Accept(Soon()));
  MirroredMemory own_{api_, 0, 8192, 3};
  std::optional<Region> mine_ = Must(link_.far.endpoint->Register(own_.span(), Rights::kNone));
};

TEST_F(HostileSharingTest, OurOwnMemoryIsNoMemoryOfThePeerThatWasToldOfIt) {
  ExpectDeclined(&proved_, ShareOf(*mine_, to_proved_, &proved_), "has shared over it");
}

TEST_F(HostileSharingTest, OurOwnMemoryIsNoMemoryOfThePeersSecondConnection) {
  const wire::ShareBody share = ShareOf(*mine_, to_proved_, &proved_);
  RawPeer second(link_.far.endpoint->port(), 1, 64 * 1024, /*proved=*/true);
  ExpectDeclined(&second, share, "has shared over it");
}

// The other endpoint of this process has been told of it by nobody.
TEST_F(HostileSharingTest, MemoryOfAnotherEndpointIsNoMemoryOfThePeer) {
  const wire::ShareBody share = ShareOf(*mine_, to_proved_, &proved_);
  MirroredMemory memory(api_, 0, kSharingBytes, 5);
  const Region region = Must(link_.near.endpoint->Register(memory.span(), Rights::kReadWrite));
  RawPeer second(link_.near.endpoint->port(), 1, 64 * 1024, /*proved=*/true);
  wire::ShareBody told = share;
  told.share = 9;
  told.gpu = 0;
  ASSERT_TRUE(second.lane().Say(Of(wire::Type::kShare, Pod(told))));
  EXPECT_NE(second.lane().Expect(wire::Type::kShared).Body<wire::RefuseBody>().code, 0);
}

TEST_F(HostileSharingTest, MemoryThatWasTakenBackIsDeclined) {
  const wire::ShareBody share = ShareOf(*mine_, to_proved_, &proved_);
  ASSERT_TRUE(proved_.lane().AckAll());  // the copy is done
  auto gone = std::async(std::launch::async, [&] { return mine_->Deregister(Soon()); });
  const auto taken = proved_.lane().Expect(wire::Type::kUnshare).Body<wire::SliceBody>();
  ASSERT_TRUE(proved_.lane().Say(Of(wire::Type::kUnshared, Pod(taken))));
  EXPECT_TRUE(gone.get());
  ExpectDeclined(&proved_, share, "has shared over it");
}

// The handle of a whole allocation would open it for everybody whom the peer tells.
TEST_F(HostileSharingTest, NothingIsSharedWithAPeerThatIsNotProvedToBeOurs) {
  WriteFrom(*mine_, theirs_, peer_,
            [&] { EXPECT_EQ(peer_.lane().Receive()->header.type, wire::Type::kWrite); });
  ASSERT_TRUE(peer_.lane().AckAll());
}

TEST_F(HostileSharingTest, AHandleFromAPeerThatIsNotProvedToBeOursIsDeclined) {
  wire::ShareBody share = ShareOf(*mine_, to_proved_, &proved_);
  const Uuid unknown = Uuid::Random();
  std::memcpy(share.token, unknown.bytes.data(), sizeof share.token);
  ExpectDeclined(&peer_, share, "not proved");
}

TEST_F(HostileSharingTest, ACopyOfWhatIsNotSharedIsRefused) {
  ASSERT_TRUE(peer_.lane().Say(Copy({{0, 0, 10}})));
  const RawFrame nack = peer_.lane().Expect(wire::Type::kNack);
  EXPECT_THAT(nack.Text<wire::RefuseBody>(), HasSubstr("share 1 is not mapped"));
  ASSERT_TRUE(peer_.lane().WaitAcked(1));
}

TEST_F(HostileSharingTest, AShareOfAnotherMachineOrThatCannotBeMappedIsDeclined) {
  ASSERT_TRUE(peer_.lane().Say(Of(wire::Type::kShare, Pod(SomeShare()))));
  const RawFrame answer = peer_.lane().Expect(wire::Type::kShared);
  EXPECT_NE(answer.Body<wire::RefuseBody>().code, 0);
  EXPECT_THAT(answer.Text<wire::RefuseBody>(), HasSubstr("another machine"));
}

TEST_F(HostileSharingTest, ACopyWithoutBlocksEndsTheConnection) {
  ExpectClosed(Copy({}), "malformed frame (copy)");
}

TEST_F(HostileSharingTest, ACopyOfFewerBlocksThanItSaysEndsTheConnection) {
  auto copy = Copy({{0, 0, 10}});
  copy.body.resize(copy.body.size() - 8);
  ExpectClosed(copy, "malformed frame (copy)");
}

TEST_F(HostileSharingTest, ASharedPieceBeyondItsAllocationEndsTheConnection) {
  auto body = SomeShare();
  body.offset = ~std::uint64_t{0} - 100;
  ExpectClosed(Of(wire::Type::kShare, Pod(body)), "malformed frame (share)");
}

TEST_F(HostileSharingTest, AShareOfNothingEndsTheConnection) {
  auto body = SomeShare();
  body.bytes = 0;
  ExpectClosed(Of(wire::Type::kShare, Pod(body)), "malformed frame (share)");
}

TEST_F(HostileSharingTest, AnAnswerToWhatWasNotSharedEndsTheConnection) {
  ExpectClosed(Of(wire::Type::kShared, Pod(wire::RefuseBody{})), "was not shared");
}

TEST_F(HostileSharingTest, TakingBackWhatWasNotSharedEndsTheConnection) {
  ExpectClosed(Of(wire::Type::kUnshare, Pod(wire::SliceBody{3, 0})), "was not shared");
}

TEST_F(HostileSharingTest, LettingGoOfWhatWasNotTakenBackEndsTheConnection) {
  ExpectClosed(Of(wire::Type::kUnshared, Pod(wire::SliceBody{3, 0})), "was not taken back");
}

}  // namespace
}  // namespace ferry::transfer
