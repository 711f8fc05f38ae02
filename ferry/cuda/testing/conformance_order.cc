// Conformance suite of DeviceApi: streams, events and flags.
#include <gmock/gmock.h>

#include <cstring>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/cuda/testing/conformance.h"

// The DeviceApi contract on order: streams, events and flags.
namespace ferry::cuda {
namespace {

std::uint32_t WordAt(std::span<const std::byte> bytes, std::size_t index) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + index * sizeof word, sizeof word);
  return word;
}

void SetWord(std::span<std::byte> bytes, std::size_t index, std::uint32_t word) {
  std::memcpy(bytes.data() + index * sizeof word, &word, sizeof word);
}

}  // namespace

std::unique_ptr<StreamGate> DeviceConformance::Gate(StreamRef stream) {
  auto gate = StreamGate::Close(api(), stream);
  if (gate) return *std::move(gate);
  EXPECT_EQ(gate.error().code(), Code::kUnsupported) << gate.error().ToString();
  return nullptr;
}

#define FERRY_NEED_GATE(gate) \
  if ((gate) == nullptr) GTEST_SKIP() << "streams cannot wait for flags"

// ---- streams ------------------------------------------------------------------------------------

TEST_P(DeviceConformance, AStreamKeepsItsOrder) {
  constexpr std::size_t kRounds = 100;
  constexpr std::size_t kBytes = 4 * kKiB;
  const DeviceBuffer device = Device(kBytes);
  const PinnedBuffer in = Pinned(kRounds * kBytes);
  const PinnedBuffer out = Pinned(kRounds * kBytes);
  const Stream stream = NewStream();
  const auto bytes = RandomBytes(kRounds * kBytes, 1);
  std::memcpy(in.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < kRounds; ++i) {
    FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kHostToDevice, device.data(),
                            in.bytes().data() + i * kBytes, kBytes));
    FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kDeviceToHost, out.bytes().data() + i * kBytes,
                            device.data(), kBytes));
  }
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_EQ(std::memcmp(out.data(), bytes.data(), bytes.size()), 0);
}

TEST_P(DeviceConformance, KernelsAndCopiesOfAStreamKeepTheirOrder) {
  constexpr std::uint32_t kRounds = 50;
  const DeviceBuffer device = Device(4);
  const PinnedBuffer out = Pinned(kRounds * sizeof(std::uint32_t));
  const PinnedBuffer zero = Pinned(4);
  SetWord(zero.bytes(), 0, 0);
  const Stream stream = NewStream();
  FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kHostToDevice, device.data(), zero.data(), 4));
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    FERRY_ASSERT_OK(Add(stream, device.data(), device.data(), 1, 1));
    FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kDeviceToHost,
                            out.bytes().data() + i * sizeof(std::uint32_t), device.data(), 4));
  }
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  for (std::uint32_t i = 0; i < kRounds; ++i) EXPECT_EQ(WordAt(out.bytes(), i), i + 1);
}

TEST_P(DeviceConformance, AStreamOfSomebodyElseIsUsedLikeOurs) {
  const auto bytes = RandomBytes(kKiB, 5);
  const DeviceBuffer device = Device(kKiB);
  const PinnedBuffer pinned = Pinned(kKiB);
  std::memcpy(pinned.data(), bytes.data(), bytes.size());
  const Stream owned = NewStream();
  // A stream by its native handle, and the device's default stream.
  for (void* native : {owned.get().native, static_cast<void*>(nullptr)}) {
    const StreamRef stream = StreamRef::Foreign(0, native);
    FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kHostToDevice, device.data(), pinned.data(), kKiB));
    FERRY_ASSERT_OK(api().Wait(stream, Soon()));
    EXPECT_TRUE(Download(device) == bytes);
  }
}

TEST_P(DeviceConformance, OneStreamIsHeldUpAndAnotherGoesOn) {
  const Stream held = NewStream();
  const Stream free = NewStream();
  auto gate = Gate(held);
  FERRY_NEED_GATE(gate);
  const DeviceBuffer device = Device(kKiB);
  const PinnedBuffer pinned = Pinned(kKiB);
  for (int i = 0; i < 10; ++i) {
    FERRY_ASSERT_OK(CopyOne(free, CopyKind::kHostToDevice, device.data(), pinned.data(), kKiB));
    FERRY_ASSERT_OK(api().Wait(free, Soon()));
  }
  EXPECT_FALSE(*api().Query(held));
  gate->Open();
  FERRY_ASSERT_OK(api().Wait(held, Soon()));
}

// ---- events -------------------------------------------------------------------------------------

TEST_P(DeviceConformance, AnEventThatWasNeverRecordedIsReady) {
  const Event event = NewEvent();
  const Stream stream = NewStream();
  EXPECT_TRUE(*api().Query(event));
  FERRY_ASSERT_OK(api().WaitFor(stream, event));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
}

TEST_P(DeviceConformance, AnEventIsReadyWhenAllBeforeItIsDone) {
  const Stream stream = NewStream();
  const Event before = NewEvent();
  const Event after = NewEvent();
  FERRY_ASSERT_OK(api().Record(before, stream));
  auto gate = Gate(stream);
  FERRY_NEED_GATE(gate);
  FERRY_ASSERT_OK(api().Record(after, stream));
  FERRY_ASSERT_OK(api().Wait(before, Soon()));
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(*api().Query(after));
  EXPECT_FALSE(*api().Query(stream));
  gate->Open();
  FERRY_ASSERT_OK(api().Wait(after, Soon()));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
}

TEST_P(DeviceConformance, AWaitEndsAtItsDeadline) {
  const Stream stream = NewStream();
  const Event event = NewEvent();
  auto gate = Gate(stream);
  FERRY_NEED_GATE(gate);
  FERRY_ASSERT_OK(api().Record(event, stream));
  for (const milliseconds limit : {milliseconds(0), milliseconds(20)}) {
    const Status waited = api().Wait(event, Deadline::After(limit));
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error().code(), Code::kTimedOut) << waited.error().ToString();
  }
  gate->Open();
  FERRY_ASSERT_OK(api().Wait(event, Soon()));
}

TEST_P(DeviceConformance, AStreamWaitsForAnotherStreamsEvent) {
  const DeviceBuffer device = Device(kKiB);
  const PinnedBuffer in = Pinned(kKiB);
  const PinnedBuffer out = Pinned(kKiB);
  const auto bytes = RandomBytes(kKiB, 6);
  std::memcpy(in.data(), bytes.data(), bytes.size());
  const Stream writer = NewStream();
  const Stream reader = NewStream();
  const Event written = NewEvent();
  auto gate = Gate(writer);
  FERRY_NEED_GATE(gate);
  FERRY_ASSERT_OK(CopyOne(writer, CopyKind::kHostToDevice, device.data(), in.data(), kKiB));
  FERRY_ASSERT_OK(api().Record(written, writer));
  FERRY_ASSERT_OK(api().WaitFor(reader, written));
  FERRY_ASSERT_OK(CopyOne(reader, CopyKind::kDeviceToHost, out.data(), device.data(), kKiB));
  EXPECT_FALSE(*api().Query(reader));
  gate->Open();
  FERRY_ASSERT_OK(api().Wait(reader, Soon()));
  EXPECT_EQ(std::memcmp(out.data(), bytes.data(), bytes.size()), 0);
}

TEST_P(DeviceConformance, AWaitIsForTheEventAsItWasRecordedThen) {
  const Stream first = NewStream();
  const Stream second = NewStream();
  const Stream waiter = NewStream();
  const Event event = NewEvent();
  FERRY_ASSERT_OK(api().Record(event, first));
  FERRY_ASSERT_OK(api().WaitFor(waiter, event));
  auto gate = Gate(second);
  FERRY_NEED_GATE(gate);
  FERRY_ASSERT_OK(api().Record(event, second));
  FERRY_ASSERT_OK(api().Wait(waiter, Soon()));
  EXPECT_FALSE(*api().Query(event));
  gate->Open();
  FERRY_ASSERT_OK(api().Wait(event, Soon()));
}

TEST_P(DeviceConformance, AStreamWaitsForAnEventOfAnotherDevice) {
  if (api().count() < 2) GTEST_SKIP() << "one device only";
  const Stream here = NewStream(0);
  const Stream there = NewStream(1);
  const Event event = NewEvent(1);
  EXPECT_EQ(api().Record(event, here).error().code(), Code::kInvalidArgument);
  auto gate = Gate(there);
  FERRY_NEED_GATE(gate);
  FERRY_ASSERT_OK(api().Record(event, there));
  FERRY_ASSERT_OK(api().WaitFor(here, event));
  const Event done = NewEvent(0);
  FERRY_ASSERT_OK(api().Record(done, here));
  EXPECT_FALSE(*api().Query(done));
  gate->Open();
  FERRY_ASSERT_OK(api().Wait(done, Soon()));
}

TEST_P(DeviceConformance, TimeBetweenEventsIsMeasured) {
  const Stream stream = NewStream();
  const Event from = NewEvent(0, EventTiming::kOn);
  const Event to = NewEvent(0, EventTiming::kOn);
  const DeviceBuffer device = Device(kKiB);
  const PinnedBuffer pinned = Pinned(kKiB);
  FERRY_ASSERT_OK(api().Record(from, stream));
  FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kHostToDevice, device.data(), pinned.data(), kKiB));
  FERRY_ASSERT_OK(api().Record(to, stream));
  FERRY_ASSERT_OK(api().Wait(to, Soon()));
  const auto elapsed = api().Elapsed(from, to);
  FERRY_ASSERT_OK(elapsed);
  EXPECT_GE(elapsed->count(), 0);
  EXPECT_LT(*elapsed, std::chrono::seconds(20));
  const Event untimed = NewEvent();
  FERRY_ASSERT_OK(api().Record(untimed, stream));
  FERRY_ASSERT_OK(api().Wait(untimed, Soon()));
  EXPECT_EQ(api().Elapsed(from, untimed).error().code(), Code::kInvalidArgument);
}

// A ring as in the transfer engine: slots are reused when the event of their copy is ready, and
// nothing is created on the way.
TEST_P(DeviceConformance, SlotsOfARingAreUsedAgainAfterTheirEvents) {
  constexpr std::size_t kSlots = 3;
  constexpr std::size_t kSlices = 60;
  constexpr std::size_t kBytes = 24 * kKiB;
  const auto bytes = RandomBytes(kSlices * kBytes, 8);
  const DeviceBuffer device = Device(bytes.size());
  const PinnedBuffer ring = Pinned(kSlots * kBytes);
  const Stream stream = NewStream();
  std::vector<Event> free;
  for (std::size_t i = 0; i < kSlots; ++i) free.push_back(NewEvent());
  for (std::size_t i = 0; i < kSlices; ++i) {
    const std::size_t slot = i % kSlots;
    FERRY_ASSERT_OK(api().Wait(free[slot], Soon()));
    std::byte* const at = ring.bytes().data() + slot * kBytes;
    std::memcpy(at, bytes.data() + i * kBytes, kBytes);
    FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kHostToDevice,
                            static_cast<std::byte*>(device.data()) + i * kBytes, at, kBytes));
    FERRY_ASSERT_OK(api().Record(free[slot], stream));
  }
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_TRUE(Download(device) == bytes);
}

// ---- flags --------------------------------------------------------------------------------------

TEST_P(DeviceConformance, TheProbeTellsWhetherFlagsWork) {
  const auto works = ProbeFlags(api(), 0);
  FERRY_ASSERT_OK(works);
  const Stream stream = NewStream();
  const auto gate = Gate(stream);
  EXPECT_EQ(gate != nullptr, *works);
  if (gate != nullptr) gate->Open();
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
}

TEST_P(DeviceConformance, AStreamWaitsUntilTheHostHasWrittenTheValueOrALaterOne) {
  if (!*ProbeFlags(api(), 0)) GTEST_SKIP() << "streams cannot wait for flags";
  const PinnedBuffer words = Pinned(64);
  const auto mapped = api().MappedAddress(0, words.data());
  FERRY_ASSERT_OK(mapped);
  const Stream stream = NewStream();
  const Event passed = NewEvent();
  // Beyond the middle of the range, and around its end.
  for (const std::uint32_t value : {5u, 0x7fffffffu, 0xfffffff0u, 2u}) {
    StoreFlag(words.data(), value - 1);
    FERRY_ASSERT_OK(api().WaitForFlag(stream, *mapped, value));
    FERRY_ASSERT_OK(api().Record(passed, stream));
    EXPECT_FALSE(api().Wait(passed, Deadline::After(milliseconds(5))));
    StoreFlag(words.data(), value + 3);
    FERRY_ASSERT_OK(api().Wait(passed, Soon()));
  }
}

TEST_P(DeviceConformance, AFlagIsWrittenWhenAllBeforeItIsDone) {
  if (!*ProbeFlags(api(), 0)) GTEST_SKIP() << "streams cannot wait for flags";
  const DeviceBuffer device = Device(64 * kKiB);
  const DeviceBuffer flag = Device(4);
  Upload(flag, std::vector<std::byte>(4));
  const PinnedBuffer in = Pinned(64 * kKiB);
  const PinnedBuffer out = Pinned(64 * kKiB);
  const auto bytes = RandomBytes(64 * kKiB, 9);
  std::memcpy(in.data(), bytes.data(), bytes.size());
  const Stream theirs = NewStream();  // waits for work that is not queued yet
  const Stream ours = NewStream();
  FERRY_ASSERT_OK(api().WaitForFlag(theirs, flag.data(), 1));
  FERRY_ASSERT_OK(
      CopyOne(theirs, CopyKind::kDeviceToHost, out.data(), device.data(), bytes.size()));
  FERRY_ASSERT_OK(CopyOne(ours, CopyKind::kHostToDevice, device.data(), in.data(), bytes.size()));
  FERRY_ASSERT_OK(api().WriteFlag(ours, flag.data(), 1));
  FERRY_ASSERT_OK(api().Wait(theirs, Soon()));
  EXPECT_EQ(std::memcmp(out.data(), bytes.data(), bytes.size()), 0);
}

TEST_P(DeviceConformance, AFlagThatIsNotAlignedIsRefused) {
  if (!*ProbeFlags(api(), 0)) GTEST_SKIP() << "streams cannot wait for flags";
  const DeviceBuffer device = Device(64);
  const Stream stream = NewStream();
  void* const odd = static_cast<std::byte*>(device.data()) + 2;
  EXPECT_EQ(api().WriteFlag(stream, odd, 1).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(api().WaitForFlag(stream, odd, 1).error().code(), Code::kInvalidArgument);
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
}

}  // namespace ferry::cuda
