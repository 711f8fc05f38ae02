// Host memory in place of GPU memory, for machines without a GPU.

#include <cstdlib>
#include <cstring>

#include "standin/memory.h"
#include "standin/report.h"

namespace ferry::standin {
namespace {

constexpr std::size_t kPage = 4096;

// One device, whose memory is the host's.
class PlainMemory final : public Memory {
 public:
  int CurrentDevice() override { return 0; }

  std::byte* AllocateDevice(int /*device*/, std::size_t bytes) override {
    // aligned_alloc() demands a size that is a multiple of the alignment.
    void* const memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    if (memory == nullptr) Log(abi::kLogWarn, "standin: no %zu bytes of memory", bytes);
    return static_cast<std::byte*>(memory);
  }
  void FreeDevice(int /*device*/, std::byte* memory) override { std::free(memory); }

  std::byte* AllocatePinned(int device, std::size_t bytes) override {
    std::byte* const memory = AllocateDevice(device, bytes);
    if (memory != nullptr) std::memset(memory, 0, bytes);
    return memory;
  }
  void FreePinned(int device, std::byte* memory) override { FreeDevice(device, memory); }
  std::byte* DeviceAddress(int /*device*/, std::byte* pinned) override { return pinned; }

  bool Place(int /*device*/, std::span<const Placement> placements) override {
    for (const Placement& one : placements) std::memcpy(one.to, one.from, one.bytes);
    return true;
  }
  bool Fetch(int /*device*/, std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return true;
  }
  // Done on return; null says so, and the pool asks no further.
  void* Poison(int /*device*/, std::span<const std::span<std::byte>> memory) override {
    for (const auto& bytes : memory) std::memset(bytes.data(), kPoison, bytes.size());
    return nullptr;
  }
  bool IsPoisoned(int /*device*/, void* /*poisoning*/) override { return true; }
};

}  // namespace

std::unique_ptr<Memory> HostMemory() { return std::make_unique<PlainMemory>(); }

}  // namespace ferry::standin
