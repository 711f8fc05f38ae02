// Memory of simulated devices, and who may reach it.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "ferry/core/mapping.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/simulated/arena.h"

namespace ferry::cuda {

// Contents of memory that was not written: since its allocation, since it was freed, and since a
// copy to it was queued that has not run.
inline constexpr std::byte kPoisonAllocated{0xA7};
inline constexpr std::byte kPoisonFreed{0xDF};
inline constexpr std::byte kPoisonPending{0xE3};

// Who accesses memory; determines which memory is accessible, and by which address.
enum class Reach : unsigned char {
  kHost,    // by copies: pinned memory, by its host address
  kDevice,  // by copies: memory of any device
  kKernel,  // by kernels and flags of one device
};

// The memory of all simulated devices, and the host memory that they know. Any thread.
class SimulatedMemory {
 private:
  struct Allocation;

 public:
  // Bytes that are not freed while this lives.
  class Held {
   public:
    Held(Held&&) noexcept = default;
    Held& operator=(Held&& other) noexcept;
    ~Held();
    std::byte* data() const noexcept { return bytes_.data(); }
    std::span<std::byte> bytes() const noexcept { return bytes_; }

   private:
    friend class SimulatedMemory;
    Held(SimulatedMemory* memory, std::shared_ptr<Allocation> allocation,
         std::span<std::byte> bytes) noexcept;
    void LetGo() noexcept;

    SimulatedMemory* memory_;
    std::shared_ptr<Allocation> allocation_;  // shared with the table and other users
    std::span<std::byte> bytes_;
  };

  static Result<std::unique_ptr<SimulatedMemory>> Create(int devices, std::uint64_t device_bytes,
                                                         std::uint64_t pinned_bytes,
                                                         bool network_access = false);
  ~SimulatedMemory();

  Result<void*> AllocateDevice(int ordinal, std::size_t bytes);
  Result<void*> AllocatePinned(std::size_t bytes);
  Result<void*> Register(void* data, std::size_t bytes);
  Result<void*> Import(int ordinal, const IpcExport& exported);
  // Frees the memory; blocks while it is held.
  void Release(Resource resource, void* address) noexcept;

  // Bytes that AllocateDevice() can still allocate there.
  std::uint64_t Available(int ordinal) const;
  // `address` must be in device memory.
  Result<IpcExport> Export(const void* address) const;
  Result<void*> MappedAddress(void* host) const;
  Result<PointerInfo> Inspect(const void* address) const;
  void EnablePeerAccess(int from, int to);

  // Errors: as a GPU reports them for addresses that are freed, unknown or not accessible.
  // `ordinal` is the device of the kernel.
  Result<Held> Hold(Reach reach, int ordinal, std::uint64_t address, std::uint64_t bytes);

 private:
  // The table entry by which an allocation is found: one for each address range where it is
  // visible.
  struct View {
    std::shared_ptr<Allocation> allocation;  // shared with the other view and with Held
    bool mapped = false;  // the address by which only kernels access registered memory
  };

  SimulatedMemory(std::vector<std::unique_ptr<SimulatedArena>> arenas, std::uint64_t device_bytes,
                  std::uint64_t pinned_bytes);

  // These need the mutex.
  const View* Find(std::uint64_t address) const;
  bool Overlaps(std::uint64_t address, std::uint64_t bytes) const;
  bool MayReach(Reach reach, int ordinal, const View& view) const;
  void Publish(const std::shared_ptr<Allocation>& allocation);
  void Forget(const Allocation& allocation);
  Status Spend(std::uint64_t& used, std::uint64_t limit, std::uint64_t bytes,
               std::string_view tried) const;
  void Quarantine(std::shared_ptr<Allocation> allocation);

  const std::vector<std::unique_ptr<SimulatedArena>> arenas_;  // by ordinal
  const std::uint64_t device_limit_;
  const std::uint64_t pinned_limit_;

  mutable std::mutex mutex_;
  std::condition_variable let_go_;
  std::map<std::uint64_t, View> views_;     // by first address; freed ones until they are recycled
  std::vector<std::uint64_t> device_used_;  // bytes, by ordinal
  std::uint64_t pinned_used_ = 0;
  std::vector<std::vector<bool>> peers_;  // [from][to]
  std::uint64_t next_id_ = 1;
  std::deque<std::shared_ptr<Allocation>> freed_;  // poisoned; oldest first; shared with the table
  std::uint64_t freed_bytes_ = 0;
};

}  // namespace ferry::cuda
