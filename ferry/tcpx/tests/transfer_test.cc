// Payloads through the stand-in for GPUDirect-TCPX, from memory to memory, by every executor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ferry/core/log.h"
#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/cuda/testing/forwarding_devices.h"
#include "ferry/tcpx/host/tcpx_layout.h"
#include "ferry/tcpx/host/unpack_rows.h"
#include "ferry/tcpx/lane/payload_in.h"
#include "ferry/tcpx/lane/payload_out.h"
#include "ferry/tcpx/tests/testing/counting_devices.h"
#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::tcpx {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::CountingDevices;
using testing::Ends;
using ::testing::HasSubstr;
using testing::MakePages;
using testing::MakePattern;
using testing::Pages;
using testing::ScopedVariables;
using testing::StandIn;
using testing::Variables;
using transfer::Must;
using transfer::Soon;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kChunks = 24;
#else
constexpr std::size_t kChunks = 128;
#endif
constexpr std::size_t kChunkBytes = 512 * kKiB;
constexpr int kTagBase = 5;
constexpr std::byte kPoison{0xDB};

void MustBe(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message());
}

// Memory that a GPU, or where there is none the host, receives into.
class Target {
 public:
  Target(cuda::DeviceApi* api, std::size_t bytes) : api_(api), bytes_(bytes) {
    host_ = MakePages(bytes);
    std::memset(host_.get(), 0x11, bytes);
    if (api == nullptr) return;
    stream_ = Must(api->CreateStream(0, cuda::StreamPriority::kNormal));
    pinned_ = Must(api->AllocatePinned(0, bytes));
    device_ = Must(api->AllocateDevice(0, bytes + kPage));
  }
  // At a page.
  std::byte* data() const {
    if (api_ == nullptr) return host_.get();
    const std::size_t beyond = cuda::AddressOf(device_.data()) % kPage;
    return static_cast<std::byte*>(device_.data()) + (beyond == 0 ? 0 : kPage - beyond);
  }
  Place place() const { return Place::OnDevice(data()); }
  std::span<const std::byte> Look() {
    if (api_ == nullptr) return {host_.get(), bytes_};
    const cuda::CopyItem item{pinned_.data(), data(), bytes_};
    MustBe(api_->Copy(stream_, cuda::CopyKind::kDeviceToHost, {&item, 1}));
    MustBe(api_->Wait(stream_, Soon()));
    return pinned_.bytes();
  }

 private:
  static constexpr std::size_t kPage = 4096;
  cuda::DeviceApi* const api_;
  const std::size_t bytes_;
  Pages host_;
  cuda::Stream stream_;
  cuda::PinnedBuffer pinned_;
  cuda::DeviceBuffer device_;
};

struct BedOptions {
  std::chrono::milliseconds late_after = ChunkTerms().late_after;
  std::uint64_t most_pieces = 0;  // of the unpacker; 0: as lanes have it
  // A page of the plugin's rows is pinned, as if another library had registered it.
  bool pins_page = false;
  // The plugin's pool and the target are a GPU's; otherwise the host's, and a simulated device's.
  bool on_gpu = false;
};

std::string WhyThereIsNoGpu() { return cuda::kRealCase.make()->Unavailable(); }

// Both sides of a transfer, in one process: over each lane one payload, a part of the memory.
class Bed {
 public:
  Bed(const Variables& variables, UnpackBy by, std::size_t lanes, std::size_t bytes,
      const BedOptions& how = {})
      : devices(MakeDevices(by, how.on_gpu)),
        stand_in(WithPlace(variables, how.on_gpu)),
        plugin(Must(stand_in.Open())) {
    if (devices != nullptr) {
      counting.emplace(&devices->api());
      current = Must(devices->api().MakeCurrent(0));  // for the plugin
      gpu = {api(), 0, std::make_shared<LaneBufferPool>(), by};
    }
    if (how.most_pieces > 0) LimitPieces(lanes, how.most_pieces);
    Ends ends = Must(testing::Connect(plugin, lanes, Soon(), api()));
    if (how.pins_page) PinPage(*ends.receivers[0]);
    target.emplace(api(), bytes);
    source = MakePattern(bytes, lanes * 10 + static_cast<std::size_t>(by));
    const ChunkTerms terms{kChunkBytes, kTagBase, how.late_after};
    const std::size_t part = (bytes + lanes - 1) / lanes;
    for (std::size_t i = 0; i < lanes; ++i) {
      Lane& lane = lanes_.emplace_back();
      lane.out = Must(PayloadOut::Create(std::move(ends.senders[i]), terms));
      lane.in = Must(PayloadIn::Create(api(), gpu, std::move(ends.receivers[i]), terms));
      const std::size_t begin = std::min(i * part, bytes);
      const std::size_t size = std::min(part, bytes - begin);
      lane.frame.payload = {{source.get() + begin, size}};
      lane.frame.payload_bytes = size;
      lane.place = {{target->data() + begin, size}};
    }
  }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  cuda::DeviceApi* api() { return counting ? &*counting : nullptr; }
  std::size_t made_on_device() const { return counting->made(); }
  cuda::SimulatedDevices* simulated() { return devices->simulated(); }
  PayloadIn& in(std::size_t lane = 0) { return *lanes_[lane].in; }
  PayloadOut& out() { return *lanes_[0].out; }
  // Where the payload of the first lane goes.
  std::vector<iovec>& place() { return lanes_[0].place; }

  // All of the memory.
  void Begin() {
    for (Lane& lane : lanes_) {
      MustBe(lane.in->Begin(lane.frame.payload_bytes, {lane.place, devices != nullptr}));
      lane.out->Push(lane.frame);
    }
  }
  Status Progress() {
    for (Lane& lane : lanes_) {
      FERRY_TRY(lane.out->Progress());
      FERRY_TRY(lane.in->Progress());
    }
    return Ok();
  }
  bool busy() const {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const Lane& lane) { return lane.in->busy() || lane.out->busy(); });
  }
  // Until all has come, or something fails.
  Status Run() {
    const Deadline deadline = Soon();
    while (busy()) {
      FERRY_TRY(Progress());
      if (deadline.expired()) return Error(Code::kTimedOut, "the test's own timeout is over");
    }
    return Ok();
  }
  // With a GPU that is paused: until it has been given copies of so many chunks.
  void RunUntilLaunched(std::uint64_t chunks) {
    for (const Deadline timeout = Soon(); in().launches()->chunks < chunks && !timeout.expired();) {
      MustBe(Progress());
    }
  }
  // Drops the rest of the first lane's payload, for which a paused GPU has to go on.
  void ResumeAndDropRest() {
    auto resumed = std::async(std::launch::async, [this] { simulated()->Resume(); });
    in().DropRest();
    resumed.get();
  }
  void ExpectWhole() {
    const auto got = target->Look();
    EXPECT_TRUE(std::equal(got.begin(), got.end(), source.get()));
    EXPECT_EQ(stand_in.Misuse(), "");
  }

  std::unique_ptr<cuda::DeviceTarget> devices;  // null: the host unpacks
  std::optional<CountingDevices> counting;
  cuda::CurrentDevice current;
  StandIn stand_in;
  Plugin* const plugin;
  LaneGpu gpu;
  std::optional<Target> target;
  Pages source;

 private:
  struct Lane {
    std::unique_ptr<PayloadOut> out;
    std::unique_ptr<PayloadIn> in;
    net::OutFrame frame;
    std::vector<iovec> place;
  };

  static std::unique_ptr<cuda::DeviceTarget> MakeDevices(UnpackBy by, bool on_gpu) {
    if (by == UnpackBy::kHost && !on_gpu) return nullptr;
    auto made = (on_gpu ? cuda::kRealCase : cuda::kSimulatedCases[0]).make();
    return made;
  }
  static Variables WithPlace(Variables variables, bool on_gpu) {
    if (on_gpu) variables.emplace_back("GPU", "1");
    return variables;
  }
  // The lanes get these buffers.
  void LimitPieces(std::size_t lanes, std::uint64_t most_pieces) {
    UnpackerOptions options;
    options.kind = cuda::CopyKind::kHostToDevice;
    options.most_pieces = most_pieces;
    for (std::size_t i = 0; i < lanes; ++i) {
      auto buffers = Must(MakeBuffers(gpu, {kChunkBytes, ReceiveComm::kWindow, 1, options.kind}));
      buffers->unpacker = Must(Unpacker::Create(api(), 0, options));
      gpu.buffers->Give(std::move(buffers));
    }
  }
  void PinPage(const ReceiveComm& comm) {
    // The handle lies in host memory.
    const auto& handle = *static_cast<const layout::UnpackHandle*>(comm.device_handle().handle);
    page_ = Must(api()->RegisterHost(0, handle.meta, 4096));
  }

  cuda::HostRegistration page_;
  std::vector<Lane> lanes_;
};

enum class On { kSimulatedDevice, kGpu };

const char* NameOf(UnpackBy by) {
  return by == UnpackBy::kKernel ? "kernel" : by == UnpackBy::kDma ? "dma" : "host";
}
constexpr UnpackBy kAllWays[] = {UnpackBy::kKernel, UnpackBy::kDma, UnpackBy::kHost};

// ---- all is well --------------------------------------------------------------------------------

// The Gpu cases are skipped where there is none.
template <class Parameter>
class PluginOn : public ::testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    options_.on_gpu = std::get<On>(this->GetParam()) == On::kGpu;
    if (!options_.on_gpu) return;
    if (const std::string why = WhyThereIsNoGpu(); !why.empty()) GTEST_SKIP() << why;
  }
  BedOptions options_;
};

using Spread = std::tuple<On, UnpackBy, int, int>;
class PluginSpread : public PluginOn<Spread> {};

TEST_P(PluginSpread, EveryByteArrivesOverAnyNumberOfLanesAndInterfaces) {
  const auto& [on, by, lanes, nics] = GetParam();
  Bed bed({{"NICS", std::to_string(nics)}, {"FRAGMENTS", "random"}}, by,
          static_cast<std::size_t>(lanes), kChunks * kChunkBytes, options_);
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  bed.ExpectWhole();
}
std::string SpreadName(const ::testing::TestParamInfo<Spread>& info) {
  const auto& [on, by, lanes, nics] = info.param;
  return std::string(NameOf(by)) + "_" + std::to_string(lanes) + "lanes_" + std::to_string(nics) +
         "nics";
}
INSTANTIATE_TEST_SUITE_P(StandIn, PluginSpread,
                         ::testing::Combine(::testing::Values(On::kSimulatedDevice),
                                            ::testing::ValuesIn(kAllWays),
                                            ::testing::Values(1, 2, 4), ::testing::Values(1, 4)),
                         SpreadName);
INSTANTIATE_TEST_SUITE_P(Gpu, PluginSpread,
                         ::testing::Combine(::testing::Values(On::kGpu),
                                            ::testing::ValuesIn(kAllWays),
                                            ::testing::Values(1, 2, 4), ::testing::Values(1, 4)),
                         SpreadName);

using Cut = std::tuple<On, UnpackBy, const char*>;
class PluginFragments : public PluginOn<Cut> {};

TEST_P(PluginFragments, OfAnySizeAreUnpackedToTheByte) {
  const auto& [on, by, fragments] = GetParam();
  Bed bed({{"FRAGMENTS", fragments}}, by, 2, kChunks * kChunkBytes, options_);
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  bed.ExpectWhole();
}
std::string CutName(const ::testing::TestParamInfo<Cut>& info) {
  return std::string(NameOf(std::get<1>(info.param))) + "_" + std::get<2>(info.param);
}
const auto kAllCuts = ::testing::Values("1448", "4096", "4095", "9000", "tiny", "merged");
INSTANTIATE_TEST_SUITE_P(StandIn, PluginFragments,
                         ::testing::Combine(::testing::Values(On::kSimulatedDevice),
                                            ::testing::ValuesIn(kAllWays), kAllCuts),
                         CutName);
INSTANTIATE_TEST_SUITE_P(Gpu, PluginFragments,
                         ::testing::Combine(::testing::Values(On::kGpu),
                                            ::testing::ValuesIn(kAllWays), kAllCuts),
                         CutName);

TEST(PluginTransfer, ACommThatIsThereBeforeItIsReadyIsWaitedFor) {
  Bed bed({{"POLLS", "immediate"}}, UnpackBy::kHost, 2, 10 * kChunkBytes + 4321);
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  bed.ExpectWhole();
}

TEST(PluginTransfer, AChunkMayBeScatteredOverManyPlaces) {
  constexpr std::size_t kBytes = kChunkBytes;
  constexpr std::size_t kPiece = 16 * kKiB;
  Bed bed({{"FRAGMENTS", "random"}}, UnpackBy::kKernel, 1, kBytes);
  bed.place().clear();
  for (std::size_t at = kBytes; at > 0; at -= kPiece) {
    bed.place().push_back({bed.target->data() + at - kPiece, kPiece});
  }
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  const auto got = bed.target->Look();
  for (std::size_t at = 0; at < kBytes; at += kPiece) {
    EXPECT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(at),
                           got.begin() + static_cast<std::ptrdiff_t>(at + kPiece),
                           bed.source.get() + (kBytes - kPiece - at)))
        << at;
  }
}

TEST(PluginTransfer, APayloadIsCountedToItsEndAfterItsRestWasDropped) {
  Bed bed({}, UnpackBy::kKernel, 1, 4 * kChunkBytes);
  bed.Begin();
  bed.simulated()->Pause();
  bed.RunUntilLaunched(1);
  bed.ResumeAndDropRest();
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(bed.in().received_bytes(), 4 * kChunkBytes);
  EXPECT_EQ(bed.stand_in.Misuse(), "");
}

// The end of a payload finds out what the GPU has reported, too, and no later call takes the chunk
// for one in place.
TEST(PluginTransfer, AChunkThatTheGpuRefusesAfterTheRestWasDroppedIsNeverInPlace) {
  Bed bed({{"FAULT", "overlap@2"}}, UnpackBy::kKernel, 1, 3 * kChunkBytes);
  bed.Begin();
  bed.simulated()->Pause();
  bed.RunUntilLaunched(3);
  bed.ResumeAndDropRest();
  for (int i = 0; i < 2; ++i) {
    const Status ended = bed.in().Progress();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), Code::kCorrupt);
    EXPECT_THAT(ended.error().message(),
                HasSubstr("receiving chunk=1 tag=6 size=524288 offset=524288"));
  }
  EXPECT_LE(bed.in().received_bytes(), kChunkBytes);
  EXPECT_TRUE(bed.in().busy());
}

TEST(PluginTransfer, RowsOfWhichOnlyAPartIsPinnedAreReadByTheCpu) {
  Bed bed({}, UnpackBy::kKernel, 1, 20 * kChunkBytes, {.pins_page = true});
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  bed.ExpectWhole();
}

TEST(PluginTransfer, MoreThanTheUnpackerTakesAtOnceIsUnpackedInParts) {
  // A chunk has 128 pieces, and all of a window may come in one turn.
  for (const std::uint64_t most_pieces : {130U, 300U, 1000U}) {
    Bed bed({}, UnpackBy::kKernel, 2, kChunks * kChunkBytes, {.most_pieces = most_pieces});
    bed.Begin();
    bed.simulated()->Pause();
    // Until the windows are full of what has come.
    for (const Deadline enough = Deadline::After(std::chrono::seconds(1)); !enough.expired();) {
      const Status progressed = bed.Progress();
      if (!progressed) bed.simulated()->Resume();
      ASSERT_TRUE(progressed) << progressed.error().message();
    }
    bed.simulated()->Resume();
    const Status ended = bed.Run();
    ASSERT_TRUE(ended) << ended.error().message();
    bed.ExpectWhole();
  }
}

TEST(PluginTransfer, AnErrorStays) {
  Bed bed({{"FAULT", "short"}}, UnpackBy::kHost, 1, 2 * kChunkBytes);
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().message(), HasSubstr("receiving chunk=0 "));
  const Status again = bed.Run();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message(), ended.error().message());
}

TEST(PluginTransfer, AGpuThatIsLostIsAnErrorOfTheOldestChunkThatIsNotInPlace) {
  Bed bed({}, UnpackBy::kKernel, 2, 20 * kChunkBytes);
  bed.simulated()->Inject(
      {.at = cuda::FaultPoint::kLaunch, .fault = cuda::Fault::kLaunchFailure, .skip = 1});
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), Code::kDeviceLost);
  EXPECT_THAT(ended.error().message(), AllOf(HasSubstr("receiving chunk="), HasSubstr("offset=")));
}

class PluginSteady : public PluginOn<std::tuple<On, UnpackBy>> {};

TEST_P(PluginSteady, NothingIsMadeOnTheGpuForAChunk) {
  Bed bed({}, std::get<UnpackBy>(GetParam()), 2, 20 * kChunkBytes, options_);
  bed.Begin();
  const std::size_t before = bed.made_on_device();
  EXPECT_GT(before, 0U);
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_EQ(bed.made_on_device(), before);
  bed.ExpectWhole();
}
std::string SteadyName(const ::testing::TestParamInfo<std::tuple<On, UnpackBy>>& info) {
  return NameOf(std::get<UnpackBy>(info.param));
}
constexpr UnpackBy kGpuWays[] = {UnpackBy::kKernel, UnpackBy::kDma};
INSTANTIATE_TEST_SUITE_P(StandIn, PluginSteady,
                         ::testing::Combine(::testing::Values(On::kSimulatedDevice),
                                            ::testing::ValuesIn(kGpuWays)),
                         SteadyName);
INSTANTIATE_TEST_SUITE_P(Gpu, PluginSteady,
                         ::testing::Combine(::testing::Values(On::kGpu),
                                            ::testing::ValuesIn(kGpuWays)),
                         SteadyName);

// ---- without lanes ------------------------------------------------------------------------------

// One connection, driven as a program of its own would: rows, unpacker, and memory of both sides.
class Alone {
 public:
  explicit Alone(std::size_t bytes)
      : devices(cuda::kSimulatedCases[0].make()),
        plugin(Must(stand_in.Open())),
        target(&api(), bytes),
        source(MakePages(bytes)) {
    std::memset(source.get(), 0x22, bytes);
    Ends ends = Must(testing::Connect(plugin, 1, Soon()));
    send = std::move(ends.senders[0]);
    receive = std::move(ends.receivers[0]);
    rows.emplace(Must(UnpackRows::Open(*receive, &api(), 0, Soon())));
    UnpackerOptions options;
    options.kind = rows->copy_kind();
    unpacker = Must(Unpacker::Create(&api(), 0, options));
    rows->Map(&api(), 0);
    sent.emplace(Must(send->Register(source.get(), bytes, /*on_gpu=*/false)));
    received.emplace(Must(receive->Register(target.data(), bytes, /*on_gpu=*/true)));
  }
  cuda::DeviceApi& api() { return devices->api(); }
  // Begins a message of `bytes` from the beginning of both memories.
  void Begin(std::size_t bytes) {
    ASSERT_TRUE(Must(receive->Receive({target.data(), bytes, 0, received->mr()})));
    ASSERT_TRUE(Must(send->Send({source.get(), bytes, 0, sent->mr()})));
  }
  // Returns when both ends are done: the sender may read its memory until its own is.
  ReceiveComm::Arrival Await() {
    ReceiveComm::Arrival arrival;
    bool done = false;
    for (const Deadline deadline = Soon(); !(done && arrival.done) && !deadline.expired();) {
      if (!done) done = Must(send->Test());
      if (!arrival.done) arrival = Must(receive->Test());
    }
    EXPECT_TRUE(done && arrival.done);
    return arrival;
  }

  StandIn stand_in{Variables{}};
  std::unique_ptr<cuda::DeviceTarget> devices;
  Plugin* const plugin;
  Target target;
  Pages source;
  std::unique_ptr<SendComm> send;
  std::unique_ptr<ReceiveComm> receive;
  std::optional<UnpackRows> rows;
  std::unique_ptr<Unpacker> unpacker;
  std::optional<Registration> sent;
  std::optional<Registration> received;
};

// What a lane does, but returns the plugin's memory before the copy has ended: then other bytes
// than those that came are copied. So this test's counterparts above see when that goes wrong.
TEST(PluginTransfer, MemoryThatIsGivenBackBeforeTheCopyIsDoneIsSeen) {
  constexpr std::size_t kBytes = kChunkBytes;
  Alone alone(kBytes);
  alone.Begin(kBytes);
  const auto arrival = alone.Await();
  std::vector<Block> blocks;
  FragmentReader reader;
  const PostedRun run{0, kBytes};
  MustBe(reader.Read(Must(alone.rows->Read(arrival)), {alone.rows->pool_bytes(), kBytes, {&run, 1}},
                     &blocks));
  alone.devices->simulated()->Pause();
  const PlacedList list{blocks, alone.target.place(), alone.rows->pool()};
  (void)Must(alone.unpacker->Enqueue({&list, 1}));
  MustBe(alone.receive->Consume());  // too early
  alone.devices->simulated()->Resume();
  MustBe(alone.unpacker->Drain(Soon()));
  const auto got = alone.target.Look();
  EXPECT_FALSE(std::equal(got.begin(), got.end(), alone.source.get()));
  EXPECT_EQ(got[100], kPoison);
}

TEST(PluginTransfer, MessagesOfNoBytesComeBetweenOthers) {
  constexpr std::size_t kBytes = 4096;
  Alone alone(kBytes);
  const PostedRun run{0, kBytes};
  for (int i = 0; i < 40; ++i) {
    const std::size_t bytes = i % 3 == 1 ? 0 : kBytes;
    std::memset(alone.source.get(), i, kBytes);
    alone.Begin(bytes);
    const auto fragments = Must(alone.rows->Read(alone.Await()));
    EXPECT_EQ(fragments.empty(), bytes == 0);
    if (!fragments.empty()) {
      const RowsRequest request{alone.rows->mapped(fragments),
                                fragments.size(),
                                {alone.rows->pool_bytes(), bytes, {&run, 1}},
                                alone.target.place(),
                                alone.rows->pool()};
      const std::uint64_t ticket = Must(alone.unpacker->EnqueueRows({&request, 1}));
      MustBe(alone.unpacker->Drain(Soon()));
      EXPECT_TRUE(alone.unpacker->TakeRefused(ticket).empty());
      EXPECT_EQ(alone.target.Look()[kBytes - 1], std::byte(i));
    }
    MustBe(alone.receive->Consume());
  }
  EXPECT_EQ(alone.stand_in.Misuse(), "");
}

// ---- faults -------------------------------------------------------------------------------------

struct Fault {
  const char* name;
  Code code;
  const char* text;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class PluginFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PluginFault, EndsInItsOwnErrorThatNamesTheChunk) {
  Bed bed({{"FAULT", GetParam().name}}, UnpackBy::kKernel, 2, 20 * kChunkBytes);
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), GetParam().code) << ended.error().message();
  EXPECT_THAT(ended.error().message(),
              AllOf(HasSubstr(GetParam().text), HasSubstr("chunk="), HasSubstr("offset="),
                    HasSubstr("tag="), HasSubstr("channel "), HasSubstr("device ")));
}
constexpr Fault kFaults[] = {
    {"isend_rc2", Code::kPeerLost, "isend of 524288 bytes"},
    {"irecv_rc3", Code::kPeerLost, "irecv of 524288 bytes"},
    {"test_rc2@3", Code::kPeerLost, "test of a "},
    {"count_stays_zero", Code::kCorrupt, "not to be trusted"},
    {"oversize", Code::kCorrupt, "not to be trusted"},
    {"short", Code::kCorrupt, "not to be trusted"},
    {"overlap", Code::kCorrupt, "not to be trusted"},
    {"out_of_pool", Code::kCorrupt, "not to be trusted"},
    {"wrap", Code::kCorrupt, "not to be trusted"},
    {"zero_length", Code::kCorrupt, "not to be trusted"},
    {"bad_row", Code::kCorrupt, "its request names row"},
    {"half_close", Code::kPeerLost, "test of a "},
};
std::string FaultName(const ::testing::TestParamInfo<Fault>& info) {
  const std::string name = info.param.name;
  return name.substr(0, name.find('@'));
}
INSTANTIATE_TEST_SUITE_P(StandIn, PluginFault, ::testing::ValuesIn(kFaults), FaultName);

// Its user may wait for any time, and ends the lane when the peer is silent.
TEST(PluginTransfer, AChunkThatDoesNotComeIsLoggedOnce) {
  Bed bed({{"FAULT", "stuck_count"}}, UnpackBy::kHost, 1, 2 * kChunkBytes,
          {.late_after = std::chrono::milliseconds(0)});
  bed.Begin();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) MustBe(bed.Progress());
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string line =
      "receiving chunk=0 tag=5 size=524288 offset=0 (payload 0, channel 0, device 0): nothing has "
      "come for ";
  EXPECT_THAT(log, AllOf(HasSubstr(line), HasSubstr("with 2 chunks in flight")));
  EXPECT_EQ(log.find(line), log.rfind(line)) << log;
  EXPECT_THAT(bed.in().Waits(), HasSubstr(line)) << "for the error of an operation";
  EXPECT_TRUE(bed.in().busy());
}

// The receiver's log has the same names.
TEST(PluginTransfer, ThePayloadThatHasLeftIsNamedByItsChunks) {
  Bed bed({}, UnpackBy::kHost, 1, 2 * kChunkBytes);
  EXPECT_EQ(bed.out().NameOf(1, 2 * kChunkBytes),
            "chunk=0 tag=5 size=524288 offset=0 (payload 0, channel 0, device 0) to chunk=1 tag=6");
  EXPECT_EQ(bed.out().NameOf(3, 100),
            "chunk=0 tag=20005 size=100 offset=0 (payload 2, channel 0, device 0)");
}

TEST(PluginTransfer, WhatIsInPlaceIsNotWaitedFor) {
  Bed bed({}, UnpackBy::kHost, 1, 2 * kChunkBytes);
  bed.Begin();
  ASSERT_TRUE(bed.Run());
  EXPECT_EQ(bed.in().Waits(), "");
}

// What is looked at must not change.
TEST(PluginTransfer, TheStepLogDescribesEachLaunchAndLeavesTheRowsToTheGpu) {
  const ScopedVariables each(Variables{{"UCCL_TCPX_LAUNCH_DEBUG", "1"}});
  SetLogLevel(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  {
    Bed bed({}, UnpackBy::kKernel, 1, 3 * kChunkBytes);
    bed.Begin();
    EXPECT_TRUE(bed.Run());
  }
  SetLogLevel(LogLevel::kWarn);
  const std::string log = ::testing::internal::GetCapturedStderr();
  std::size_t launches = 0;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("launching device unpack (kernel), total_bytes=") == std::string::npos) continue;
    ++launches;
    EXPECT_THAT(line, ContainsRegex("launch [1-3] of [1-3] chunks in [0-9]+ fragments, queued in "
                                    "[0-9.]+ us, [0-9.]+ us after .*; [0-9]+ thread blocks read"));
  }
  EXPECT_GT(launches, 0U) << log;
  for (const char* step :
       {"device handle: meta=0x[0-9a-f]+ bounce_buf=0x[0-9a-f]+ head=18446744073709551615, pool",
        "waiting for client data, expected bytes=524288: chunk=2 tag=7 size=524288 offset=1048576",
        "sending 524288 bytes with tag 7: chunk=2 tag=7 size=524288 offset=1048576 .payload 0, ",
        "send completed: chunk=2 tag=7", "received chunk=2 tag=7 .*: 128 fragments",
        "request metadata: request_ptr=0x[0-9a-f]+ active=1 idx=0 cnt_cache=128 size=524288",
        "descriptor.0. src_off=[0-9]+ len=4096 dst_off=[0-9]+", "bounce probe .32B. from src_off=",
        "device unpack completed: chunk=2 tag=7 .*, seen [0-9.]+ us after launch [1-3] was"}) {
    EXPECT_THAT(log, ContainsRegex(step));
  }
}

// Devices that have a plugin's pool in another GPU, without peer access.
class PoolElsewhere final : public cuda::ForwardingDevices {
 public:
  PoolElsewhere(DeviceApi* inner, const void* pool) : ForwardingDevices(inner), pool_(pool) {}
  Result<cuda::PointerInfo> Inspect(const void* address) override {
    if (address != pool_) return ForwardingDevices::Inspect(address);
    return cuda::PointerInfo{.kind = cuda::MemoryKind::kDevice,
                             .ordinal = 1,
                             .base = cuda::AddressOf(pool_),
                             .bytes = std::uint64_t{64} << 20};
  }

 private:
  const void* const pool_;
};

TEST(PluginTransfer, CopyEnginesUnpackFromAPoolThatKernelsCannotRead) {
  const auto devices = cuda::kSimulatedCases[0].make();
  StandIn stand_in({});
  Plugin* const plugin = Must(stand_in.Open());
  ::testing::internal::CaptureStderr();
  for (const UnpackBy by : {UnpackBy::kAuto, UnpackBy::kAuto, UnpackBy::kDma, UnpackBy::kKernel}) {
    const auto current = Must(devices->api().MakeCurrent(0));
    Ends ends = Must(testing::Connect(plugin, 1, Soon(), &devices->api()));
    const auto* const handle =
        static_cast<const layout::UnpackHandle*>(ends.receivers[0]->device_handle().handle);
    PoolElsewhere elsewhere(&devices->api(), handle->bounce_pool);
    const LaneGpu gpu{&elsewhere, 0, std::make_shared<LaneBufferPool>(), by};
    const auto in = PayloadIn::Create(&elsewhere, gpu, std::move(ends.receivers[0]), ChunkTerms());
    ASSERT_EQ(static_cast<bool>(in), by != UnpackBy::kKernel);
    if (in) continue;
    EXPECT_EQ(in.error().code(), Code::kUnsupported);
    EXPECT_THAT(in.error().message(),
                AllOf(HasSubstr("cannot read the pool"), HasSubstr("FERRY_PLUGIN_UNPACK")));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string line = "copy engines unpack (plugin_unpack dma)";
  EXPECT_THAT(log, HasSubstr(line));
  EXPECT_EQ(log.find(line), log.rfind(line)) << "once: " << log;
}

TEST(PluginTransfer, APeerThatIsSlowIsWaitedFor) {
  Bed bed({{"FAULT", "slow_peer"}, {"DELAY_MS", "5"}}, UnpackBy::kHost, 2, 6 * kChunkBytes);
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  bed.ExpectWhole();
}

TEST(PluginExitDeathTest, AProcessThatThePluginEndsSaysWhatThatMeans) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        // One socket, because two threads must not call exit() at once.
        Bed bed({{"FAULT", "exit_no_cmsg"}, {"SOCKETS", "1"}}, UnpackBy::kHost, 1, 4 * kChunkBytes);
        bed.Begin();
        (void)bed.Run();
      },
      ::testing::ExitedWithCode(1), "its flow was not steered to a queue");
}

}  // namespace
}  // namespace ferry::tcpx
