// Conformance suite of DeviceApi: sizes and states at the edges of what is allowed.
#include <cstring>
#include <numeric>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/testing/conformance.h"

// The DeviceApi contract at its bounds: nothing, one byte, odd sizes, events that move.
namespace ferry::cuda {

TEST_P(DeviceConformance, ACopyOfNoItemsIsDoneAtOnce) {
  const Stream stream = NewStream();
  for (const CopyKind kind :
       {CopyKind::kHostToDevice, CopyKind::kDeviceToHost, CopyKind::kDeviceToDevice}) {
    FERRY_ASSERT_OK(api().Copy(stream, kind, {}));
  }
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
}

TEST_P(DeviceConformance, DeviceMemoryIsAlignedWhateverItsSize) {
  std::vector<DeviceBuffer> buffers;
  for (const std::size_t bytes : {1U, 3U, 255U, 257U, 4097U}) {
    buffers.push_back(Device(bytes));
    EXPECT_EQ(AddressOf(buffers.back().data()) % 256, 0U) << bytes;
    EXPECT_EQ(buffers.back().size(), bytes);
    EXPECT_EQ(buffers.back().ordinal(), 0);
  }
}

TEST_P(DeviceConformance, BytesOfAnySizeAndOffsetArrive) {
  const auto bytes = RandomBytes(5000, 11);
  const PinnedBuffer in = Pinned(5000);
  const PinnedBuffer out = Pinned(5000);
  std::memcpy(in.data(), bytes.data(), bytes.size());
  const DeviceBuffer device = Device(5000);
  const Stream stream = NewStream();
  auto* const there = static_cast<std::byte*>(device.data());
  for (const std::size_t size : {1U, 2U, 7U, 4095U, 4097U}) {
    for (const std::size_t offset : {0U, 1U, 13U}) {
      std::memset(out.data(), 0, out.size());
      FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kHostToDevice, there + offset, in.data(), size));
      FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kDeviceToHost, out.bytes().data() + offset,
                              there + offset, size));
      FERRY_ASSERT_OK(api().Wait(stream, Soon()));
      EXPECT_EQ(std::memcmp(out.bytes().data() + offset, bytes.data(), size), 0)
          << size << " at " << offset;
      EXPECT_EQ(out.bytes()[offset + size], std::byte{0}) << "and none beyond";
    }
  }
}

TEST_P(DeviceConformance, AKernelWorksOnEachOfItsWordsAndNoOther) {
  constexpr std::size_t kWords = 5000;
  std::vector<std::uint32_t> words(kWords);
  std::iota(words.begin(), words.end(), 0U);
  const DeviceBuffer device = Device(kWords * sizeof(std::uint32_t));
  Upload(device, std::as_bytes(std::span(words)));
  const Stream stream = NewStream();
  // In place, and of more threads than it has words, of as many, and of fewer.
  for (const std::size_t count : {1U, 31U, 1024U, 4097U}) {
    FERRY_ASSERT_OK(Add(stream, device.data(), device.data(), count, 1000));
    for (std::size_t i = 0; i < count; ++i) words[i] += 1000;
  }
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  const auto got = Download(device);
  EXPECT_EQ(std::memcmp(got.data(), words.data(), got.size()), 0);
}

TEST_P(DeviceConformance, AnEventMovesToAnotherStream) {
  const Stream first = NewStream();
  const Stream second = NewStream();
  const Event event = NewEvent();
  const auto gate = Gate(second);
  if (gate == nullptr) GTEST_SKIP() << "streams cannot wait for flags";
  FERRY_ASSERT_OK(api().Record(event, first));
  FERRY_ASSERT_OK(api().Wait(event, Soon()));
  FERRY_ASSERT_OK(api().Record(event, second));
  EXPECT_FALSE(*api().Query(event)) << "as it was recorded last";
  FERRY_ASSERT_OK(api().Record(event, first));
  FERRY_ASSERT_OK(api().Wait(event, Soon()));
  gate->Open();
  FERRY_ASSERT_OK(api().Wait(second, Soon()));
}

TEST_P(DeviceConformance, TimeIsNotToldBeforeBothEventsAreReady) {
  const Stream stream = NewStream();
  const Event from = NewEvent(0, EventTiming::kOn);
  const Event to = NewEvent(0, EventTiming::kOn);
  FERRY_ASSERT_OK(api().Record(from, stream));
  const auto gate = Gate(stream);
  if (gate == nullptr) GTEST_SKIP() << "streams cannot wait for flags";
  FERRY_ASSERT_OK(api().Record(to, stream));
  EXPECT_EQ(api().Elapsed(from, to).error().code(), Code::kUnavailable);
  gate->Open();
  FERRY_ASSERT_OK(api().Wait(to, Soon()));
  EXPECT_TRUE(api().Elapsed(from, to));
}

TEST_P(DeviceConformance, StreamsOfBothPrioritiesDoTheirWork) {
  const DeviceBuffer device = Device(8);
  Upload(device, std::vector<std::byte>(8));
  auto* const words = static_cast<std::uint32_t*>(device.data());
  const Stream normal = NewStream();
  const auto high = api().CreateStream(0, StreamPriority::kHigh);
  FERRY_ASSERT_OK(high);
  for (int i = 0; i < 10; ++i) {
    FERRY_ASSERT_OK(Add(normal, words, words, 1, 1));
    FERRY_ASSERT_OK(Add(*high, words + 1, words + 1, 1, 2));
  }
  FERRY_ASSERT_OK(api().Wait(normal, Soon()));
  FERRY_ASSERT_OK(api().Wait(*high, Soon()));
  const auto got = Download(device);
  EXPECT_EQ(got[0], std::byte{10});
  EXPECT_EQ(got[4], std::byte{20});
}

TEST_P(DeviceConformance, AStreamMayGoBeforeItsWorkIsDone) {
  const DeviceBuffer device = Device(4);
  Upload(device, std::vector<std::byte>(4));
  const Event done = NewEvent();
  {
    const Stream passing = NewStream();
    FERRY_ASSERT_OK(Add(passing, device.data(), device.data(), 1, 3));
    FERRY_ASSERT_OK(api().Record(done, passing));
  }
  FERRY_ASSERT_OK(api().Wait(done, Soon()));
  EXPECT_EQ(Download(device)[0], std::byte{3});
}

TEST_P(DeviceConformance, AGraphHasAllItemsOfACapturedList) {
  constexpr std::size_t kItems = 20;
  const auto bytes = RandomBytes(kItems * 64, 12);
  const DeviceBuffer device = Device(bytes.size());
  const PinnedBuffer in = Pinned(bytes.size());
  std::memcpy(in.data(), bytes.data(), bytes.size());
  std::vector<CopyItem> items;
  for (std::size_t i = 0; i < kItems; ++i) {
    items.push_back({static_cast<std::byte*>(device.data()) + 64 * (kItems - 1 - i),
                     in.bytes().data() + 64 * i, 64});
  }
  const Stream stream = NewStream();
  const auto graph =
      api().Capture(stream, [&] { return api().Copy(stream, CopyKind::kHostToDevice, items); });
  FERRY_ASSERT_OK(graph);
  FERRY_ASSERT_OK(api().Replay(stream, *graph));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  const auto got = Download(device);
  for (std::size_t i = 0; i < kItems; ++i) {
    EXPECT_EQ(std::memcmp(&got[64 * (kItems - 1 - i)], &bytes[64 * i], 64), 0) << i;
  }
}

TEST_P(DeviceConformance, AnyDeviceMayBeMadeCurrentAndNoOther) {
  std::vector<CurrentDevice> current;
  for (int i = 0; i < api().count(); ++i) {
    auto made = api().MakeCurrent(i);
    FERRY_ASSERT_OK(made);
    current.push_back(*std::move(made));
    EXPECT_EQ(api().Current(), i);
  }
  while (!current.empty()) current.pop_back();  // the latest one first
  for (const int ordinal : {-1, api().count()}) {
    EXPECT_EQ(api().MakeCurrent(ordinal).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(api().CreateEvent(ordinal, EventTiming::kOff).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(api().AllocatePinned(ordinal, 1).error().code(), Code::kInvalidArgument);
  }
}

}  // namespace ferry::cuda
