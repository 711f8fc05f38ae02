// Tests of unpacking on simulated devices and GPUs.
#include "ferry/tcpx/unpack/unpacker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ferry/copy/testing/copy_bed.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/tcpx/unpack/testing/scatter.h"

// Every executor copies messages to their destinations and touches nothing else: from pools on the
// GPU and pinned pools, on simulated devices and on GPUs.
namespace ferry::tcpx {
namespace {

using cuda::CopyKind;
using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kMessage = 60'000;  // every touched byte costs time
#else
constexpr std::uint64_t kMessage = 512 * 1024 + 9;
#endif
constexpr auto kTimeout = std::chrono::seconds(60);
constexpr std::size_t kGuard = 100;

struct WayCase {
  const char* name;
  UnpackBy by;
  CopyKind kind;
  bool dst_on_device;
};
void PrintTo(const WayCase& way, std::ostream* out) { *out << way.name; }
bool PoolOnDevice(const WayCase& way) {
  return way.dst_on_device && way.kind == CopyKind::kDeviceToDevice;
}

constexpr WayCase kKernelWithin{"kernel_D2D", UnpackBy::kKernel, CopyKind::kDeviceToDevice, true};
constexpr WayCase kKernelUp{"kernel_H2D", UnpackBy::kKernel, CopyKind::kHostToDevice, true};
constexpr WayCase kDmaWithin{"dma_D2D", UnpackBy::kDma, CopyKind::kDeviceToDevice, true};
constexpr WayCase kDmaUp{"dma_H2D", UnpackBy::kDma, CopyKind::kHostToDevice, true};
constexpr WayCase kHostWithin{"host_D2D", UnpackBy::kHost, CopyKind::kDeviceToDevice, true};
constexpr WayCase kByHost{"host", UnpackBy::kHost, CopyKind::kDeviceToDevice, false};

using UnpackCase = std::tuple<cuda::DeviceCase, WayCase>;
std::string UnpackCaseName(const ::testing::TestParamInfo<UnpackCase>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
}

// A message in a pool and its destination, both at odd addresses.
struct Message {
  Scattered scattered;
  std::vector<PostedRun> runs;
  CopyBed::Memory pool;
  CopyBed::Memory place;
  std::uint64_t pool_skip = 0;
  std::uint64_t place_skip = 0;
  std::vector<Block> blocks;
  std::vector<std::byte> expected;

  PlacedList request() const { return {blocks, place.place + place_skip, pool.place + pool_skip}; }
};

class UnpackerTest : public ::testing::TestWithParam<UnpackCase> {
 protected:
  void SetUp() override {
    target_ = std::get<0>(GetParam()).make();
    if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
    bed_.emplace(&target_->api());
    unpacker_ = Make({});
  }
  // Destroys the queued work before the memory that it uses.
  void TearDown() override { unpacker_.reset(); }

  cuda::DeviceApi& api() { return target_->api(); }
  const WayCase& way() const { return std::get<1>(GetParam()); }
  static Deadline Limit() { return Deadline::After(kTimeout); }
  std::unique_ptr<Unpacker> Make(UnpackerOptions options) {
    options.by = way().by;
    options.kind = way().kind;
    return Must(Unpacker::Create(way().dst_on_device ? &api() : nullptr, 0, options));
  }

  // A run for each of these lengths; without lengths, one run that is a bit longer than the
  // message.
  Message MakeMessage(const std::vector<std::uint32_t>& lengths,
                      const std::vector<std::uint32_t>& run_lengths = {}, std::uint64_t seed = 1) {
    Message message;
    message.scattered = Scatter(lengths, {.seed = seed, .begin = seed % 7});
    ScatteredRuns runs{{{5, message.scattered.bytes + 3}}, message.scattered.bytes + 8};
    if (!run_lengths.empty()) runs = ScatterRuns(run_lengths, seed);
    message.runs = runs.runs;
    message.pool_skip = seed % 16;
    message.place_skip = seed * 5 % 16;
    const std::uint64_t pool_bytes = message.scattered.pool_end;
    message.pool = bed_->Make(message.pool_skip + pool_bytes + 1, PoolOnDevice(way()), seed);
    message.place =
        bed_->Make(message.place_skip + runs.place_end + kGuard, way().dst_on_device, ~seed);
    Must(reader_.Read(message.scattered.fragments,
                      {pool_bytes, message.scattered.bytes, message.runs}, &message.blocks));
    message.expected = bed_->Look(&message.place);
    const std::vector<std::byte> pool = bed_->Look(&message.pool);
    PutInPlace(message.scattered, message.runs, std::span(pool).subspan(message.pool_skip),
               std::span(message.expected).subspan(message.place_skip));
    return message;
  }

  void ExpectInPlace(Message* message) {
    const std::vector<std::byte> got = bed_->Look(&message->place);
    if (SameBytes(got, message->expected)) return;
    const auto [wrong, right] =
        std::mismatch(got.begin(), got.end(), message->expected.begin(), message->expected.end());
    EXPECT_EQ(wrong, got.end()) << "byte " << (wrong - got.begin()) << " of " << got.size();
  }

  // Polls until the batch is done; checks that Completed() never decreases.
  void WaitFor(Unpacker* unpacker, std::uint64_t ticket) {
    const Deadline limit = Limit();
    for (std::uint64_t before = 0;;) {
      const std::uint64_t done = Must(unpacker->Completed());
      EXPECT_GE(done, before);
      before = done;
      if (done >= ticket) return;
      ASSERT_FALSE(limit.expired()) << done << " of " << ticket;
      std::this_thread::yield();
    }
  }

  void ExpectRight(const std::vector<std::uint32_t>& lengths,
                   const std::vector<std::uint32_t>& run_lengths = {}) {
    Message message = MakeMessage(lengths, run_lengths, ++seed_);
    const PlacedList request = message.request();
    WaitFor(unpacker_.get(), Must(unpacker_->Enqueue({&request, 1})));
    ExpectInPlace(&message);
  }

  // Overwrites the pool, on the bed's stream or on this thread.
  void QueueOverwrite(Message* message) {
    for (std::byte& byte : message->pool.host.bytes()) byte = ~byte;
    if (!message->pool.device) return;
    const cuda::CopyItem item{message->pool.device.data(), message->pool.host.data(),
                              message->pool.host.size()};
    Must(api().Copy(bed_->stream(), CopyKind::kHostToDevice, {&item, 1}));
  }

  std::unique_ptr<cuda::DeviceTarget> target_;
  std::optional<CopyBed> bed_;
  std::unique_ptr<Unpacker> unpacker_;
  FragmentReader reader_;
  std::uint64_t seed_ = 0;
};

// ---- bytes --------------------------------------------------------------------------------------

TEST_P(UnpackerTest, FragmentsOfAnyLengthsGoToTheirPlaces) {
  ExpectRight(LengthsOf(kMessage, 1, 9000));
  ExpectRight(LengthsOf(kMessage / 50, 1, 100));
  ExpectRight(LengthsOf(kMessage / 500, 1, 17));
}

TEST_P(UnpackerTest, FragmentsOfOneLengthGoToTheirPlaces) {
  for (const std::uint32_t len : {1448U, 4096U, 4095U, 4092U, 4088U, 4080U, 3968U}) {
    ExpectRight(LengthsOf(kMessage, len, len));
  }
}

TEST_P(UnpackerTest, ALastFragmentOfFewBytesGoesToItsPlace) {
  for (std::uint64_t last = 1; last <= 16; ++last) ExpectRight(LengthsOf(8192 + last, 4096, 4096));
}

TEST_P(UnpackerTest, AsManyFragmentsAsThereMayBeGoToTheirPlaces) {
  for (const std::size_t count : {kMaxFragments - 1, kMaxFragments}) {
    const auto average = static_cast<std::uint32_t>(kMessage / count);
    ExpectRight(std::vector<std::uint32_t>(count, average | 1U));
  }
}

TEST_P(UnpackerTest, FragmentsThatAreLongGoToTheirPlaces) {
  ExpectRight({70'001, 1, 200'000, 16'384, 32'768, 32'769});
}

TEST_P(UnpackerTest, FragmentsAreCutWhereRunsEnd) {
  for (const std::uint32_t most : {100U, 4096U, 30'000U}) {
    ExpectRight(LengthsOf(kMessage / 4, 1, 9000), LengthsOf(kMessage / 4, 1, most, 2));
    ExpectRight(LengthsOf(kMessage / 4, 4096, 4096), LengthsOf(kMessage / 4 + 99, most, most, 2));
  }
}

TEST_P(UnpackerTest, ManyMessagesAreOneBatch) {
  std::vector<Message> messages;
  std::vector<PlacedList> requests;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    messages.push_back(MakeMessage(LengthsOf(kMessage / 20 + i, 1, 4096, i),
                                   LengthsOf(i % 3 == 0 ? kMessage / 10 : 0, 1, 3000, i), i));
  }
  messages.push_back(MakeMessage({}));
  for (const Message& message : messages) requests.push_back(message.request());
  WaitFor(unpacker_.get(), Must(unpacker_->Enqueue(requests)));
  for (Message& message : messages) ExpectInPlace(&message);
}

TEST_P(UnpackerTest, BatchesOfNothingHaveTheirTurn) {
  Message message = MakeMessage(LengthsOf(kMessage, 4096, 4096));
  Message empty = MakeMessage({});
  const PlacedList requests[]{message.request(), empty.request()};
  EXPECT_EQ(Must(unpacker_->Enqueue({requests, 1})), 1U);
  EXPECT_EQ(Must(unpacker_->Enqueue({requests + 1, 1})), 2U);
  EXPECT_EQ(Must(unpacker_->Enqueue({})), 3U);
  WaitFor(unpacker_.get(), 3);
  ExpectInPlace(&message);
  ExpectInPlace(&empty);
}

TEST_P(UnpackerTest, NothingOfARefusedMessageIsCopied) {
  Message message = MakeMessage(LengthsOf(kMessage, 4096, 4096));
  const std::vector<std::byte> before = bed_->Look(&message.place);
  message.scattered.fragments[3].dst += 1;
  message.blocks.clear();
  const Status refused =
      reader_.Read(message.scattered.fragments,
                   {message.scattered.pool_end, kMessage, message.runs}, &message.blocks);
  ASSERT_FALSE(refused);
  const PlacedList request = message.request();
  WaitFor(unpacker_.get(), Must(unpacker_->Enqueue({&request, 1})));
  EXPECT_TRUE(bed_->Look(&message.place) == before);
}

// ---- tickets ------------------------------------------------------------------------------------

// More batches than fit at once, from a pool that is overwritten as soon as allowed.
TEST_P(UnpackerTest, APoolMayBeWrittenAgainWhenItsBatchIsDone) {
  constexpr std::uint64_t kBatches = 40;
  const auto unpacker = Make({.most_batches = 3, .most_pieces = 500});
  EXPECT_EQ(Must(unpacker->Completed()), 0U);
  std::vector<Message> messages;
  for (std::uint64_t i = 1; i <= kBatches; ++i) {
    const std::uint32_t most = i % 3 == 0 ? 9000 : 4096;
    messages.push_back(MakeMessage(LengthsOf(i % 9 * 10'000, most / 20, most, i), {}, i));
  }
  std::uint64_t written = 0;
  const auto overwrite = [&] {
    for (const std::uint64_t done = Must(unpacker->Completed()); written < done; ++written) {
      QueueOverwrite(&messages[written]);
    }
  };
  const Deadline limit = Limit();
  for (std::uint64_t next = 1; next <= kBatches;) {
    ASSERT_FALSE(limit.expired());
    const PlacedList request = messages[next - 1].request();
    const auto ticket = unpacker->Enqueue({&request, 1});
    if (ticket) {
      EXPECT_EQ(*ticket, next++);
    } else {
      EXPECT_EQ(ticket.error().code(), Code::kUnavailable) << ticket.error().message();
    }
    overwrite();
  }
  WaitFor(unpacker.get(), kBatches);
  overwrite();
  bed_->Finish();
  EXPECT_EQ(written, kBatches);
  EXPECT_EQ(unpacker->in_flight(), 0U);
  for (Message& message : messages) ExpectInPlace(&message);
}

TEST_P(UnpackerTest, WhatIsDrainedIsInPlace) {
  Message message = MakeMessage(LengthsOf(kMessage, 1, 4096));
  const PlacedList request = message.request();
  Must(unpacker_->Enqueue({&request, 1}));
  Must(unpacker_->Drain(Limit()));
  EXPECT_EQ(unpacker_->in_flight(), 0U);
  EXPECT_EQ(Must(unpacker_->Completed()), 1U);
  ExpectInPlace(&message);
}

TEST_P(UnpackerTest, OptionsOutOfRangeAreRefused) {
  for (UnpackerOptions options :
       {UnpackerOptions{.most_batches = 0}, UnpackerOptions{.most_batches = 49},
        UnpackerOptions{.most_pieces = 0}}) {
    options.by = way().by;
    const auto made = Unpacker::Create(&api(), 0, options);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
  }
}

// ---- work that the GPU does later ---------------------------------------------------------------

class LaterUnpackerTest : public UnpackerTest {};

TEST_P(LaterUnpackerTest, WhatAnotherStreamWritesIsWaitedFor) {
  Message message = MakeMessage(LengthsOf(kMessage, 1, 4096));
  const auto event = Must(api().CreateEvent(0, cuda::EventTiming::kOff));
  QueueOverwrite(&message);
  Must(api().Record(event, bed_->stream()));
  Must(api().WaitFor(unpacker_->stream(), event));
  const PlacedList request = message.request();
  WaitFor(unpacker_.get(), Must(unpacker_->Enqueue({&request, 1})));
  PutInPlace(message.scattered, message.runs, message.pool.host.bytes().subspan(message.pool_skip),
             std::span(message.expected).subspan(message.place_skip));
  ExpectInPlace(&message);
}

// Nothing but the order of the stream keeps the overwriting, the batch and the reading apart.
TEST_P(LaterUnpackerTest, BatchesRunAmongTheWorkOfTheCallersStream) {
  const auto unpacker = Make({.stream = bed_->stream()});
  EXPECT_EQ(unpacker->stream().native(), bed_->stream().get().native);
  Message message = MakeMessage(LengthsOf(kMessage, 1, 4096));
  QueueOverwrite(&message);
  const PlacedList request = message.request();
  const std::uint64_t ticket = Must(unpacker->Enqueue({&request, 1}));
  const cuda::CopyItem fetch{message.place.host.data(), message.place.device.data(),
                             message.place.host.size()};
  const std::vector<std::byte> pool(message.pool.host.bytes().begin(),
                                    message.pool.host.bytes().end());
  Must(api().Copy(bed_->stream(), CopyKind::kDeviceToHost, {&fetch, 1}));
  bed_->Finish();
  EXPECT_EQ(Must(unpacker->Completed()), ticket);
  PutInPlace(message.scattered, message.runs, std::span(pool).subspan(message.pool_skip),
             std::span(message.expected).subspan(message.place_skip));
  EXPECT_TRUE(SameBytes(message.place.host.bytes(), message.expected));
}

TEST_P(LaterUnpackerTest, TheGpusTimeForBatchesIsMeasuredOnRequest) {
  Message message = MakeMessage(LengthsOf(kMessage, 1, 4096));
  const PlacedList request = message.request();
  for (const bool timing : {false, true}) {
    const auto unpacker = Make({.most_batches = 3, .timing = timing});
    for (std::uint64_t batch = 1; batch <= 7; ++batch) {
      Must(unpacker->Enqueue({&request, 1}));
      if (batch % 2 == 0) WaitFor(unpacker.get(), batch);
    }
    Must(unpacker->Drain(Limit()));
    const BatchTimes& times = unpacker->times();
    EXPECT_EQ(times.batches, timing ? 7U : 0U);
    EXPECT_EQ(times.total.count() > 0, timing);
    EXPECT_LE(times.newest, times.longest);
    EXPECT_GE(times.longest * 7, times.total);
    EXPECT_LE(times.longest, times.total);
  }
}

class SimulatedUnpackerTest : public LaterUnpackerTest {};

TEST_P(SimulatedUnpackerTest, DrainingDoesNotWaitForLaterWorkOfTheCallersStream) {
  const auto flag = Must(api().AllocatePinned(0, sizeof(std::uint32_t)));
  cuda::StoreFlag(flag.data(), 0);
  const auto unpacker = Make({.stream = bed_->stream()});
  Message message = MakeMessage(LengthsOf(kMessage, 1, 4096));
  const PlacedList request = message.request();
  Must(unpacker->Enqueue({&request, 1}));
  Must(api().WaitForFlag(bed_->stream(), Must(api().MappedAddress(0, flag.data())), 1));
  const Status drained = unpacker->Drain(Limit());
  cuda::StoreFlag(flag.data(), 1);
  Must(drained);
  bed_->Finish();
  ExpectInPlace(&message);
}

TEST_P(SimulatedUnpackerTest, AStreamOfAnotherGpuIsRefused) {
  const auto made =
      Unpacker::Create(&api(), 0, {.by = way().by, .stream = cuda::StreamRef::Foreign(1, nullptr)});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(made.error().message(),
            "an unpacker of GPU 0 cannot use a stream of GPU 1; give it one of its own GPU");
}

// Proves that the tests above would detect an unpacker that reports a batch too early.
TEST_P(SimulatedUnpackerTest, APoolThatIsWrittenTooEarlyIsSeen) {
  Message message = MakeMessage(LengthsOf(kMessage, 1, 4096));
  target_->simulated()->Pause();
  const auto event = Must(api().CreateEvent(0, cuda::EventTiming::kOff));
  Must(api().Record(event, bed_->stream()));
  const PlacedList request = message.request();
  if (message.pool.device) {  // the GPU reaches the batch after the other stream's work
    QueueOverwrite(&message);
    Must(api().Record(event, bed_->stream()));
    Must(api().WaitFor(unpacker_->stream(), event));
  }
  const std::uint64_t ticket = Must(unpacker_->Enqueue({&request, 1}));
  EXPECT_EQ(Must(unpacker_->Completed()), 0U);
  if (!message.pool.device) QueueOverwrite(&message);
  target_->simulated()->Resume();
  WaitFor(unpacker_.get(), ticket);
  const std::vector<std::byte> wrong = bed_->Look(&message.place);
  EXPECT_FALSE(wrong == message.expected);
  PutInPlace(message.scattered, message.runs, message.pool.host.bytes().subspan(message.pool_skip),
             std::span(message.expected).subspan(message.place_skip));
  ExpectInPlace(&message);
}

TEST_P(SimulatedUnpackerTest, ABatchIsOneLaunchOrOneCopyAndOneEvent) {
  std::vector<Message> messages;
  std::vector<PlacedList> requests;
  for (std::uint64_t i = 1; i <= 4; ++i) {
    messages.push_back(MakeMessage(LengthsOf(40'000, 1, 4096, i), {}, i));
  }
  for (const Message& message : messages) requests.push_back(message.request());
  const auto before = target_->simulated()->counters();
  Must(unpacker_->Enqueue(requests));
  const auto after = target_->simulated()->counters();
  const bool kernel = way().by == UnpackBy::kKernel;
  EXPECT_EQ(after.launches, before.launches + (kernel ? 1 : 0));
  const bool by_host = way().by == UnpackBy::kHost;  // down and up
  EXPECT_EQ(after.copy_calls, before.copy_calls + (kernel ? 0 : by_host ? 2 : 1));
  EXPECT_LE(after.records, before.records + 2);  // one is the kernel executor's
}

TEST_P(SimulatedUnpackerTest, NothingIsMadeForABatch) {
  const auto unpacker = Make({.most_batches = 4, .most_pieces = 100});
  Message message = MakeMessage(LengthsOf(60'000, 1000, 4096));
  ASSERT_LE(message.blocks.size(), 100U);
  const auto before = target_->simulated()->counters();
  for (int i = 0; i < 200; ++i) {
    const PlacedList request = message.request();
    WaitFor(unpacker.get(), Must(unpacker->Enqueue({&request, 1})));
  }
  const auto after = target_->simulated()->counters();
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
  EXPECT_EQ(after.registrations, before.registrations);
  ExpectInPlace(&message);
}

// The GPU is paused, so a call that waits would not return in time. The executor's ring is filled
// to the last piece, from every position.
TEST_P(SimulatedUnpackerTest, EnqueueDoesNotWaitForTheGpu) {
  constexpr std::uint32_t kBatches = 5;
  constexpr std::uint64_t kPieces = 20;
  const auto unpacker = Make({.most_batches = kBatches, .most_pieces = kBatches * kPieces});
  std::vector<Message> messages;
  for (std::uint64_t i = 1; i <= kBatches; ++i) {
    messages.push_back(MakeMessage(std::vector<std::uint32_t>(kPieces, 100), {}, i));
    while (messages.back().blocks.size() != kPieces) {  // some continue each other
      messages.back() = MakeMessage(std::vector<std::uint32_t>(kPieces, 100), {}, ++seed_ + 100);
    }
  }
  for (std::size_t first = 1; first <= kBatches; ++first) {
    const PlacedList shift{std::span(messages[0].blocks).first(7), messages[0].request().dst,
                           messages[0].request().src};
    WaitFor(unpacker.get(), Must(unpacker->Enqueue({&shift, 1})));
    target_->simulated()->Pause();
    const auto begin = Clock::now();
    std::uint64_t ticket = 0;
    for (const Message& message : messages) {
      const PlacedList request = message.request();
      ticket = Must(unpacker->Enqueue({&request, 1}));
    }
    EXPECT_LT(Clock::now() - begin, kTimeout / 2);
    EXPECT_EQ(unpacker->room(), 0U);
    target_->simulated()->Resume();
    WaitFor(unpacker.get(), ticket);
  }
  for (Message& message : messages) ExpectInPlace(&message);
}

TEST_P(SimulatedUnpackerTest, ABatchThatHasNoRoomIsUnavailableUntilOneIsDone) {
  const auto unpacker = Make({.most_batches = 2, .most_pieces = 100});
  Message message = MakeMessage(LengthsOf(15'000, 300, 400));
  ASSERT_THAT(message.blocks.size(), ::testing::AllOf(::testing::Gt(25U), ::testing::Le(50U)));
  const PlacedList request = message.request();
  const PlacedList thrice[]{request, request, request};
  target_->simulated()->Pause();
  EXPECT_EQ(unpacker->room(), 2U);
  Must(unpacker->Enqueue({&request, 1}));
  const auto many = unpacker->Enqueue({thrice, 2});
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().code(), Code::kUnavailable);
  EXPECT_THAT(many.error().message(), HasSubstr("1 batches with "));
  EXPECT_EQ(Must(unpacker->Enqueue({})), 2U);
  EXPECT_EQ(unpacker->room(), 0U);
  const auto third = unpacker->Enqueue({});
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code(), Code::kUnavailable);
  EXPECT_THAT(third.error().message(), HasSubstr("2 batches with "));
  EXPECT_THAT(third.error().message(), HasSubstr("2 and 100 are the most"));
  EXPECT_EQ(Must(unpacker->Completed()), 0U);
  target_->simulated()->Resume();
  WaitFor(unpacker.get(), 2);
  EXPECT_EQ(unpacker->room(), 2U);
  EXPECT_EQ(Must(unpacker->Enqueue({})), 3U);
  const auto never = unpacker->Enqueue(thrice);
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(never.error().message(), HasSubstr("a batch of 3 messages with "));
  ExpectInPlace(&message);
}

TEST_P(SimulatedUnpackerTest, DrainingPastItsDeadlineIsToldAndCanBeRepeated) {
  Message message = MakeMessage(LengthsOf(kMessage, 1, 4096));
  const PlacedList request = message.request();
  target_->simulated()->Pause();
  Must(unpacker_->Enqueue({&request, 1}));
  const Status late = unpacker_->Drain(Deadline::After(milliseconds(5)));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kTimedOut);
  EXPECT_THAT(late.error().message(), HasSubstr("1 batches are still being unpacked on GPU 0"));
  target_->simulated()->Resume();
  Must(unpacker_->Drain(Limit()));
  ExpectInPlace(&message);
}

// ---- errors -------------------------------------------------------------------------------------

TEST_P(SimulatedUnpackerTest, ADeviceThatIsLostIsToldByAllCalls) {
  Message message = MakeMessage(LengthsOf(kMessage / 4, 1, 4096));
  const PlacedList request = message.request();
  const bool kernel = way().by == UnpackBy::kKernel;
  target_->simulated()->Inject({.ordinal = 0,
                                .at = kernel ? cuda::FaultPoint::kLaunch : cuda::FaultPoint::kCopy,
                                .fault = cuda::Fault::kIllegalAddress,
                                .skip = 5});
  const Deadline limit = Limit();
  std::optional<Error> lost;
  for (int i = 0; i < 10 && !lost; ++i) {
    const auto ticket = unpacker_->Enqueue({&request, 1});
    if (!ticket) lost = ticket.error();
  }
  while (!lost && !limit.expired()) {
    const auto done = unpacker_->Completed();
    if (!done) {
      lost = done.error();
    } else {
      EXPECT_LE(*done, 5U);
    }
  }
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code(), Code::kDeviceLost);
  EXPECT_THAT(lost->message(), HasSubstr(" of messages to unpack on GPU 0 ("));
  EXPECT_EQ(unpacker_->Enqueue({&request, 1}).error().message(), lost->message());
  EXPECT_EQ(unpacker_->Completed().error().message(), lost->message());
  EXPECT_EQ(unpacker_->Drain(Limit()).error().code(), Code::kDeviceLost);
}

// Part of the batch may be in flight: no further batch is accepted, but Drain() works.
TEST_P(SimulatedUnpackerTest, AfterABatchThatCouldNotBeQueuedOnlyTheEndIsWaitedFor) {
  Message message = MakeMessage(LengthsOf(kMessage, 1, 4096));
  const PlacedList request = message.request();
  Must(unpacker_->Enqueue({&request, 1}));
  const bool kernel = way().by == UnpackBy::kKernel;
  target_->simulated()->Inject({.ordinal = 0,
                                .at = kernel ? cuda::FaultPoint::kLaunch : cuda::FaultPoint::kCopy,
                                .fault = cuda::Fault::kInvalidValue});
  const auto failed = unpacker_->Enqueue({&request, 1});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(failed.error().message(),
              HasSubstr("queueing a batch of messages to unpack on GPU 0 ("));
  EXPECT_EQ(unpacker_->Enqueue({&request, 1}).error().message(), failed.error().message());
  EXPECT_EQ(unpacker_->Completed().error().message(), failed.error().message());
  Must(unpacker_->Drain(Limit()));
  ExpectInPlace(&message);
}

TEST_P(SimulatedUnpackerTest, WhatCannotBeMadeIsAnError) {
  for (const auto at :
       {cuda::FaultPoint::kStream, cuda::FaultPoint::kEvent, cuda::FaultPoint::kAllocatePinned}) {
    if (at == cuda::FaultPoint::kAllocatePinned && way().by != UnpackBy::kKernel) continue;
    target_->simulated()->Inject({.ordinal = 0, .at = at, .fault = cuda::Fault::kMemoryAllocation});
    const auto made = Unpacker::Create(&api(), 0, {.by = way().by, .kind = way().kind});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), Code::kUnavailable) << made.error().message();
  }
}

TEST_P(LaterUnpackerTest, AnExecutorOfTheCallersIsUsed) {
  unpacker_.reset();
  unpacker_ = Must(Unpacker::CreateWith(&api(), 0, MakeDmaExecutor(&api()), {.kind = way().kind}));
  ExpectRight(LengthsOf(kMessage, 1, 9000));
  ExpectRight(LengthsOf(kMessage, 4096, 4096));
}

// A GPU that cannot run the kernels of this build.
class KernellessUnpackerTest : public ::testing::Test {
 protected:
  const std::unique_ptr<cuda::SimulatedDevices> devices_ =
      Must(cuda::SimulatedDevices::Create({.kernels = false}));
};

TEST_F(KernellessUnpackerTest, UnpacksByTheCopyEngineUnlessToldOtherwise) {
  CopyBed bed(devices_.get());
  auto pool = bed.Make(3000, true, 1);
  auto place = bed.Make(3000, true, 2);
  const auto unpacker = Must(Unpacker::Create(devices_.get(), 0));
  EXPECT_FALSE(unpacker->reads_rows());
  const Block blocks[] = {{0, 2000, 1000}, {1000, 1000, 1000}, {2000, 0, 1000}};
  const PlacedList request{blocks, place.place, pool.place};
  Must(unpacker->Enqueue({&request, 1}));
  Must(unpacker->Drain(Deadline::After(kTimeout)));
  auto expected = bed.Look(&pool);
  std::swap_ranges(expected.begin(), expected.begin() + 1000, expected.begin() + 2000);
  EXPECT_EQ(bed.Look(&place), expected);
}

TEST_F(KernellessUnpackerTest, RefusesTheKernelAndNamesTheGpuAndTheFix) {
  const auto refused = Unpacker::Create(devices_.get(), 0, {.by = UnpackBy::kKernel});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnsupported);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("GPU 0 (simulated device, compute capability 9.0) cannot run the kernels "
                        "of this build, which has code for "));
  EXPECT_THAT(refused.error().message(), HasSubstr("-DFERRY_CUDA_ARCH=90a-real"));
}

const auto kDeviceWays =
    ::testing::Values(kKernelWithin, kKernelUp, kDmaWithin, kDmaUp, kHostWithin);

INSTANTIATE_TEST_SUITE_P(Simulated, UnpackerTest,
                         ::testing::Combine(::testing::Values(cuda::kSimulatedCases[1]),
                                            ::testing::Values(kKernelWithin, kKernelUp, kDmaWithin,
                                                              kDmaUp, kHostWithin, kByHost)),
                         UnpackCaseName);
INSTANTIATE_TEST_SUITE_P(Simulated, LaterUnpackerTest,
                         ::testing::Combine(::testing::Values(cuda::kSimulatedCases[1]),
                                            kDeviceWays),
                         UnpackCaseName);
INSTANTIATE_TEST_SUITE_P(Simulated, SimulatedUnpackerTest,
                         ::testing::Combine(::testing::ValuesIn(cuda::kSimulatedCases),
                                            kDeviceWays),
                         UnpackCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, UnpackerTest,
                         ::testing::Combine(::testing::Values(cuda::kRealCase), kDeviceWays),
                         UnpackCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, LaterUnpackerTest,
                         ::testing::Combine(::testing::Values(cuda::kRealCase), kDeviceWays),
                         UnpackCaseName);

}  // namespace
}  // namespace ferry::tcpx
