// Host memory in place of GPU memory, for machines without a GPU.

#include <sys/mman.h>

#include <cstring>

#include "standin/memory/memory.h"
#include "standin/report.h"

namespace ferry::standin {
namespace {

constexpr std::size_t kPage = 4096;

// Each allocation is a mapping of its own, so that all of it goes back to the system: of malloc()'s
// large blocks, which threads of many connections free, the heaps kept 200 MiB after 40 s. The
// page in front of it has the size of the mapping. Zeroed; null, with a log line, without memory.
std::byte* Map(std::size_t bytes) {
  const std::size_t whole = kPage + (bytes + kPage - 1) / kPage * kPage;
  void* const mapping =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    Log(abi::kLogWarn, "standin: no %zu bytes of memory", bytes);
    return nullptr;
  }
  std::memcpy(mapping, &whole, sizeof(whole));
  return static_cast<std::byte*>(mapping) + kPage;
}

void Unmap(std::byte* memory) {
  if (memory == nullptr) return;
  std::size_t whole = 0;
  std::memcpy(&whole, memory - kPage, sizeof(whole));
  (void)::munmap(memory - kPage, whole);
}

// One device, whose memory is the host's.
class PlainMemory final : public Memory {
 public:
  int CurrentDevice() override { return 0; }

  std::byte* AllocateDevice(int /*device*/, std::size_t bytes) override { return Map(bytes); }
  void FreeDevice(int /*device*/, std::byte* memory) override { Unmap(memory); }
  std::byte* AllocatePinned(int /*device*/, std::size_t bytes) override { return Map(bytes); }
  void FreePinned(int /*device*/, std::byte* memory) override { Unmap(memory); }
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
