// Lanes over plugins whose payloads are memory of a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/testing/lane_end.h"
#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/tests/testing/nccl_plugin_file.h"
#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/device_mirror.h"

namespace ferry::tcpx {
namespace {

using net::Address;
using net::Closing;
using net::CutInto;
using net::Destroy;
using net::kTimeout;
using net::Lane;
using net::LaneEnd;
using net::LaneLoss;
using net::Placement;
using net::Tally;
using net::TestFrame;
using net::TestHost;
using testing::StandIn;
using testing::Variables;
using transfer::MirroredMemory;
using transfer::Must;

// GPU memory that network cards reach.
constexpr const char* kSimulatedGpu = "simulated:1:1:open";

struct GpuCase {
  const char* name;
  bool straight;  // the library's own plugin, which receives into host memory; else the stand-in
  Variables variables;
  const char* devices = kSimulatedGpu;
};
void PrintTo(const GpuCase& one, std::ostream* out) { *out << one.name; }

// Two ends of a lane, and GPU memory.
class GpuLanes : public ::testing::TestWithParam<GpuCase> {
 protected:
  void SetUp() override { Open(GetParam().devices); }
  void Open(const std::string& devices, Variables variables = {}) {
    Config config;
    EXPECT_TRUE(config.Set("devices", devices));
    const auto api = cuda::OpenDevices(config);
    if (!api) GTEST_SKIP() << api.error().message();
    api_ = *api;
    variables.insert(variables.end(), GetParam().variables.begin(), GetParam().variables.end());
    standin_ = std::make_unique<StandIn>(variables);
    if (GetParam().straight) {
      config.provider = "plugin:" + testing::NcclPluginFile();
    } else {
      (void)Must(standin_->Open());
      config.provider = "plugin:" + standin_->path();
    }
    near_host_ =
        std::make_unique<TestHost>(Must(CreateProvider(config, net::tcp::CreateProvider())));
    far_host_ =
        std::make_unique<TestHost>(Must(CreateProvider(config, net::tcp::CreateProvider())));
    address_ = Must(far_host_->Listen({"127.0.0.1", 0}, {}));
    ConnectLane();
  }
  void ConnectLane() {
    near_ = std::make_unique<LaneEnd>(Must(near_host_->Connect(address_, {})), near_host_->loop());
    far_ = std::make_unique<LaneEnd>(far_host_->Accept(), far_host_->loop());
  }
  void TearDown() override {
    if (api_ == nullptr) return;
    Destroy(&near_);
    Destroy(&far_);
    near_host_.reset();
    far_host_.reset();
    if (standin_ != nullptr && !GetParam().straight) {
      EXPECT_EQ(standin_->Misuse(), "");
    }
  }

  bool is_simulated() const { return GetParam().devices == kSimulatedGpu; }
  cuda::SimulatedDevices& simulated() { return dynamic_cast<cuda::SimulatedDevices&>(*api_); }

  // The far end receives into these pieces of GPU memory.
  void ReceiveInto(std::vector<iovec> pieces) {
    pieces_ = std::move(pieces);
    far_->on_frame = [this](const std::string&, std::uint64_t bytes) -> LaneEnd::Choice {
      Placement placement;
      if (bytes == 0) return placement;
      placement.memory = pieces_;
      placement.gpu = true;
      return placement;
    };
    far_->on_payload = [this] {
      arrived_.Add();
      return Ok();
    };
  }
  // Waits until the GPU has been given copies of a payload.
  void AwaitLaunch(std::uint64_t before, std::uint64_t count = 1) {
    const Deadline deadline = Deadline::After(kTimeout);
    while (simulated().counters().launches < before + count && !deadline.expired()) {
      std::this_thread::yield();
    }
  }

  cuda::DeviceApi* api_ = nullptr;
  std::unique_ptr<StandIn> standin_;
  std::unique_ptr<TestHost> near_host_;
  std::unique_ptr<TestHost> far_host_;
  Address address_;
  Tally arrived_;
  std::vector<iovec> pieces_;
  std::unique_ptr<LaneEnd> near_;
  std::unique_ptr<LaneEnd> far_;
};

// Pieces of at most `piece` bytes, the last of the memory first.
std::vector<iovec> Backwards(std::span<std::byte> memory, std::size_t piece) {
  std::vector<iovec> pieces;
  while (!memory.empty()) {
    const std::size_t bytes = std::min(piece, memory.size());
    pieces.push_back({memory.data() + memory.size() - bytes, bytes});
    memory = memory.first(memory.size() - bytes);
  }
  return pieces;
}

// Content whose pieces lie backwards.
std::vector<std::byte> Turned(std::span<const std::byte> content, std::size_t piece) {
  std::vector<std::byte> turned(content.size());
  std::size_t end = turned.size();
  for (std::size_t at = 0; at < content.size(); at += piece) {
    const std::size_t bytes = std::min(piece, content.size() - at);
    end -= bytes;
    std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(at), bytes,
                turned.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return turned;
}

TEST_P(GpuLanes, PayloadsOfAnySizeGoToScatteredGpuMemory) {
  constexpr std::size_t kPiece = 1000;
  EXPECT_EQ(far_host_->provider().capabilities().gpu, 0);
  near_->Attach();
  far_->Attach();
  int sent = 0;
  for (const std::size_t bytes : {1U, 8U, 100U, 4096U, 4097U, 100'001U, 3U << 20}) {
    MirroredMemory target(api_, 0, bytes, 1);
    far_->Do([&](Lane&) { ReceiveInto(Backwards(target.span(), kPiece)); });
    TestFrame* const frame = near_->Make("payload", CutInto(bytes, {}), bytes);
    near_->Send(frame);
    ASSERT_TRUE(arrived_.AwaitAtLeast(++sent)) << bytes;
    EXPECT_TRUE(SameBytes(target.Copy(), Turned(frame->content, kPiece))) << bytes;
    EXPECT_TRUE(target.GuardsIntact()) << bytes;
    far_->Do([&](Lane&) { far_->on_frame = nullptr; });
  }
  // And host memory between.
  TestFrame* const frame = near_->Make("host", CutInto(1 << 20, {}), 7);
  far_->Do([&](Lane&) { far_->on_payload = nullptr; });
  near_->Send(frame);
  const auto arrived = far_->Take(1);
  ASSERT_EQ(arrived.size(), 1U);
  EXPECT_TRUE(arrived.front().payload == frame->content);
}

TEST_P(GpuLanes, ManyPayloadsKeepTheirOrder) {
  constexpr int kPayloads = 40;
  constexpr std::size_t kBytes = 70'000;
  MirroredMemory target(api_, 0, kBytes, 1);
  ReceiveInto(Backwards(target.span(), kBytes));
  std::vector<TestFrame*> frames;
  for (int i = 0; i < kPayloads; ++i) {
    frames.push_back(near_->Make("payload", CutInto(i % 3 == 0 ? kBytes : 0, {}),
                                 static_cast<std::uint64_t>(i)));
  }
  // The last one stays.
  frames.push_back(near_->Make("last", CutInto(kBytes, {}), 99));
  near_->Attach();
  far_->Attach();
  near_->Send(frames);
  ASSERT_TRUE(arrived_.AwaitAtLeast(kPayloads / 3 + 2));
  EXPECT_TRUE(SameBytes(target.Copy(), frames.back()->content));
  EXPECT_TRUE(near_->AwaitSent(frames.size()));
}

TEST_P(GpuLanes, RegisteredGpuMemoryIsSentFromWhereItLies) {
  constexpr std::size_t kBytes = 2 << 20;
  MirroredMemory source(api_, 0, kBytes, 3);
  auto registered = near_host_->provider().Register(source.span());
  if (GetParam().straight) {
    ASSERT_FALSE(registered);
    EXPECT_EQ(registered.error().code(), Code::kUnsupported);
    return;
  }
  ASSERT_TRUE(registered) << registered.error().ToString();
  const auto odd = near_host_->provider().Register(source.span().subspan(1));
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code(), Code::kInvalidArgument);
  const auto content = source.Copy();
  near_->Attach();
  far_->Attach();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, kBytes - 77}) {
    TestFrame* const frame = near_->Make("from the GPU");
    frame->registered = {registered->get(), 77, bytes};
    frame->payload_bytes = bytes;
    near_->Send(frame);
    const auto arrived = far_->Take(1);
    ASSERT_EQ(arrived.size(), 1U);
    EXPECT_TRUE(std::equal(arrived.front().payload.begin(), arrived.front().payload.end(),
                           content.begin() + 77));
    EXPECT_EQ(arrived.front().payload.size(), bytes);
  }
  // Its registrations with comms end after it.
  registered->reset();
  near_->Send(near_->Make("again", CutInto(1 << 20, {})));
  EXPECT_EQ(far_->Take(1).size(), 1U);
}

TEST_P(GpuLanes, NothingIsWrittenAfterTheRestWasDropped) {
  if (!is_simulated()) GTEST_SKIP() << "no other GPU can be held back";
  constexpr std::size_t kBytes = 4 << 20;
  MirroredMemory target(api_, 0, kBytes, 1);
  ReceiveInto(Backwards(target.span(), 4096));
  near_->Attach();
  far_->Attach();
  simulated().Pause();
  const std::uint64_t before = simulated().counters().launches;
  near_->Send(near_->Make("payload", CutInto(kBytes, {})));
  AwaitLaunch(before);
  auto resumed = std::async(std::launch::async, [this] { simulated().Resume(); });
  far_->Do([](Lane& lane) { lane.DiscardRest(); });
  resumed.get();
  const auto pattern = RandomBytes(kBytes, 5);
  target.Fill(pattern);
  ASSERT_TRUE(arrived_.AwaitAtLeast(1));
  EXPECT_TRUE(SameBytes(target.Copy(), pattern));
}

// The plugin is not to be trusted any more, whether or not its bytes were wanted.
TEST_P(GpuLanes, EndWhereTheGpuRefusesRowsOfAPayloadThatIsDropped) {
  if (!is_simulated() || GetParam().straight)
    GTEST_SKIP() << "no rows, or a GPU that cannot be stopped";
  TearDown();
  Open(GetParam().devices, {{"FAULT", "overlap@2"}});
  constexpr std::size_t kBytes = 4 << 20;
  MirroredMemory target(api_, 0, kBytes, 1);
  ReceiveInto(Backwards(target.span(), 64 << 10));
  near_->Attach();
  far_->Attach();
  simulated().Pause();
  const std::uint64_t before = simulated().counters().launches;
  near_->Send(near_->Make("payload", CutInto(kBytes, {})));
  AwaitLaunch(before, 2);  // the second chunk is among those
  auto resumed = std::async(std::launch::async, [this] { simulated().Resume(); });
  far_->Do([](Lane& lane) { lane.DiscardRest(); });
  resumed.get();
  const auto closed = far_->AwaitClosed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), Code::kCorrupt) << closed->ToString();
  EXPECT_EQ(far_->loss(), LaneLoss::kBroken);
}

TEST_P(GpuLanes, NothingIsWrittenAfterTheClose) {
  if (!is_simulated()) GTEST_SKIP() << "no other GPU can be held back";
  constexpr std::size_t kBytes = 4 << 20;
  MirroredMemory target(api_, 0, kBytes, 1);
  ReceiveInto(Backwards(target.span(), 4096));
  near_->Attach();
  far_->Attach();
  simulated().Pause();
  const std::uint64_t before = simulated().counters().launches;
  near_->Send(near_->Make("payload", CutInto(kBytes, {})));
  AwaitLaunch(before);
  auto resumed = std::async(std::launch::async, [this] { simulated().Resume(); });
  far_->Do([](Lane& lane) { lane.Close(Closing::kAbort); });
  resumed.get();
  target.Free();  // a copy that still ran would lose the device
  EXPECT_TRUE(near_->AwaitClosed());
  EXPECT_FALSE(api_->IsLost(0));
}

// For 10 s: not in each case.
TEST_P(GpuLanes, OfAStuckGpuEndAndKeepWhatItReads) {
  if (!is_simulated()) GTEST_SKIP() << "no other GPU can be held back";
  if (GetParam().name != std::string("StandIn")) GTEST_SKIP() << "takes 10 s; once is enough";
  constexpr std::size_t kBytes = 4 << 20;
  MirroredMemory target(api_, 0, kBytes, 1);
  ReceiveInto(Backwards(target.span(), 4096));
  near_->Attach();
  far_->Attach();
  simulated().Pause();
  const std::uint64_t before = simulated().counters().launches;
  near_->Send(near_->Make("payload", CutInto(kBytes, {})));
  AwaitLaunch(before);
  const auto begin = Clock::now();
  far_->Do([](Lane& lane) { lane.Close(Closing::kAbort); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(40));
  EXPECT_TRUE(near_->AwaitClosed());
  Destroy(&near_);
  Destroy(&far_);
  // What the GPU reads now would lose it if it were gone.
  simulated().Resume();
  for (int lanes = 0; lanes < 2; ++lanes) {
    ConnectLane();
    ReceiveInto(Backwards(target.span(), kBytes));
    TestFrame* const frame = near_->Make("payload", CutInto(kBytes, {}));
    near_->Attach();
    far_->Attach();
    near_->Send(frame);
    ASSERT_TRUE(arrived_.AwaitAtLeast(lanes + 1));
    if (lanes > 0) {
      EXPECT_TRUE(SameBytes(target.Copy(), frame->content));
    }
    Destroy(&near_);
    Destroy(&far_);
  }
  EXPECT_FALSE(api_->IsLost(0));
}

// For 10 s, too.
TEST_P(GpuLanes, WaitForCopiesAgainAfterAStuckGpuHasGoneOn) {
  if (!is_simulated() || GetParam().name != std::string("StandIn")) {
    GTEST_SKIP() << "no other GPU can be held back";
  }
  constexpr std::size_t kBytes = 4 << 20;
  MirroredMemory target(api_, 0, kBytes, 1);
  ReceiveInto(Backwards(target.span(), 4096));
  near_->Attach();
  far_->Attach();
  for (int payload = 1; payload <= 2; ++payload) {
    simulated().Pause();
    const std::uint64_t before = simulated().counters().launches;
    near_->Send(near_->Make("payload", CutInto(kBytes, {})));
    AwaitLaunch(before);
    auto dropped = std::async(std::launch::async,
                              [this] { far_->Do([](Lane& lane) { lane.DiscardRest(); }); });
    if (payload == 1) {
      dropped.get();  // after kCopyTimeout
    } else {
      EXPECT_EQ(dropped.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
    }
    simulated().Resume();
    if (payload == 2) dropped.get();
    ASSERT_TRUE(arrived_.AwaitAtLeast(payload));
  }
}

// Freeing and allocating may block until the device is idle.
TEST_P(GpuLanes, ALaterLaneUsesTheBuffersOfAnEarlierOne) {
  if (!is_simulated()) GTEST_SKIP() << "calls of other GPUs are not counted";
  Destroy(&near_);
  Destroy(&far_);
  const auto before = simulated().counters();
  ConnectLane();
  const auto after = simulated().counters();
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  // The rows that the plugin writes: each of the two new comms has its own.
  EXPECT_LE(after.registrations, before.registrations + 2);
  EXPECT_EQ(after.streams, before.streams);
  MirroredMemory target(api_, 0, 1 << 20, 1);
  ReceiveInto(Backwards(target.span(), 1 << 20));
  TestFrame* const frame = near_->Make("payload", CutInto(1 << 20, {}));
  near_->Attach();
  far_->Attach();
  near_->Send(frame);
  ASSERT_TRUE(arrived_.AwaitAtLeast(1));
  EXPECT_TRUE(SameBytes(target.Copy(), frame->content));
}

TEST_P(GpuLanes, EndWithTheirGpu) {
  if (!is_simulated()) GTEST_SKIP() << "no other GPU can be lost";
  TearDown();
  // Devices of its own, because others would be lost with it.
  static int seed = 100;
  Open("simulated:1:" + std::to_string(++seed) + ":open");
  MirroredMemory target(api_, 0, 1 << 20, 1);
  ReceiveInto(Backwards(target.span(), 4096));
  simulated().Inject({.at = cuda::FaultPoint::kLaunch, .fault = cuda::Fault::kIllegalAddress});
  near_->Attach();
  far_->Attach();
  near_->Send(near_->Make("payload", CutInto(1 << 20, {})));
  const auto closed = far_->AwaitClosed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->code(), Code::kDeviceLost) << closed->ToString();
  EXPECT_EQ(far_->loss(), LaneLoss::kBroken);
  EXPECT_TRUE(near_->AwaitClosed());
  // A new lane moves host memory, and refuses the GPU's.
  Destroy(&near_);
  Destroy(&far_);
  ASSERT_TRUE(api_->IsLost(0));
  ConnectLane();
  near_->Attach();
  far_->Attach();
  TestFrame* const frame = near_->Make("payload", CutInto(1 << 20, {}));
  near_->Send(frame);
  const auto got = far_->Take(1);
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got.front().payload, frame->content);
}

INSTANTIATE_TEST_SUITE_P(
    Plugin, GpuLanes,
    ::testing::Values(GpuCase{"StandIn", false, {}},
                      GpuCase{"RandomFragments",
                              false,
                              {{"FRAGMENTS", "random"}, {"SOCKETS", "3"}, {"POLLS", "immediate"}}},
                      GpuCase{"Straight", true, {}}),
    [](const auto& one) { return std::string(one.param.name); });
// The stand-in's pool is the GPU's, or the host's.
INSTANTIATE_TEST_SUITE_P(Gpu, GpuLanes,
                         ::testing::Values(GpuCase{"StandIn", false, {{"GPU", "1"}}, "auto"},
                                           GpuCase{"HostPool", false, {{"GPU", "mapped"}}, "auto"},
                                           GpuCase{"Straight", true, {}, "auto"}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace ferry::tcpx
