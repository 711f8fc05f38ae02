// Conformance suite of DeviceApi: graphs.
#include <cstring>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/cuda/testing/conformance.h"

// The DeviceApi contract on graphs.
namespace ferry::cuda {
namespace {

// A kernel's code is loaded at its first launch, which may not be possible during a capture.
constexpr std::uint32_t kNothing = 0;

std::uint32_t FirstWord(const std::vector<std::byte>& bytes) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  return word;
}

void SetFirstWord(const PinnedBuffer& buffer, std::uint32_t word) {
  std::memcpy(buffer.data(), &word, sizeof word);
}

std::vector<std::byte> WordBytes(std::uint32_t word) {
  std::vector<std::byte> bytes(sizeof word);
  std::memcpy(bytes.data(), &word, sizeof word);
  return bytes;
}

}  // namespace

TEST_P(DeviceConformance, AGraphDoesAgainWhatAStreamWasGiven) {
  const Stream stream = NewStream();
  const DeviceBuffer device = Device(4);
  const PinnedBuffer in = Pinned(4);
  const PinnedBuffer out = Pinned(4);
  FERRY_ASSERT_OK(Add(stream, device.data(), device.data(), 1, kNothing));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  const auto graph = api().Capture(stream, [&]() -> Status {
    FERRY_TRY(CopyOne(stream, CopyKind::kHostToDevice, device.data(), in.data(), 4));
    FERRY_TRY(Add(stream, device.data(), device.data(), 1, 5));
    FERRY_TRY(Add(stream, device.data(), device.data(), 1, 7));
    return CopyOne(stream, CopyKind::kDeviceToHost, out.data(), device.data(), 4);
  });
  FERRY_ASSERT_OK(graph);
  for (std::uint32_t round = 0; round < 20; ++round) {
    SetFirstWord(in, 100 * round);
    FERRY_ASSERT_OK(api().Replay(stream, *graph));
    FERRY_ASSERT_OK(api().Wait(stream, Soon()));
    EXPECT_EQ(FirstWord({out.bytes().begin(), out.bytes().end()}), 100 * round + 12);
  }
}

TEST_P(DeviceConformance, NothingIsDoneWhileAStreamIsCaptured) {
  const Stream stream = NewStream();
  const DeviceBuffer device = Device(4);
  Upload(device, WordBytes(40));
  FERRY_ASSERT_OK(Add(stream, device.data(), device.data(), 1, kNothing));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  const auto graph =
      api().Capture(stream, [&] { return Add(stream, device.data(), device.data(), 1, 2); });
  FERRY_ASSERT_OK(graph);
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_EQ(FirstWord(Download(device)), 40U);
  // On another stream than the captured one, and several times in a row.
  const Stream other = NewStream();
  for (int i = 0; i < 3; ++i) FERRY_ASSERT_OK(api().Replay(other, *graph));
  FERRY_ASSERT_OK(api().Wait(other, Soon()));
  EXPECT_EQ(FirstWord(Download(device)), 46U);
}

TEST_P(DeviceConformance, AGraphMayGoWhileItsWorkGoesOn) {
  const Stream stream = NewStream();
  const DeviceBuffer device = Device(4);
  Upload(device, WordBytes(1));
  FERRY_ASSERT_OK(Add(stream, device.data(), device.data(), 1, kNothing));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  auto graph =
      api().Capture(stream, [&] { return Add(stream, device.data(), device.data(), 1, 8); });
  FERRY_ASSERT_OK(graph);
  FERRY_ASSERT_OK(api().Replay(stream, *graph));
  graph->reset();
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_EQ(FirstWord(Download(device)), 9U);
}

TEST_P(DeviceConformance, ACaptureIsLostWhenItsStreamIsAskedHowFarItIs) {
  const Stream stream = NewStream();
  const DeviceBuffer device = Device(4);
  Upload(device, WordBytes(3));
  FERRY_ASSERT_OK(api().BeginCapture(stream));
  EXPECT_EQ(api().Query(stream).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(api().EndCapture(stream).error().code(), Code::kInvalidArgument);
  FERRY_ASSERT_OK(Add(stream, device.data(), device.data(), 1, 1));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_EQ(FirstWord(Download(device)), 4U);
}

TEST_P(DeviceConformance, AFailureInACaptureGivesTheStreamBack) {
  const Stream stream = NewStream();
  const auto graph = api().Capture(
      stream, []() -> Status { return Error(Code::kCancelled, "somebody thought better of it"); });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code(), Code::kCancelled);
  EXPECT_EQ(api().EndCapture(stream).error().code(), Code::kInvalidArgument);
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
}

TEST_P(DeviceConformance, OnlyAStreamThatIsCapturedEndsItsCapture) {
  const Stream stream = NewStream();
  EXPECT_EQ(api().EndCapture(stream).error().code(), Code::kInvalidArgument);
  // An empty capture works too.
  const auto graph = api().Capture(stream, [] { return Ok(); });
  FERRY_ASSERT_OK(graph);
  FERRY_ASSERT_OK(api().Replay(stream, *graph));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  FERRY_ASSERT_OK(api().BeginCapture(stream));
  EXPECT_EQ(api().BeginCapture(stream).error().code(), Code::kInvalidArgument);
  (void)api().EndCapture(stream);
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
}

}  // namespace ferry::cuda
