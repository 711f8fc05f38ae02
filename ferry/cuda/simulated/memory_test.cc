// Tests of the memory of simulated devices: who reaches which bytes, by which address, until when.
#include "ferry/cuda/simulated/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/testing/conformance.h"

namespace ferry::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kSize = 10000;

class SimulatedMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto memory = SimulatedMemory::Create(2, kMiB, kMiB);
    FERRY_ASSERT_OK(memory);
    memory_ = *std::move(memory);
  }

  void* Device(int ordinal = 0, std::size_t bytes = kSize) {
    return *memory_->AllocateDevice(ordinal, bytes);
  }
  void* Pinned(std::size_t bytes = kSize) { return *memory_->AllocatePinned(bytes); }
  // Why the bytes cannot be reached; empty where they can.
  std::string WhyNot(Reach reach, const void* address, std::uint64_t bytes = 1, int ordinal = 0) {
    const auto held = memory_->Hold(reach, ordinal, AddressOf(address), bytes);
    return held ? std::string() : held.error().message();
  }
  static const std::byte* At(const void* address, std::size_t offset) {
    return static_cast<const std::byte*>(address) + offset;
  }

  std::vector<std::byte> host_ = std::vector<std::byte>(4 * kSimulatedPage);
  std::unique_ptr<SimulatedMemory> memory_;
};

// ---- reach --------------------------------------------------------------------------------------

TEST_F(SimulatedMemoryTest, CopiesReachDeviceMemoryOfEveryDeviceAndPinnedMemory) {
  const void* const pinned = Pinned();
  for (const void* device : {Device(0), Device(1)}) {
    EXPECT_EQ(WhyNot(Reach::kDevice, device), "");
    EXPECT_THAT(WhyNot(Reach::kHost, device), HasSubstr("not host memory"));
  }
  EXPECT_EQ(WhyNot(Reach::kHost, pinned), "");
  EXPECT_THAT(WhyNot(Reach::kDevice, pinned), HasSubstr("host memory"));
}

TEST_F(SimulatedMemoryTest, MemoryThatNobodyHasToldOfIsOutOfReach) {
  EXPECT_THAT(WhyNot(Reach::kHost, host_.data()), HasSubstr("not pinned"));
  EXPECT_THAT(WhyNot(Reach::kDevice, host_.data()), HasSubstr("not GPU memory"));
  EXPECT_THAT(WhyNot(Reach::kKernel, host_.data()), HasSubstr("not GPU memory"));
  EXPECT_THAT(WhyNot(Reach::kKernel, nullptr), HasSubstr("0x0"));
}

TEST_F(SimulatedMemoryTest, KernelsReachPeersOnlyWhereThatIsAllowedAndOneWay) {
  const void* const here = Device(0);
  const void* const there = Device(1);
  EXPECT_EQ(WhyNot(Reach::kKernel, here, 1, 0), "");
  EXPECT_THAT(WhyNot(Reach::kKernel, there, 1, 0), HasSubstr("out of this kernel's reach"));
  memory_->EnablePeerAccess(0, 1);
  EXPECT_EQ(WhyNot(Reach::kKernel, there, 1, 0), "");
  EXPECT_THAT(WhyNot(Reach::kKernel, here, 1, 1), HasSubstr("out of this kernel's reach"));
}

TEST_F(SimulatedMemoryTest, RegisteredMemoryHasOneAddressForCopiesAndOneForKernels) {
  void* const registered = *memory_->Register(host_.data() + 100, 5000);
  EXPECT_EQ(registered, host_.data() + 100);
  void* const mapped = *memory_->MappedAddress(registered);
  EXPECT_NE(mapped, registered);
  EXPECT_EQ(AddressOf(mapped) % kSimulatedPage, AddressOf(registered) % kSimulatedPage);
  EXPECT_EQ(WhyNot(Reach::kHost, registered), "");
  EXPECT_THAT(WhyNot(Reach::kKernel, registered), HasSubstr("out of this kernel's reach"));
  EXPECT_EQ(WhyNot(Reach::kKernel, mapped), "");
  EXPECT_THAT(WhyNot(Reach::kHost, mapped), HasSubstr("not host memory"));
  // Both are the same bytes.
  const auto held = memory_->Hold(Reach::kKernel, 0, AddressOf(At(mapped, 7)), 1);
  ASSERT_TRUE(held);
  *held->data() = std::byte{42};
  EXPECT_EQ(host_[107], std::byte{42});
}

TEST_F(SimulatedMemoryTest, PinnedMemoryHasOneAddress) {
  void* const pinned = Pinned();
  EXPECT_EQ(*memory_->MappedAddress(pinned), pinned);
  EXPECT_EQ(*memory_->MappedAddress(const_cast<std::byte*>(At(pinned, 9))), At(pinned, 9));
  EXPECT_EQ(WhyNot(Reach::kKernel, pinned), "");
}

TEST_F(SimulatedMemoryTest, WhatIsNotPinnedHasNoMappedAddress) {
  void* const pinned = Pinned();
  memory_->Release(Resource::kPinnedMemory, pinned);
  void* const mapped = *memory_->MappedAddress(*memory_->Register(host_.data(), 100));
  for (void* const wrong : {static_cast<void*>(host_.data() + 100), Device(), pinned, mapped,
                            static_cast<void*>(nullptr)}) {
    const auto address = memory_->MappedAddress(wrong);
    ASSERT_FALSE(address) << wrong;
    EXPECT_EQ(address.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(address.error().message(), HasSubstr("which is not pinned"));
  }
}

TEST_F(SimulatedMemoryTest, TheLastByteIsReachedAndNoneBeyond) {
  const void* const device = Device();
  EXPECT_EQ(WhyNot(Reach::kDevice, device, kSize), "");
  EXPECT_EQ(WhyNot(Reach::kDevice, At(device, kSize - 1), 1), "");
  EXPECT_THAT(WhyNot(Reach::kDevice, device, kSize + 3), HasSubstr("3 bytes beyond the end"));
  EXPECT_THAT(WhyNot(Reach::kDevice, At(device, kSize - 1), 5), HasSubstr("4 bytes beyond"));
  EXPECT_THAT(WhyNot(Reach::kDevice, device, ~std::uint64_t{0}), HasSubstr("beyond the end"));
  EXPECT_THAT(WhyNot(Reach::kDevice, At(device, kSize)), HasSubstr("not GPU memory"));
  EXPECT_THAT(WhyNot(Reach::kDevice, At(device, 0) - 1), HasSubstr("not GPU memory"));
}

// ---- freeing ------------------------------------------------------------------------------------

TEST_F(SimulatedMemoryTest, FreedMemoryIsKnownAsFreed) {
  void* const device = Device();
  memory_->Release(Resource::kDeviceMemory, device);
  EXPECT_THAT(WhyNot(Reach::kDevice, device), HasSubstr("freed"));
  EXPECT_FALSE(memory_->Inspect(device));
  EXPECT_FALSE(memory_->Export(device));
}

TEST_F(SimulatedMemoryTest, MemoryIsNotFreedWhileItIsHeld) {
  void* const device = Device();
  auto held = memory_->Hold(Reach::kDevice, 0, AddressOf(device), kSize);
  ASSERT_TRUE(held);
  std::atomic<bool> freed{false};
  std::thread other([&] {
    memory_->Release(Resource::kDeviceMemory, device);
    freed = true;
  });
  // Nobody gets it any more, and it is still there for who has it.
  for (const Deadline limit = Soon(); WhyNot(Reach::kDevice, device).empty();) {
    ASSERT_FALSE(limit.expired());
    std::this_thread::yield();
  }
  EXPECT_FALSE(freed);
  EXPECT_THAT(held->bytes(), Each(kPoisonAllocated));
  auto moved = std::make_unique<SimulatedMemory::Held>(*std::move(held));
  EXPECT_FALSE(freed);
  moved.reset();
  other.join();
  EXPECT_TRUE(freed);
}

TEST_F(SimulatedMemoryTest, AHoldThatIsAssignedLetsGoOfWhatItHad) {
  void* const first = Device();
  void* const second = Device();
  auto held = memory_->Hold(Reach::kDevice, 0, AddressOf(first), 1);
  ASSERT_TRUE(held);
  *held = *memory_->Hold(Reach::kDevice, 0, AddressOf(second), 2);
  EXPECT_EQ(held->bytes().size(), 2U);
  memory_->Release(Resource::kDeviceMemory, first);  // would block while it is held
  EXPECT_THAT(WhyNot(Reach::kDevice, first), HasSubstr("freed"));
}

TEST_F(SimulatedMemoryTest, RegistrationsEndWithoutATraceInTheMemory) {
  std::memset(host_.data(), 7, host_.size());
  void* const registered = *memory_->Register(host_.data(), host_.size());
  EXPECT_EQ(memory_->Inspect(registered)->kind, MemoryKind::kPinned);
  memory_->Release(Resource::kRegistration, registered);
  EXPECT_THAT(host_, Each(std::byte{7}));
  EXPECT_EQ(memory_->Inspect(registered)->kind, MemoryKind::kHost);
  EXPECT_TRUE(memory_->Register(host_.data(), host_.size())) << "and may be made again";
}

TEST_F(SimulatedMemoryTest, RegistrationsDoNotOverlap) {
  ASSERT_TRUE(memory_->Register(host_.data() + 1000, 1000));
  for (const auto& [from, bytes] :
       {std::pair{1000U, 1000U}, std::pair{999U, 2U}, std::pair{1999U, 1U}, std::pair{0U, 4000U},
        std::pair{1500U, 10U}}) {
    const auto again = memory_->Register(host_.data() + from, bytes);
    ASSERT_FALSE(again) << from;
    EXPECT_THAT(again.error().message(), HasSubstr("cudaErrorHostMemoryAlreadyRegistered"));
  }
  EXPECT_TRUE(memory_->Register(host_.data() + 900, 100));
  EXPECT_TRUE(memory_->Register(host_.data() + 2000, 100));
  EXPECT_THAT(memory_->Register(nullptr, 8).error().message(), HasSubstr("cudaErrorInvalidValue"));
}

// ---- limits -------------------------------------------------------------------------------------

TEST_F(SimulatedMemoryTest, EachDeviceHasItsOwnLimit) {
  EXPECT_EQ(memory_->Available(0), kMiB);
  void* const most = Device(0, kMiB - 1);
  EXPECT_EQ(memory_->Available(0), 1U);
  EXPECT_EQ(memory_->Available(1), kMiB);
  const auto more = memory_->AllocateDevice(0, 2);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code(), Code::kUnavailable);
  EXPECT_THAT(more.error().message(), HasSubstr("cudaMalloc of 2 bytes with 1048575 of 1048576"));
  EXPECT_TRUE(memory_->AllocateDevice(0, 1));
  memory_->Release(Resource::kDeviceMemory, most);
  EXPECT_EQ(memory_->Available(0), kMiB - 1);
}

TEST_F(SimulatedMemoryTest, PinnedMemoryHasALimitOfItsOwn) {
  void* const most = Pinned(kMiB);
  EXPECT_EQ(memory_->AllocatePinned(1).error().code(), Code::kUnavailable);
  EXPECT_TRUE(memory_->Register(host_.data(), host_.size())) << "registered memory is the user's";
  memory_->Release(Resource::kPinnedMemory, most);
  EXPECT_TRUE(memory_->AllocatePinned(kMiB));
  EXPECT_FALSE(memory_->AllocatePinned(~std::size_t{0}));
}

// ---- looking ------------------------------------------------------------------------------------

TEST_F(SimulatedMemoryTest, EachAllocationIsInspectedByEveryAddress) {
  void* const device = Device(1);
  void* const pinned = Pinned();
  void* const registered = *memory_->Register(host_.data(), 100);
  void* const mapped = *memory_->MappedAddress(registered);
  const struct {
    void* base;
    MemoryKind kind;
    int ordinal;
    std::uint64_t bytes;
  } kCases[] = {{device, MemoryKind::kDevice, 1, kSize},
                {pinned, MemoryKind::kPinned, -1, kSize},
                {registered, MemoryKind::kPinned, -1, 100},
                {mapped, MemoryKind::kPinned, -1, 100}};
  for (const auto& [base, kind, ordinal, bytes] : kCases) {
    for (const std::uint64_t offset : {std::uint64_t{0}, bytes - 1}) {
      const auto info = memory_->Inspect(At(base, offset));
      FERRY_ASSERT_OK(info);
      EXPECT_EQ(info->kind, kind);
      EXPECT_EQ(info->ordinal, ordinal);
      EXPECT_EQ(info->base, AddressOf(base));
      EXPECT_EQ(info->bytes, bytes);
    }
  }
  EXPECT_EQ(memory_->Inspect(registered)->allocation, memory_->Inspect(mapped)->allocation);
  EXPECT_NE(memory_->Inspect(device)->allocation, memory_->Inspect(pinned)->allocation);
}

TEST_F(SimulatedMemoryTest, OnlyDeviceMemoryIsExportedWithItsOffset) {
  void* const device = Device();
  const auto exported = memory_->Export(At(device, 77));
  FERRY_ASSERT_OK(exported);
  EXPECT_EQ(exported->offset, 77U);
  EXPECT_EQ(exported->bytes, kSize);
  for (const void* const wrong :
       {static_cast<const void*>(Pinned()), static_cast<const void*>(host_.data()),
        static_cast<const void*>(At(device, kSize))}) {
    EXPECT_EQ(memory_->Export(wrong).error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ferry::cuda
