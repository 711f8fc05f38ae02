// Tests of the pipeline's bytes, errors and trace.
#include "ferry/copy/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/cuda/testing/forwarding_devices.h"
#include "ferry/cuda/testing/test_kernels.h"

namespace ferry {
namespace {

using cuda::CopyKind;
using ::testing::HasSubstr;

constexpr std::size_t kChunk = 10'000;
constexpr std::uint32_t kAdded = 77;
constexpr auto kRunTimeout = std::chrono::seconds(60);

template <class T>
T Given(Result<T> result) {
  EXPECT_TRUE(result) << (result ? "" : result.error().ToString());
  return *std::move(result);
}
void ExpectOk(const Status& status) { EXPECT_TRUE(status) << status.error().ToString(); }

// Host memory of either kind.
struct HostBytes {
  std::vector<std::byte> pageable;
  cuda::PinnedBuffer pinned;
  std::span<std::byte> all;
};

HostBytes MakeHost(cuda::DeviceApi* api, bool pinned, std::size_t bytes) {
  HostBytes made;
  if (pinned) {
    made.pinned = Given(api->AllocatePinned(0, std::max<std::size_t>(bytes, 1)));
    made.all = made.pinned.bytes().first(bytes);
  } else {
    made.pageable.resize(bytes);
    made.all = made.pageable;
  }
  return made;
}

// Adds to each whole word of a chunk, and copies the remaining bytes unchanged.
Status AddToWords(cuda::DeviceApi* api, cuda::StreamRef stream, const PipelineChunk& chunk) {
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  const std::size_t left = chunk.bytes % kWord;
  if (chunk.in != chunk.out && left > 0) {
    const std::size_t at = chunk.bytes - left;
    const cuda::CopyItem item{static_cast<std::byte*>(chunk.out) + at,
                              static_cast<const std::byte*>(chunk.in) + at, left};
    FERRY_TRY(api->Copy(stream, CopyKind::kDeviceToDevice, {&item, 1}));
  }
  if (chunk.bytes < kWord) return Ok();
  cuda::AddArguments arguments;
  arguments.dst = cuda::AddressOf(chunk.out);
  arguments.src = cuda::AddressOf(chunk.in);
  arguments.count = chunk.bytes / kWord;
  arguments.add = kAdded;
  return cuda::LaunchKernel(*api, stream, cuda::kAddWords, arguments);
}

std::vector<std::byte> AfterAdding(std::span<const std::byte> source, std::size_t chunk_bytes) {
  std::vector<std::byte> result(source.begin(), source.end());
  for (std::size_t at = 0; at < result.size(); at += chunk_bytes) {
    const std::size_t bytes = std::min(chunk_bytes, result.size() - at);
    for (std::size_t i = at; i + sizeof(std::uint32_t) <= at + bytes; i += sizeof(std::uint32_t)) {
      std::uint32_t word = 0;
      std::memcpy(&word, result.data() + i, sizeof word);
      word += kAdded;
      std::memcpy(result.data() + i, &word, sizeof word);
    }
  }
  return result;
}

class PipelineTest : public ::testing::TestWithParam<cuda::DeviceCase> {
 protected:
  void SetUp() override {
    target_ = GetParam().make();
    if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
  }

  cuda::DeviceApi& api() { return target_->api(); }
  static Deadline Limit() { return Deadline::After(kRunTimeout); }
  std::unique_ptr<Pipeline> Make(PipelineOptions options) {
    options.chunk_bytes = kChunk;
    return Given(Pipeline::Create(&api(), 0, options));
  }
  auto Adding() {
    return [this](cuda::StreamRef stream, const PipelineChunk& chunk) {
      return AddToWords(&api(), stream, chunk);
    };
  }
  // Runs both forms, between both kinds of memory.
  void ExpectRight(Pipeline* pipeline, std::size_t bytes) {
    for (const bool from_pinned : {false, true}) {
      for (const bool to_pinned : {false, true}) {
        const HostBytes source = MakeHost(&api(), from_pinned, bytes);
        FillRandomly(source.all, static_cast<unsigned>(bytes));
        const auto expected = AfterAdding(source.all, kChunk);
        for (const auto form : {&Pipeline::Run, &Pipeline::RunBlocking}) {
          const HostBytes destination = MakeHost(&api(), to_pinned, bytes);
          ExpectOk((pipeline->*form)(source.all, destination.all, Adding(), Limit()));
          EXPECT_TRUE(SameBytes(destination.all, expected))
              << bytes << " bytes, " << (from_pinned ? "pinned" : "pageable") << " to "
              << (to_pinned ? "pinned" : "pageable")
              << (form == &Pipeline::Run ? "" : ", blocking");
        }
      }
    }
  }

  std::unique_ptr<cuda::DeviceTarget> target_;
};

// ---- bytes --------------------------------------------------------------------------------------

TEST_P(PipelineTest, AllSizesGiveEveryByteByBothForms) {
  const auto pipeline = Make({});
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{3}, kChunk - 1, kChunk, kChunk + 1,
                                  2 * kChunk, 6 * kChunk, 6 * kChunk + 1, 13 * kChunk + 7}) {
    ExpectRight(pipeline.get(), bytes);
  }
}

TEST_P(PipelineTest, AllNumbersOfStreamsAndBuffersGiveTheSameBytes) {
  for (const int streams : {1, 2, 3, 4, 8}) {
    for (const int buffers : {1, 2, 3}) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(testing::Message() << streams << " streams, " << buffers << " buffers");
        const auto pipeline = Make({.streams = streams, .buffers = buffers, .in_place = in_place});
        ExpectRight(pipeline.get(), 11 * kChunk + 5);
      }
    }
  }
}

TEST_P(PipelineTest, SeveralThreadsThatStageGiveTheSameBytes) {
  constexpr std::size_t kLarge = 1'000'000;
  const auto pipeline =
      Given(Pipeline::Create(&api(), 0, {.chunk_bytes = kLarge, .staging_threads = 3}));
  std::vector<std::byte> source(7 * kLarge + 3);
  FillRandomly(source, 2);
  std::vector<std::byte> destination(source.size());
  ExpectOk(pipeline->Run(source, destination, Adding(), Limit()));
  EXPECT_TRUE(SameBytes(destination, AfterAdding(source, kLarge)));
}

TEST_P(PipelineTest, TheSourceMayBeTheDestination) {
  const auto pipeline = Make({});
  for (const bool pinned : {false, true}) {
    const HostBytes memory = MakeHost(&api(), pinned, 9 * kChunk + 1);
    FillRandomly(memory.all, 3);
    const auto expected = AfterAdding(memory.all, kChunk);
    ExpectOk(pipeline->Run(memory.all, memory.all, Adding(), Limit()));
    EXPECT_TRUE(SameBytes(memory.all, expected));
  }
}

TEST_P(PipelineTest, MemoryThatIsPinnedOnlyAtItsBeginningIsRight) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kPages = 20;
  std::vector<std::byte> memory((kPages + 1) * kPage);
  std::byte* const first = memory.data() + (kPage - cuda::AddressOf(memory.data()) % kPage) % kPage;
  const auto registration = Given(api().RegisterHost(0, first, 4 * kPage));
  const std::span<std::byte> source(first, kPages * kPage);
  FillRandomly(source, 4);
  std::vector<std::byte> destination(source.size());
  ExpectOk(Make({})->Run(source, destination, Adding(), Limit()));
  EXPECT_TRUE(destination == AfterAdding(source, kChunk));
}

TEST_P(PipelineTest, TheKernelIsCalledOnceForEveryChunkInTheirOrder) {
  const auto pipeline = Make({.streams = 2, .buffers = 2, .in_place = true});
  std::vector<std::byte> memory(5 * kChunk + 100);
  using Part = std::pair<std::uint64_t, std::size_t>;
  std::vector<Part> called;
  const auto kernel = [&](cuda::StreamRef stream, const PipelineChunk& chunk) {
    EXPECT_EQ(stream.ordinal(), 0);
    EXPECT_EQ(chunk.index, called.size());
    EXPECT_EQ(chunk.in, chunk.out);
    EXPECT_EQ(cuda::AddressOf(chunk.in) % 256, 0U);
    called.emplace_back(chunk.offset, chunk.bytes);
    return Ok();
  };
  ExpectOk(pipeline->Run(memory, memory, kernel, Limit()));
  EXPECT_THAT(called, ::testing::ElementsAre(Part(0, kChunk), Part(kChunk, kChunk),
                                             Part(2 * kChunk, kChunk), Part(3 * kChunk, kChunk),
                                             Part(4 * kChunk, kChunk), Part(5 * kChunk, 100)));
}

TEST_P(PipelineTest, NothingIsToBeDoneForNoBytes) {
  const auto pipeline = Make({});
  const auto kernel = [](cuda::StreamRef /*stream*/, const PipelineChunk& /*chunk*/) -> Status {
    return Error(Code::kInternal, "called for nothing");
  };
  ExpectOk(pipeline->Run({}, {}, kernel, Limit()));
  ExpectOk(pipeline->RunBlocking({}, {}, kernel, Limit()));
}

// ---- what is refused ----------------------------------------------------------------------------

TEST_P(PipelineTest, MemoryThatDoesNotFitIsRefused) {
  const auto pipeline = Make({});
  std::vector<std::byte> memory(2 * kChunk);
  const std::span<std::byte> all(memory);
  const auto device = Given(api().AllocateDevice(0, kChunk));
  const std::span<std::byte> on_device(static_cast<std::byte*>(device.data()), kChunk);
  const auto refusal = [&](std::span<const std::byte> source, std::span<std::byte> destination) {
    const Status status = pipeline->Run(source, destination, Adding(), Limit());
    return status ? std::string("none") : status.error().ToString();
  };
  EXPECT_THAT(refusal(all, all.first(5)), HasSubstr("InvalidArgument: a pipeline from 20000 bytes"
                                                    " to 5"));
  EXPECT_THAT(refusal(all.first(100), all.subspan(99, 100)), HasSubstr("overlap"));
  EXPECT_THAT(refusal(on_device, all.first(kChunk)), HasSubstr("from device memory"));
  EXPECT_THAT(refusal(all.first(kChunk), on_device), HasSubstr("to device memory"));
  EXPECT_EQ(refusal(all.first(100), all.subspan(100, 100)), "none");
}

TEST_P(PipelineTest, OptionsOutOfRangeAreRefused) {
  for (const PipelineOptions& options :
       {PipelineOptions{.chunk_bytes = 0}, PipelineOptions{.chunk_bytes = (1U << 30) + 1},
        PipelineOptions{.streams = 0}, PipelineOptions{.streams = 9}, PipelineOptions{.buffers = 0},
        PipelineOptions{.buffers = 9}, PipelineOptions{.staging_threads = 0},
        PipelineOptions{.staging_threads = 65}}) {
    const auto made = Pipeline::Create(&api(), 0, options);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
  }
}

// ---- errors -------------------------------------------------------------------------------------

TEST_P(PipelineTest, AKernelThatFailsEndsTheRunWithItsError) {
  const auto pipeline = Make({});
  for (const auto form : {&Pipeline::Run, &Pipeline::RunBlocking}) {
    HostBytes source = MakeHost(&api(), true, 20 * kChunk);
    HostBytes destination = MakeHost(&api(), true, 20 * kChunk);
    const auto failing = [&](cuda::StreamRef stream, const PipelineChunk& chunk) -> Status {
      FERRY_TRY(AddToWords(&api(), stream, chunk));
      if (chunk.index == 9) return Error(Code::kUnsupported, "no such kernel");
      return Ok();
    };
    const Status status = (pipeline.get()->*form)(source.all, destination.all, failing, Limit());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kUnsupported);
    EXPECT_EQ(status.error().message(),
              "the kernel of chunk 9 (offset 90000, 10000 bytes): no such kernel");
    // Copies still in flight would lose the device now.
    source.pinned.reset();
    destination.pinned.reset();
    ExpectRight(pipeline.get(), 3 * kChunk + 1);
    EXPECT_FALSE(api().IsLost(0));
  }
}

class SimulatedPipelineTest : public PipelineTest {};

TEST_P(SimulatedPipelineTest, NothingIsMadeForAChunk) {
  const auto pipeline = Make({});
  std::vector<std::byte> memory(40 * kChunk);
  const auto before = target_->simulated()->counters();
  ExpectOk(pipeline->Run(memory, memory, Adding(), Limit()));
  const auto after = target_->simulated()->counters();
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
  EXPECT_EQ(after.registrations, before.registrations);
  EXPECT_EQ(after.copy_calls, before.copy_calls + 80);
  EXPECT_EQ(after.launches, before.launches + 40);
  EXPECT_EQ(after.records, before.records + 40);
}

TEST_P(SimulatedPipelineTest, ACopyThatIsRefusedIsToldWithItsChunk) {
  const auto pipeline = Make({});
  std::vector<std::byte> memory(10 * kChunk);
  // Each chunk has one upload and one download.
  target_->simulated()->Inject({.ordinal = 0,
                                .at = cuda::FaultPoint::kCopy,
                                .fault = cuda::Fault::kInvalidValue,
                                .skip = 9});
  const Status status = pipeline->Run(memory, memory, Adding(), Limit());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(status.error().message(),
              HasSubstr("copying to the host of chunk 4 (offset 40000, 10000 bytes): "));
  EXPECT_THAT(status.error().message(), HasSubstr("cudaMemcpyAsync"));
  ExpectRight(pipeline.get(), 4 * kChunk);
}

TEST_P(SimulatedPipelineTest, ADeviceThatIsLostEndsTheRunByThat) {
  const auto pipeline = Make({});
  std::vector<std::byte> memory(30 * kChunk);
  target_->simulated()->Inject({.ordinal = 0,
                                .at = cuda::FaultPoint::kLaunch,
                                .fault = cuda::Fault::kIllegalAddress,
                                .skip = 2});
  for (int i = 0; i < 2; ++i) {
    const Status status = pipeline->Run(memory, memory, Adding(), Limit());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kDeviceLost) << status.error().message();
    EXPECT_THAT(status.error().message(), HasSubstr("of chunk "));
  }
}

TEST_P(SimulatedPipelineTest, ARunPastItsDeadlineSaysWhatIsStillInUse) {
  const auto pipeline = Make({.drain_limit = milliseconds(20)});
  std::vector<std::byte> memory(10 * kChunk);
  target_->simulated()->Pause();
  const Status late = pipeline->Run(memory, memory, Adding(), Deadline::After(milliseconds(500)));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kTimedOut);
  EXPECT_THAT(late.error().message(), HasSubstr("of chunk 0 "));
  EXPECT_THAT(late.error().message(), HasSubstr("what was queued has not ended"));
  // No new work starts while old work is left.
  const Status refused = pipeline->Run(memory, memory, Adding(), Limit());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kTimedOut);
  target_->simulated()->Resume();
  const Deadline limit = Limit();
  for (;;) {
    const Status status = pipeline->Run(memory, memory, Adding(), Limit());
    if (status) break;
    ASSERT_FALSE(limit.expired()) << status.error().message();
  }
  ExpectRight(pipeline.get(), 4 * kChunk);
}

TEST_P(SimulatedPipelineTest, WhatCannotBeMadeIsAnErrorAndLeavesNothing) {
  for (const auto at : {cuda::FaultPoint::kAllocatePinned, cuda::FaultPoint::kAllocateDevice,
                        cuda::FaultPoint::kStream, cuda::FaultPoint::kEvent}) {
    target_->simulated()->Inject({.ordinal = 0, .at = at, .fault = cuda::Fault::kMemoryAllocation});
    const auto made = Pipeline::Create(&api(), 0, {.chunk_bytes = kChunk});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), Code::kUnavailable) << made.error().message();
  }
  ExpectRight(Make({}).get(), 2 * kChunk);
}

// ---- buffers that are used too early ------------------------------------------------------------

// Reports every event as ready; streams are reported correctly.
class ShortTimeoutDevices final : public cuda::ForwardingDevices {
 public:
  using ForwardingDevices::ForwardingDevices;
  Result<bool> Query(const cuda::Event& /*event*/) override { return true; }
  using ForwardingDevices::Query;
};

// These devices make a pipeline that does not wait; its output is wrong, so the tests above would
// detect one.
class ShortTimeoutPipelineTest : public SimulatedPipelineTest {
 protected:
  static constexpr std::size_t kSlots = 4;

  void SetUp() override {
    SimulatedPipelineTest::SetUp();
    short_timeout_ = std::make_unique<ShortTimeoutDevices>(&api());
    pipeline_ = Given(Pipeline::Create(
        short_timeout_.get(), 0,
        {.chunk_bytes = kChunk, .streams = 2, .buffers = kSlots / 2, .in_place = true}));
    source_.resize(2 * kSlots * kChunk);
    FillRandomly(source_, 5);
    expected_ = AfterAdding(source_, kChunk);
  }

  // Nothing is done before the run has returned.
  void RunWithShortTimeout(std::span<std::byte> destination) {
    std::vector<cuda::StreamRef> streams;
    const auto kernel = [&](cuda::StreamRef stream, const PipelineChunk& chunk) {
      streams.push_back(stream);
      return AddToWords(&api(), stream, chunk);
    };
    target_->simulated()->Pause();
    ExpectOk(pipeline_->Run(source_, destination, kernel, Limit()));
    target_->simulated()->Resume();
    for (const cuda::StreamRef stream : streams) ExpectOk(api().Wait(stream, Limit()));
  }

  std::unique_ptr<ShortTimeoutDevices> short_timeout_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::byte> source_;
  std::vector<std::byte> expected_;
};

TEST_P(ShortTimeoutPipelineTest, ABufferThatIsFilledAgainTooEarlyIsSeen) {
  const HostBytes destination = MakeHost(&api(), true, source_.size());
  RunWithShortTimeout(destination.all);
  // The first chunks hold the data that entered their buffers next.
  const auto first = destination.all.first(kSlots * kChunk);
  EXPECT_FALSE(std::equal(first.begin(), first.end(), expected_.begin()));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), expected_.begin() + kSlots * kChunk));
}

TEST_P(ShortTimeoutPipelineTest, BytesThatAreTakenTooEarlyAreSeen) {
  std::vector<std::byte> destination(source_.size());
  RunWithShortTimeout(destination);
  EXPECT_FALSE(destination == expected_);
}

// ---- the trace ----------------------------------------------------------------------------------

TEST_P(PipelineTest, EveryCopyAndKernelOfEveryChunkIsOnTheTrace) {
  Trace trace;
  const auto pipeline = Make({.streams = 2, .trace = &trace});
  ExpectRight(pipeline.get(), 0);
  EXPECT_EQ(trace.Count(Pipeline::kUploadLane), 0U);
  std::vector<std::byte> memory(7 * kChunk + 1);
  const auto begin = Clock::now();
  ExpectOk(pipeline->Run(memory, memory, Adding(), Limit()));
  EXPECT_EQ(trace.Count(Pipeline::kUploadLane), 8U);
  EXPECT_EQ(trace.Count(Pipeline::kDownloadLane), 8U);
  EXPECT_EQ(trace.Count(Pipeline::ComputeLane(0)), 4U);
  EXPECT_EQ(trace.Count(Pipeline::ComputeLane(1)), 4U);
  EXPECT_EQ(trace.Count(Pipeline::kStagingLane), 16U);
  // The spans lie within the run, apart from the delay with which the host observes the first
  // event.
  Trace whole;
  whole.Append(trace);
  whole.Add("run", "run", begin - std::chrono::seconds(1), Clock::now() + std::chrono::seconds(1));
  EXPECT_DOUBLE_EQ(whole.Overlap({"run"}, {Pipeline::kUploadLane}), 1);
}

TEST_P(PipelineTest, NothingOverlapsInTheBlockingForm) {
  Trace trace;
  const auto pipeline = Make({.trace = &trace});
  std::vector<std::byte> memory(20 * kChunk);
  ExpectOk(pipeline->RunBlocking(memory, memory, Adding(), Limit()));
  EXPECT_EQ(trace.Count(Pipeline::kUploadLane), 20U);
  const double overlap =
      trace.Overlap({Pipeline::kUploadLane, Pipeline::kDownloadLane}, {Pipeline::ComputeLane(0)});
  EXPECT_LT(overlap, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Simulated, PipelineTest, ::testing::ValuesIn(cuda::kSimulatedCases),
                         cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, PipelineTest, ::testing::Values(cuda::kRealCase),
                         cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Simulated, SimulatedPipelineTest,
                         ::testing::ValuesIn(cuda::kSimulatedCases), cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Simulated, ShortTimeoutPipelineTest,
                         ::testing::ValuesIn(cuda::kSimulatedCases), cuda::DeviceCaseName);

}  // namespace
}  // namespace ferry
