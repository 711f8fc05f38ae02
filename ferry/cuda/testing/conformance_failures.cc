// Conformance suite of DeviceApi: lost devices and other processes.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/cuda/testing/conformance.h"
#include "ferry/cuda/testing/test_kernels.h"

// The DeviceApi contract on failures and other processes. Each runs in a child process, because a
// lost device stays lost, and because a process cannot import its own export. A death test runs the
// test again in its child, up to the statement.
namespace ferry::cuda {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

constexpr const char* kExportVariable = "FERRY_TEST_EXPORT";

// Ends the child; the message is shown in the parent's failure.
#define FERRY_CHILD_NEEDS(condition)                                         \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "line %d: %s is not so\n", __LINE__, #condition); \
      ::_exit(1);                                                            \
    }                                                                        \
  } while (0)

std::string ToText(const IpcExport& exported) {
  std::string text = exported.pci_bus_id + " " + std::to_string(exported.offset) + " " +
                     std::to_string(exported.bytes);
  for (const std::byte byte : exported.handle) {
    text += " " + std::to_string(std::to_integer<int>(byte));
  }
  return text;
}

std::string TakeWord(std::string* text) {
  const std::size_t end = std::min(text->find(' '), text->size());
  std::string word = text->substr(0, end);
  text->erase(0, end + 1);
  return word;
}

IpcExport FromText(std::string text) {
  IpcExport exported;
  exported.pci_bus_id = TakeWord(&text);
  exported.offset = std::stoull(TakeWord(&text));
  exported.bytes = std::stoull(TakeWord(&text));
  for (std::byte& byte : exported.handle) byte = static_cast<std::byte>(std::stoi(TakeWord(&text)));
  return exported;
}

// Waits for the end of the copy.
Status CopyNow(DeviceApi& api, CopyKind kind, void* dst, const void* src, std::size_t bytes) {
  FERRY_TRY_ASSIGN(const Stream stream, api.CreateStream(0, StreamPriority::kNormal));
  const CopyItem item{dst, src, bytes};
  FERRY_TRY(api.Copy(stream, kind, {&item, 1}));
  return api.Wait(stream, Soon());
}

// Reads what the parent wrote and writes other data; exits with 0 if all is correct.
void ImportInChild(DeviceApi& api, const IpcExport& exported, std::span<const std::byte> expected,
                   std::span<const std::byte> answer) {
  const auto imported = api.Import(0, exported);
  FERRY_CHILD_NEEDS(imported);
  FERRY_CHILD_NEEDS(imported->size() == exported.bytes);
  auto* const at = static_cast<std::byte*>(imported->data()) + exported.offset;
  FERRY_CHILD_NEEDS(api.Inspect(at)->kind == MemoryKind::kDevice);
  const auto pinned = api.AllocatePinned(0, expected.size());
  FERRY_CHILD_NEEDS(pinned);
  FERRY_CHILD_NEEDS(CopyNow(api, CopyKind::kDeviceToHost, pinned->data(), at, expected.size()));
  FERRY_CHILD_NEEDS(std::memcmp(pinned->data(), expected.data(), expected.size()) == 0);
  std::memcpy(pinned->data(), answer.data(), answer.size());
  FERRY_CHILD_NEEDS(CopyNow(api, CopyKind::kHostToDevice, at, pinned->data(), answer.size()));
  ::_exit(0);
}

constexpr std::uint64_t kWildAddress = 0x10;

// Loses device 0 with a kernel that writes to an unmapped address.
void LoseInChild(DeviceApi& api) {
  const auto pinned = api.AllocatePinned(0, 64);
  const auto buffer = api.AllocateDevice(0, 64);
  const auto stream = api.CreateStream(0, StreamPriority::kNormal);
  const auto event = api.CreateEvent(0, EventTiming::kOff);
  FERRY_CHILD_NEEDS(pinned && buffer && stream && event);
  std::memset(pinned->data(), 7, 64);
  FERRY_CHILD_NEEDS(
      LaunchKernel(api, *stream, kAddWords,
                   AddArguments{.dst = kWildAddress,
                                .src = reinterpret_cast<std::uint64_t>(buffer->data()),
                                .count = 1}));
  // Whichever call reports it first.
  const Status recorded = api.Record(*event, *stream);
  const Status first = recorded ? api.Wait(*stream, Soon()) : recorded;
  FERRY_CHILD_NEEDS(!first && first.error().code() == Code::kDeviceLost);
  FERRY_CHILD_NEEDS(first.error().message().find("cudaError") != std::string::npos);
  FERRY_CHILD_NEEDS(api.IsLost(0));
  // It stays lost, in every call, at once.
  FERRY_CHILD_NEEDS(api.Query(*event).error().code() == Code::kDeviceLost);
  FERRY_CHILD_NEEDS(api.AllocateDevice(0, 64).error().code() == Code::kDeviceLost);
  FERRY_CHILD_NEEDS(api.Record(*event, *stream).error().code() == Code::kDeviceLost);
  // Host memory is still valid.
  FERRY_CHILD_NEEDS(pinned->bytes()[63] == std::byte{7});
  FERRY_CHILD_NEEDS(api.Inspect(pinned->data()));
}

void LoseFirstOfTwoInChild(DeviceApi& api) {
  // New pinned memory would be for all devices, including the lost one.
  const auto pinned = api.AllocatePinned(1, 64);
  LoseInChild(api);
  if (api.IsLost(1)) {
    // Two H200 with driver 580 are lost together if the process has used both.
    FERRY_CHILD_NEEDS(api.AllocateDevice(1, 64).error().code() == Code::kDeviceLost);
    FERRY_CHILD_NEEDS(pinned && pinned->bytes().size() == 64);
    ::_exit(0);
  }
  const auto buffer = api.AllocateDevice(1, 64);
  const auto stream = api.CreateStream(1, StreamPriority::kNormal);
  FERRY_CHILD_NEEDS(buffer && pinned && stream);
  const CopyItem item{buffer->data(), pinned->data(), 64};
  FERRY_CHILD_NEEDS(api.Copy(*stream, CopyKind::kHostToDevice, {&item, 1}));
  FERRY_CHILD_NEEDS(api.Wait(*stream, Soon()));
  FERRY_CHILD_NEEDS(!api.IsLost(1));
  ::_exit(0);
}

}  // namespace

TEST_P(DeviceConformance, AnIllegalAccessLosesTheDeviceAndNotHostMemory) {
  EXPECT_EXIT(
      {
        LoseInChild(api());
        ::_exit(0);
      },
      ExitedWithCode(0), "");
}

TEST_P(DeviceConformance, ADeviceThatIsNotLostWithAnotherWorksOn) {
  if (api().count() < 2) GTEST_SKIP() << "one device only";
  EXPECT_EXIT(LoseFirstOfTwoInChild(api()), ExitedWithCode(0), "");
}

TEST_P(DeviceConformance, ErrorsNameTheCallCudasErrorAndTheNextStep) {
  const auto failed = api().AllocateDevice(0, std::size_t{1} << 46);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(),
              ::testing::AllOf(HasSubstr("cudaMalloc of 70368744177664 bytes"),
                               HasSubstr("cudaErrorMemoryAllocation (out of memory); "),
                               HasSubstr("ask for less")));
}

TEST_P(DeviceConformance, AnotherProcessReadsAndWritesWhatItImports) {
  const auto bytes = RandomBytes(300 * kKiB, 1);
  const auto answer = RandomBytes(300 * kKiB, 2);
  IpcExport exported;
  DeviceBuffer device;
  if (const char* const text = std::getenv(kExportVariable)) {
    exported = FromText(text);
  } else {
    device = Device(512 * kKiB);
    std::vector<std::byte> content(512 * kKiB);
    std::copy(bytes.begin(), bytes.end(), content.begin() + 100 * kKiB);
    Upload(device, content);
    const auto made = api().Export(static_cast<std::byte*>(device.data()) + 100 * kKiB);
    FERRY_ASSERT_OK(made);
    exported = *made;
    ASSERT_EQ(::setenv(kExportVariable, ToText(exported).c_str(), 1), 0);
  }
  EXPECT_EXIT(ImportInChild(api(), exported, bytes, answer), ExitedWithCode(0), "");
  ::unsetenv(kExportVariable);
  const auto content = Download(device);
  ASSERT_EQ(content.size(), 512 * kKiB);
  EXPECT_EQ(std::memcmp(content.data() + 100 * kKiB, answer.data(), answer.size()), 0);
}

TEST_P(DeviceConformance, NobodyImportsWhatHeExported) {
  const DeviceBuffer device = Device(4 * kKiB);
  const auto exported = api().Export(device.data());
  FERRY_ASSERT_OK(exported);
  EXPECT_EQ(exported->offset, 0u);
  EXPECT_GE(exported->bytes, 4 * kKiB);
  EXPECT_EQ(exported->pci_bus_id, api().Describe(0)->pci_bus_id);
  const auto imported = api().Import(0, *exported);
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code(), Code::kInvalidArgument) << imported.error().ToString();
}

TEST_P(DeviceConformance, OnlyDeviceMemoryIsExported) {
  const PinnedBuffer pinned = Pinned(4 * kKiB);
  const int local = 0;
  EXPECT_FALSE(api().Export(pinned.data()));
  EXPECT_FALSE(api().Export(&local));
}

}  // namespace ferry::cuda
