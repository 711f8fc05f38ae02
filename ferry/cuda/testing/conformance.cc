// Conformance suite of DeviceApi: facts, memory and copies.
#include "ferry/cuda/testing/conformance.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "ferry/core/mapping.h"
#include "ferry/cuda/testing/test_kernels.h"

namespace ferry::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::uint64_t Number(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

std::byte* Bytes(void* address) { return static_cast<std::byte*>(address); }

UniqueMapping Pages(std::size_t bytes) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? UniqueMapping() : UniqueMapping(Mapping{at, bytes});
}

// The value; a failed test and an empty object if there is none.
template <class T>
T Need(Result<T> made) {
  if (made) return *std::move(made);
  ADD_FAILURE() << made.error().ToString();
  return T();
}

}  // namespace

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

Result<std::unique_ptr<StreamGate>> StreamGate::Close(DeviceApi& api, StreamRef stream) {
  FERRY_TRY_ASSIGN(PinnedBuffer word, api.AllocatePinned(stream.ordinal(), sizeof(std::uint32_t)));
  StoreFlag(word.data(), 0);
  FERRY_TRY_ASSIGN(void* const flag, api.MappedAddress(stream.ordinal(), word.data()));
  FERRY_TRY(api.WaitForFlag(stream, flag, 1));
  return std::unique_ptr<StreamGate>(new StreamGate(std::move(word)));
}

// The word must stay valid until the stream has read it.
StreamGate::~StreamGate() { Open(); }

void StreamGate::Open() noexcept { StoreFlag(word_.data(), 1); }

void DeviceConformance::SetUp() {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  target_ = GetParam().make();
  if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
}

DeviceBuffer DeviceConformance::Device(std::size_t bytes, int ordinal) {
  return Need(api().AllocateDevice(ordinal, bytes));
}
PinnedBuffer DeviceConformance::Pinned(std::size_t bytes) {
  return Need(api().AllocatePinned(0, bytes));
}
Stream DeviceConformance::NewStream(int ordinal) {
  return Need(api().CreateStream(ordinal, StreamPriority::kNormal));
}
Event DeviceConformance::NewEvent(int ordinal, EventTiming timing) {
  return Need(api().CreateEvent(ordinal, timing));
}

Status DeviceConformance::CopyOne(StreamRef stream, CopyKind kind, void* dst, const void* src,
                                  std::size_t bytes) {
  const CopyItem item{dst, src, bytes};
  return api().Copy(stream, kind, {&item, 1});
}

Status DeviceConformance::Add(StreamRef stream, const void* dst, const void* src, std::size_t words,
                              std::uint32_t add) {
  return LaunchKernel(
      api(), stream, kAddWords,
      AddArguments{.dst = Number(dst), .src = Number(src), .count = words, .add = add});
}

void DeviceConformance::Upload(const DeviceBuffer& to, std::span<const std::byte> bytes) {
  const Stream stream = NewStream(to.ordinal());
  const PinnedBuffer staging = Pinned(bytes.size());
  ASSERT_TRUE(stream && staging);
  std::memcpy(staging.data(), bytes.data(), bytes.size());
  FERRY_ASSERT_OK(
      CopyOne(stream, CopyKind::kHostToDevice, to.data(), staging.data(), bytes.size()));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
}

std::vector<std::byte> DeviceConformance::Download(const DeviceBuffer& from) {
  const Stream stream = NewStream(from.ordinal());
  const PinnedBuffer staging = Pinned(from.size());
  if (!stream || !staging) return {};
  Status status =
      CopyOne(stream, CopyKind::kDeviceToHost, staging.data(), from.data(), from.size());
  if (status) status = api().Wait(stream, Soon());
  EXPECT_TRUE(status) << status.error().ToString();
  return {staging.bytes().begin(), staging.bytes().end()};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

// ---- facts --------------------------------------------------------------------------------------

TEST_P(DeviceConformance, EveryDeviceIsDescribed) {
  ASSERT_GE(api().count(), 1);
  for (int i = 0; i < api().count(); ++i) {
    const auto facts = api().Describe(i);
    FERRY_ASSERT_OK(facts);
    EXPECT_EQ(facts->ordinal, i);
    EXPECT_FALSE(facts->name.empty());
    EXPECT_GE(facts->compute_major, 7);
    EXPECT_GE(facts->multiprocessors, 1);
    EXPECT_GE(facts->copy_engines, 1);
    EXPECT_GE(facts->memory_bytes, kMiB);
    EXPECT_THAT(facts->pci_bus_id,
                ::testing::MatchesRegex("[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-9a-f]"));
    EXPECT_GE(facts->numa_node, -1);
    EXPECT_FALSE(api().IsLost(i));
  }
  EXPECT_GE(api().versions().driver_api, 12000);
  EXPECT_GE(api().versions().runtime, 12000);
}

TEST_P(DeviceConformance, ThereAreNoDevicesBeyondTheCount) {
  for (const int ordinal : {-1, api().count()}) {
    EXPECT_EQ(api().Describe(ordinal).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(api().AllocateDevice(ordinal, 1).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(api().CreateStream(ordinal, StreamPriority::kNormal).error().code(),
              Code::kInvalidArgument);
    EXPECT_EQ(api().EnablePeerAccess(0, ordinal).error().code(), Code::kInvalidArgument);
    EXPECT_FALSE(api().IsLost(ordinal));
  }
}

// Others may use a GPU meanwhile, but not that much memory.
TEST_P(DeviceConformance, AvailableMemoryIsLessWhileSomeIsAllocated) {
  constexpr std::uint64_t kBytes = 64 * kMiB;
  const auto before = api().AvailableMemory(0);
  FERRY_ASSERT_OK(before);
  {
    const DeviceBuffer buffer = Device(kBytes);
    const auto during = api().AvailableMemory(0);
    FERRY_ASSERT_OK(during);
    EXPECT_LE(*during, *before - kBytes / 2);
  }
  EXPECT_GE(*api().AvailableMemory(0), *before - kBytes / 2);
  EXPECT_EQ(api().AvailableMemory(api().count()).error().code(), Code::kInvalidArgument);
}

// ---- memory -------------------------------------------------------------------------------------

TEST_P(DeviceConformance, BytesGoToADeviceThroughItAndBack) {
  const auto bytes = RandomBytes(3 * kMiB + 17, 1);
  const DeviceBuffer first = Device(bytes.size());
  const DeviceBuffer second = Device(bytes.size());
  const Stream stream = NewStream();
  Upload(first, bytes);
  FERRY_ASSERT_OK(
      CopyOne(stream, CopyKind::kDeviceToDevice, second.data(), first.data(), bytes.size()));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_TRUE(Download(second) == bytes);
}

TEST_P(DeviceConformance, EveryItemOfAListIsCopied) {
  constexpr std::size_t kItems = 64;
  constexpr std::size_t kBytes = 1000;
  const auto bytes = RandomBytes(kItems * kBytes, 2);
  const DeviceBuffer device = Device(bytes.size());
  const PinnedBuffer pinned = Pinned(bytes.size());
  const Stream stream = NewStream();
  std::memcpy(pinned.data(), bytes.data(), bytes.size());
  std::vector<CopyItem> items;
  std::vector<std::byte> expected(bytes.size());
  for (std::size_t i = 0; i < kItems; ++i) {
    const std::size_t to = (i * 7 + 3) % kItems * kBytes;
    items.push_back({Bytes(device.data()) + to, pinned.bytes().data() + i * kBytes, kBytes});
    std::memcpy(expected.data() + to, bytes.data() + i * kBytes, kBytes);
  }
  items.push_back({nullptr, nullptr, 0});
  FERRY_ASSERT_OK(api().Copy(stream, CopyKind::kHostToDevice, items));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_TRUE(Download(device) == expected);
}

TEST_P(DeviceConformance, AnAllocationIsKnownByEveryAddressInIt) {
  const DeviceBuffer device = Device(kMiB + 1);
  const PinnedBuffer pinned = Pinned(5000);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, kMiB}) {
    const auto info = api().Inspect(Bytes(device.data()) + offset);
    FERRY_ASSERT_OK(info);
    EXPECT_EQ(info->kind, MemoryKind::kDevice);
    EXPECT_EQ(info->ordinal, 0);
    EXPECT_EQ(info->base, Number(device.data()));
    EXPECT_GE(info->bytes, device.size());
    EXPECT_NE(info->allocation, 0u);
  }
  const auto info = api().Inspect(pinned.bytes().data() + 4999);
  FERRY_ASSERT_OK(info);
  EXPECT_EQ(info->kind, MemoryKind::kPinned);
  EXPECT_EQ(info->base, Number(pinned.data()));
  EXPECT_GE(info->bytes, pinned.size());
}

TEST_P(DeviceConformance, OtherMemoryIsHostMemory) {
  const int local = 0;
  const auto heap = std::make_unique<const int>(1);
  for (const int* address : {&local, heap.get()}) {
    const auto info = api().Inspect(address);
    FERRY_ASSERT_OK(info);
    EXPECT_EQ(*info, PointerInfo{});
  }
}

TEST_P(DeviceConformance, AFreedPointerIsFoundOut) {
  for (int round = 0; round < 3; ++round) {
    DeviceBuffer device = Device(8 * kMiB);
    void* const address = device.data();
    const auto before = api().Inspect(address);
    FERRY_ASSERT_OK(before);
    device.reset();
    const auto after = api().Inspect(address);
    ASSERT_FALSE(after) << MemoryKindName(after->kind);
    EXPECT_EQ(after.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(after.error().message(), HasSubstr("no memory"));
    // Another allocation, at this address or elsewhere, must not be mistaken for it.
    const DeviceBuffer next = Device(8 * kMiB);
    const auto other = api().Inspect(next.data());
    FERRY_ASSERT_OK(other);
    EXPECT_NE(other->allocation, before->allocation);
  }
}

TEST_P(DeviceConformance, AnAddressWithoutMemoryIsAnError) {
  // Not unmapped, because another thread's memory could be mapped there meanwhile.
  const UniqueMapping pages = Pages(4096);
  ASSERT_TRUE(pages);
  const void* const empty = pages.get().at;
  ASSERT_EQ(::mprotect(pages.get().at, 4096, PROT_NONE), 0);
  for (const void* address : {static_cast<const void*>(nullptr), empty}) {
    const auto info = api().Inspect(address);
    ASSERT_FALSE(info);
    EXPECT_EQ(info.error().code(), Code::kInvalidArgument);
  }
}

TEST_P(DeviceConformance, HostMemoryIsPinnedWhileItIsRegistered) {
  const UniqueMapping pages = Pages(kMiB);
  ASSERT_TRUE(pages);
  void* const host = pages.get().at;
  const auto bytes = RandomBytes(kMiB, 3);
  std::memcpy(host, bytes.data(), bytes.size());
  const DeviceBuffer device = Device(kMiB);
  const Stream stream = NewStream();
  {
    const auto registered = api().RegisterHost(0, host, kMiB);
    FERRY_ASSERT_OK(registered);
    EXPECT_EQ(api().Inspect(Bytes(host) + 5)->kind, MemoryKind::kPinned);
    EXPECT_EQ(api().RegisterHost(0, host, kMiB).error().code(), Code::kInvalidArgument);
    FERRY_ASSERT_OK(CopyOne(stream, CopyKind::kHostToDevice, device.data(), host, kMiB));
    FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  }
  EXPECT_EQ(api().Inspect(host)->kind, MemoryKind::kHost);
  EXPECT_EQ(std::memcmp(host, bytes.data(), bytes.size()), 0);
  EXPECT_TRUE(Download(device) == bytes);
}

TEST_P(DeviceConformance, KernelsReachPinnedAndRegisteredMemoryAtItsMappedAddress) {
  const UniqueMapping pages = Pages(8192);
  ASSERT_TRUE(pages);
  const auto registered = api().RegisterHost(0, pages.get().at, 8192);
  FERRY_ASSERT_OK(registered);
  const PinnedBuffer pinned = Pinned(8192);
  const Stream stream = NewStream();
  // Inside both allocations, not at their starts.
  auto* const from = reinterpret_cast<std::uint32_t*>(pinned.data()) + 5;
  auto* const to = static_cast<std::uint32_t*>(pages.get().at) + 1025;
  for (std::uint32_t i = 0; i < 100; ++i) from[i] = i;
  const auto mapped_from = api().MappedAddress(0, from);
  const auto mapped_to = api().MappedAddress(0, to);
  FERRY_ASSERT_OK(mapped_from);
  FERRY_ASSERT_OK(mapped_to);
  FERRY_ASSERT_OK(Add(stream, *mapped_to, *mapped_from, 100, 1000));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(to[i], 1000 + i);
}

TEST_P(DeviceConformance, OnlyPinnedMemoryHasAMappedAddress) {
  int local = 0;
  EXPECT_FALSE(api().MappedAddress(0, &local));
}

TEST_P(DeviceConformance, MoreMemoryThanThereIsIsUnavailableAndHarmsNothing) {
  const auto huge = api().AllocateDevice(0, std::size_t{1} << 46);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code(), Code::kUnavailable) << huge.error().ToString();
  EXPECT_THAT(huge.error().message(), HasSubstr("out of memory"));
  EXPECT_FALSE(api().IsLost(0));
  EXPECT_EQ(api().AllocateDevice(0, 0).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(Device(kMiB));
}

// ---- several devices ----------------------------------------------------------------------------

TEST_P(DeviceConformance, CopiesGoBetweenDevices) {
  if (api().count() < 2) GTEST_SKIP() << "one device only";
  const auto bytes = RandomBytes(2 * kMiB, 4);
  const DeviceBuffer here = Device(bytes.size(), 0);
  const DeviceBuffer there = Device(bytes.size(), 1);
  const Stream stream = NewStream(0);
  Upload(here, bytes);
  FERRY_ASSERT_OK(
      CopyOne(stream, CopyKind::kDeviceToDevice, there.data(), here.data(), bytes.size()));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_EQ(api().Inspect(there.data())->ordinal, 1);
  EXPECT_TRUE(Download(there) == bytes);
}

TEST_P(DeviceConformance, KernelsReachAPeerThatTheyAreAllowed) {
  if (api().count() < 2) GTEST_SKIP() << "one device only";
  const auto can = api().CanAccessPeer(0, 1);
  FERRY_ASSERT_OK(can);
  if (!*can) {
    EXPECT_EQ(api().EnablePeerAccess(0, 1).error().code(), Code::kUnsupported);
    GTEST_SKIP() << "device 0 cannot reach device 1";
  }
  FERRY_ASSERT_OK(api().EnablePeerAccess(0, 1));
  FERRY_ASSERT_OK(api().EnablePeerAccess(0, 1));
  EXPECT_FALSE(*api().CanAccessPeer(0, 0));
  const DeviceBuffer there = Device(400, 1);
  Upload(there, std::vector<std::byte>(400, std::byte{1}));
  const Stream stream = NewStream(0);
  FERRY_ASSERT_OK(Add(stream, there.data(), there.data(), 100, 0x01010101));
  FERRY_ASSERT_OK(api().Wait(stream, Soon()));
  EXPECT_THAT(Download(there), Each(std::byte{2}));
}

}  // namespace ferry::cuda
