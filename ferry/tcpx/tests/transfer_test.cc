// Chunks through the stand-in for GPUDirect-TCPX, from sender to memory, by every executor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/tcpx/host/plugin_log.h"
#include "ferry/tcpx/tests/testing/counting_devices.h"
#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::net::plugin {
namespace {

using plugin::testing::CountingDevices;
using plugin::testing::Ends;
using plugin::testing::kPoolBytes;
using plugin::testing::MakePages;
using plugin::testing::MakePattern;
using plugin::testing::Pages;
using plugin::testing::StandIn;
using plugin::testing::Variables;
using ::testing::AllOf;
using ::testing::HasSubstr;
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
  std::chrono::milliseconds chunk_timeout = std::chrono::seconds(30);
  std::uint64_t most_pieces = UnpackerOptions().most_pieces;
  // The plugin's pool and the target are a GPU's; otherwise the host's, and a simulated device's.
  bool on_gpu = false;
};

std::string WhyThereIsNoGpu() { return cuda::kRealCase.make()->Unavailable(); }

// Both sides of a transfer, in one process.
class Bed {
 public:
  Bed(const Variables& variables, UnpackBy by, std::size_t channels, std::size_t bytes,
      const BedOptions& how = {})
      : devices(MakeDevices(by, how.on_gpu)),
        stand_in(WithPlace(variables, how.on_gpu)),
        plugin(Must(stand_in.Open())),
        bytes_(bytes) {
    if (devices != nullptr) {
      counting.emplace(&devices->api());
      current = Must(devices->api().MakeCurrent(0));  // for the plugin
    }
    UnpackerOptions options;
    options.by = by;
    options.most_pieces = how.most_pieces;
    options.kind = how.on_gpu ? cuda::CopyKind::kDeviceToDevice : cuda::CopyKind::kHostToDevice;
    unpacker = Must(Unpacker::Create(api(), 0, options));
    Ends ends = Must(plugin::testing::Connect(plugin, channels, Soon(), api()));
    target.emplace(api(), bytes);
    source = MakePattern(bytes, channels * 10 + static_cast<std::size_t>(by));
    sender.emplace(std::move(ends.senders), how.chunk_timeout);
    ReceiverOptions receiver_options;
    receiver_options.chunk_timeout = how.chunk_timeout;
    receiver = Must(Receiver::Create(api(), unpacker.get(), std::move(ends.receivers),
                                     receiver_options, Soon()));
    for (std::size_t i = 0; i < channels; ++i) {
      sent_.push_back(Must(sender->comm(i).Register(source.get(), bytes, /*on_gpu=*/false)));
      received_.push_back(Must(receiver->comm(i).Register(target->data(), bytes, /*on_gpu=*/true)));
    }
  }
  ~Bed() {
    (void)receiver->Drain(Soon());
    // Registrations go before their comms.
    sent_.clear();
    received_.clear();
  }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  cuda::DeviceApi* api() { return counting ? &*counting : nullptr; }
  std::size_t made_on_device() const { return counting->made(); }
  cuda::SimulatedDevices* simulated() { return devices->simulated(); }

  // All of the memory, in chunks that are dealt over the channels.
  void Begin() {
    for (std::uint64_t id = 0, at = 0; at < bytes_; ++id, at += kChunkBytes) {
      const std::size_t bytes = std::min<std::size_t>(kChunkBytes, bytes_ - at);
      const std::size_t channel = id % received_.size();
      const int tag = kTagBase + static_cast<int>(id);
      receiver->Receive(channel,
                        {id, at, {target->data() + at, bytes, tag, received_[channel].mr()}},
                        {target->place(), {{at, bytes}}});
      sender->Send(channel, {id, at, {source.get() + at, bytes, tag, sent_[channel].mr()}});
    }
  }
  // Until all has come, or something fails.
  Status Run() {
    std::vector<std::uint64_t> sent;
    std::vector<std::uint64_t> received;
    const Deadline deadline = Soon();
    while (receiver->in_flight() > 0 || sender->in_flight() > 0) {
      FERRY_TRY(sender->Progress(&sent));
      FERRY_TRY(receiver->Progress(&received));
      if (deadline.expired()) return Error(Code::kTimedOut, "the test's own timeout is over");
    }
    return Ok();
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
  std::optional<Target> target;
  Pages source;
  std::unique_ptr<Unpacker> unpacker;
  std::optional<Sender> sender;
  std::unique_ptr<Receiver> receiver;

  const std::vector<Registration>& received() const { return received_; }
  const std::vector<Registration>& sent() const { return sent_; }

 private:
  static std::unique_ptr<cuda::DeviceTarget> MakeDevices(UnpackBy by, bool on_gpu) {
    if (by == UnpackBy::kHost && !on_gpu) return nullptr;
    auto made = (on_gpu ? cuda::kRealCase : cuda::kSimulatedCases[0]).make();
    return made;
  }
  static Variables WithPlace(Variables variables, bool on_gpu) {
    if (on_gpu) variables.emplace_back("GPU", "1");
    return variables;
  }

  const std::size_t bytes_;
  std::vector<Registration> sent_;
  std::vector<Registration> received_;
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

TEST_P(PluginSpread, EveryByteArrivesOverAnyNumberOfChannelsAndInterfaces) {
  const auto& [on, by, channels, nics] = GetParam();
  Bed bed({{"NICS", std::to_string(nics)}, {"FRAGMENTS", "random"}}, by,
          static_cast<std::size_t>(channels), kChunks * kChunkBytes, options_);
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  bed.ExpectWhole();
}
std::string SpreadName(const ::testing::TestParamInfo<Spread>& info) {
  const auto& [on, by, channels, nics] = info.param;
  return std::string(NameOf(by)) + "_" + std::to_string(channels) + "channels_" +
         std::to_string(nics) + "nics";
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
  ChunkPlace place{bed.target->place(), {}};
  for (std::size_t at = kBytes; at > 0; at -= kPiece) place.runs.push_back({at - kPiece, kPiece});
  bed.receiver->Receive(0, {0, 0, {bed.target->data(), kBytes, 0, bed.received()[0].mr()}}, place);
  bed.sender->Send(0, {0, 0, {bed.source.get(), kBytes, 0, bed.sent()[0].mr()}});
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

TEST(PluginTransfer, ChunksOfNoBytesComeBetweenOthers) {
  constexpr std::size_t kCount = 40;
  Bed bed({}, UnpackBy::kHost, 1, kCount * 4096);
  for (std::uint64_t id = 0; id < kCount; ++id) {
    const std::size_t at = id * 4096;
    const std::size_t bytes = id % 3 == 1 ? 0 : 4096;
    if (bytes == 0) std::memset(bed.source.get() + at, 0x11, 4096);
    bed.receiver->Receive(0, {id, at, {bed.target->data() + at, bytes, 0, bed.received()[0].mr()}},
                          {bed.target->place(), {{at, bytes}}});
    bed.sender->Send(0, {id, at, {bed.source.get() + at, bytes, 0, bed.sent()[0].mr()}});
  }
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  bed.ExpectWhole();
}

TEST(PluginTransfer, WhatIsInPlaceAfterADrainIsTold) {
  Bed bed({}, UnpackBy::kKernel, 1, 2 * kChunkBytes);
  bed.Begin();
  bed.simulated()->Pause();
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> received;
  for (const Deadline timeout = Soon(); bed.unpacker->in_flight() == 0 && !timeout.expired();) {
    MustBe(bed.sender->Progress(&sent));
    MustBe(bed.receiver->Progress(&received));
  }
  bed.simulated()->Resume();
  MustBe(bed.receiver->Drain(Soon()));
  for (const Deadline timeout = Soon(); received.size() < 2 && !timeout.expired();) {
    MustBe(bed.sender->Progress(&sent));
    MustBe(bed.receiver->Progress(&received));
  }
  EXPECT_THAT(received, ::testing::ElementsAre(0, 1));
}

// A drain finds out what the GPU has said, too, and no later call takes the chunk for one in place.
TEST(PluginTransfer, AChunkThatTheGpuRefusesDuringADrainIsNeverToldAsInPlace) {
  Bed bed({{"FAULT", "overlap@2"}}, UnpackBy::kKernel, 1, 3 * kChunkBytes);
  bed.Begin();
  bed.simulated()->Pause();
  std::vector<std::uint64_t> ids;
  const Deadline timeout = Soon();
  while (bed.receiver->launch_times().chunks < 3 && !timeout.expired()) {
    MustBe(bed.sender->Progress(&ids));
    MustBe(bed.receiver->Progress(&ids));
  }
  bed.simulated()->Resume();
  const Status drained = bed.receiver->Drain(Soon());
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().code(), Code::kCorrupt);
  EXPECT_THAT(drained.error().message(), HasSubstr("receiving chunk 1 (offset 524288"));
  std::vector<std::uint64_t> received;
  const Status later = bed.receiver->Progress(&received);
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().message(), drained.error().message());
  EXPECT_THAT(received, ::testing::IsEmpty());
}

// As memory of another library is, of which a page has been registered.
TEST(PluginTransfer, RowsOfWhichOnlyAPartIsPinnedAreReadByTheCpu) {
  constexpr std::size_t kBytes = 20 * kChunkBytes;
  const auto devices = cuda::kSimulatedCases[0].make();
  cuda::DeviceApi& api = devices->api();
  const auto current = Must(api.MakeCurrent(0));
  StandIn stand_in(Variables{});
  Ends ends = Must(plugin::testing::Connect(Must(stand_in.Open()), 1, Soon()));
  // The handle lies in host memory.
  const auto& handle =
      *static_cast<const tcpx::UnpackHandle*>(ends.receivers[0]->device_handle().handle);
  const auto page = Must(api.RegisterHost(0, handle.meta, 4096));
  UnpackerOptions options;
  options.kind = cuda::CopyKind::kHostToDevice;
  const auto unpacker = Must(Unpacker::Create(&api, 0, options));
  Target target(&api, kBytes);
  const Pages source = MakePattern(kBytes, 3);
  Sender sender(std::move(ends.senders), std::chrono::seconds(30));
  const auto receiver =
      Must(Receiver::Create(&api, unpacker.get(), std::move(ends.receivers), {}, Soon()));
  const auto sent = Must(sender.comm(0).Register(source.get(), kBytes, /*on_gpu=*/false));
  const auto received = Must(receiver->comm(0).Register(target.data(), kBytes, /*on_gpu=*/true));
  for (std::uint64_t id = 0, at = 0; at < kBytes; ++id, at += kChunkBytes) {
    receiver->Receive(0, {id, at, {target.data() + at, kChunkBytes, 0, received.mr()}},
                      {target.place(), {{at, kChunkBytes}}});
    sender.Send(0, {id, at, {source.get() + at, kChunkBytes, 0, sent.mr()}});
  }
  std::vector<std::uint64_t> ids;
  for (const Deadline timeout = Soon(); receiver->in_flight() > 0 && !timeout.expired();) {
    MustBe(sender.Progress(&ids));
    MustBe(receiver->Progress(&ids));
  }
  const auto got = target.Look();
  EXPECT_TRUE(std::equal(got.begin(), got.end(), source.get()));
}

TEST(PluginTransfer, MoreThanTheUnpackerTakesAtOnceIsUnpackedInParts) {
  // A chunk has 128 pieces, and all of both windows may come in one turn.
  for (const std::uint64_t most_pieces : {130U, 300U, 1000U}) {
    Bed bed({}, UnpackBy::kKernel, 2, kChunks * kChunkBytes, {.most_pieces = most_pieces});
    bed.Begin();
    bed.simulated()->Pause();
    std::vector<std::uint64_t> ids;
    // Until the windows are full of what has come.
    for (const Deadline enough = Deadline::After(std::chrono::seconds(1)); !enough.expired();) {
      MustBe(bed.sender->Progress(&ids));
      const Status progressed = bed.receiver->Progress(&ids);
      if (!progressed) bed.simulated()->Resume();
      ASSERT_TRUE(progressed) << progressed.error().message();
    }
    bed.simulated()->Resume();
    const Status ended = bed.Run();
    ASSERT_TRUE(ended) << ended.error().message();
    bed.ExpectWhole();
  }
}

TEST(PluginTransfer, ACallerThatWasAwayForLongerThanTheTimeoutFindsWhatHasCome) {
  Bed bed({}, UnpackBy::kHost, 1, kChunkBytes, {.chunk_timeout = std::chrono::seconds(3)});
  bed.Begin();
  std::vector<std::uint64_t> ids;
  MustBe(bed.receiver->Progress(&ids));
  MustBe(bed.sender->Progress(&ids));
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  const Status ended = bed.Run();
  ASSERT_TRUE(ended) << ended.error().message();
  bed.ExpectWhole();
}

TEST(PluginTransfer, AnErrorStays) {
  Bed bed({}, UnpackBy::kHost, 1, 2 * kChunkBytes);
  bed.receiver->Receive(0, {0, 0, {bed.target->data(), kChunkBytes, 0, bed.received()[0].mr()}},
                        {bed.target->place(), {{0, kChunkBytes - 1}}});
  bed.receiver->Receive(0, {1, 0, {bed.target->data(), kChunkBytes, 0, bed.received()[0].mr()}},
                        {bed.target->place(), {{0, kChunkBytes}}});
  bed.sender->Send(0, {0, 0, {bed.source.get(), kChunkBytes, 0, bed.sent()[0].mr()}});
  bed.sender->Send(0, {1, 0, {bed.source.get(), kChunkBytes, 0, bed.sent()[0].mr()}});
  const Status ended = bed.Run();
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().message(), HasSubstr("has come for a receive of 524287 bytes"));
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
  EXPECT_THAT(ended.error().message(), AllOf(HasSubstr("receiving chunk "), HasSubstr("offset ")));
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

// ---- the proof ----------------------------------------------------------------------------------

// As Receiver does, but returns the plugin's memory before the copy has ended: then other bytes
// than those that came are copied. So this test's counterparts above see when that goes wrong.
TEST(PluginTransfer, MemoryThatIsGivenBackBeforeTheCopyIsDoneIsSeen) {
  constexpr std::size_t kBytes = kChunkBytes;
  StandIn stand_in(Variables{});
  Plugin* const plugin = Must(stand_in.Open());
  const auto devices = cuda::kSimulatedCases[0].make();
  cuda::DeviceApi& api = devices->api();
  UnpackerOptions options;
  options.kind = cuda::CopyKind::kHostToDevice;
  const auto unpacker = Must(Unpacker::Create(&api, 0, options));
  Ends ends = Must(plugin::testing::Connect(plugin, 1, Soon()));
  ReceiveComm& comm = *ends.receivers[0];
  const UnpackRows rows = Must(UnpackRows::Open(comm, &api, Soon()));
  const auto pin = Must(api.RegisterHost(0, rows.pool(), kPoolBytes));
  Target target(&api, kBytes);
  const Pages source = MakePages(kBytes);
  std::memset(source.get(), 0x22, kBytes);
  const auto sent = Must(ends.senders[0]->Register(source.get(), kBytes, /*on_gpu=*/false));
  const auto received = Must(comm.Register(target.data(), kBytes, /*on_gpu=*/true));
  ASSERT_TRUE(Must(comm.Receive({target.data(), kBytes, 0, received.mr()})));
  ASSERT_TRUE(Must(ends.senders[0]->Send({source.get(), kBytes, 0, sent.mr()})));
  ReceiveComm::Arrival arrival;
  for (const Deadline deadline = Soon(); !arrival.done && !deadline.expired();) {
    (void)Must(ends.senders[0]->Test());
    arrival = Must(comm.Test());
  }
  ASSERT_TRUE(arrival.done);
  std::vector<Block> blocks;
  FragmentReader reader;
  const PostedRun run{0, kBytes};
  MustBe(reader.Read(Must(rows.Read(arrival)), {kPoolBytes, kBytes, {&run, 1}}, &blocks));
  devices->simulated()->Pause();
  const PlacedList list{blocks, target.place(), Must(Place::OnHost(api, 0, rows.pool()))};
  (void)Must(unpacker->Enqueue({&list, 1}));
  MustBe(comm.Consume());  // too early
  devices->simulated()->Resume();
  MustBe(unpacker->Drain(Soon()));
  const auto got = target.Look();
  EXPECT_FALSE(std::equal(got.begin(), got.end(), source.get()));
  EXPECT_EQ(got[100], kPoison);
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
  // Short only where it is to pass: chunks take long on a busy machine.
  const std::chrono::milliseconds timeout(GetParam().code == Code::kTimedOut ? 500 : 30'000);
  Bed bed({{"FAULT", GetParam().name}}, UnpackBy::kKernel, 2, 20 * kChunkBytes,
          {.chunk_timeout = timeout});
  bed.Begin();
  const Status ended = bed.Run();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), GetParam().code) << ended.error().message();
  EXPECT_THAT(ended.error().message(),
              AllOf(HasSubstr(GetParam().text), HasSubstr("chunk "), HasSubstr("offset "),
                    HasSubstr("tag "), HasSubstr("channel "), HasSubstr(" of 2 (device ")));
}
constexpr Fault kFaults[] = {
    {"isend_rc2", Code::kPeerLost, "isend of 524288 bytes"},
    {"irecv_rc3", Code::kPeerLost, "irecv of 524288 bytes"},
    {"test_rc2@3", Code::kPeerLost, "test of a "},
    {"stuck_count", Code::kTimedOut, "nothing has come for 0.5 s"},
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
}  // namespace ferry::net::plugin
