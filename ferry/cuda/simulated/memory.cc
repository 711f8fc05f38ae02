// Allocation, poison and lookup of simulated device memory.
#include "ferry/cuda/simulated/memory.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/error.h"
#include "ferry/cuda/simulated/ipc.h"

namespace ferry::cuda {

struct SimulatedMemory::Allocation {
  Resource resource = Resource::kDeviceMemory;
  int ordinal = -1;              // of device memory
  std::uint64_t id = 0;          // PointerInfo::allocation
  std::byte* visible = nullptr;  // the users' address
  std::byte* alias = nullptr;    // the simulator's address
  std::byte* mapped = nullptr;   // the kernels' address
  std::size_t bytes = 0;
  std::size_t offset = 0;  // in the arena, of device memory

  UniqueMapping owned;  // pinned pages; for registered memory, the addresses that kernels use
  std::optional<TwiceMapped> imported;

  // Under the memory's mutex.
  bool freed = false;
  int users = 0;

  bool on_device() const noexcept {
    return resource == Resource::kDeviceMemory || resource == Resource::kImport;
  }
};

namespace {

// With ThreadSanitizer: tracking the writer of each byte takes four times the memory, and most of
// the time of a test with large buffers.
// The attribute keeps the compiler from turning the loop into memset(), which the sanitizer
// intercepts.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kMaxWatchedBytes = std::size_t{4} << 20;
__attribute__((no_sanitize("thread"), optimize("no-tree-loop-distribute-patterns"))) void
PoisonUnwatched(std::byte* memory, std::size_t bytes, std::byte poison) {
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = poison;
}
#else
constexpr std::size_t kMaxWatchedBytes = ~std::size_t{0};
void PoisonUnwatched(std::byte* /*memory*/, std::size_t /*bytes*/, std::byte /*poison*/) {}
#endif

void Poison(std::byte* memory, std::size_t bytes, std::byte poison) {
  const std::size_t watched = std::min(bytes, kMaxWatchedBytes);
  std::memset(memory, static_cast<int>(poison), watched);
  PoisonUnwatched(memory + watched, bytes - watched, poison);
}

// Use after free is found as long as the address is not given to a new allocation.
// Maximum freed memory that keeps its poison and its addresses.
constexpr std::uint64_t kQuarantineBytes = 64 * kMiB;

Result<UniqueMapping> MapAnonymous(std::size_t bytes, int protection) {
  void* const at =
      ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return ErrnoError(fmt::format("mmap of {} bytes", bytes), errno);
  return UniqueMapping(Mapping{at, bytes});
}

Error Unreachable(std::uint64_t address, std::uint64_t bytes, std::string_view why) {
  return Error(Code::kInvalidArgument, fmt::format("{} bytes at {:#x}: {}", bytes, address, why));
}

}  // namespace

// ---- Held ---------------------------------------------------------------------------------------

SimulatedMemory::Held::Held(SimulatedMemory* memory, std::shared_ptr<Allocation> allocation,
                            std::span<std::byte> bytes) noexcept
    : memory_(memory), allocation_(std::move(allocation)), bytes_(bytes) {}

SimulatedMemory::Held& SimulatedMemory::Held::operator=(Held&& other) noexcept {
  LetGo();
  memory_ = other.memory_;
  allocation_ = std::move(other.allocation_);
  bytes_ = other.bytes_;
  return *this;
}

SimulatedMemory::Held::~Held() { LetGo(); }

// Held memory stays mapped: Release() waits for the last user, as cudaFree() waits for the device.
void SimulatedMemory::Held::LetGo() noexcept {
  if (allocation_ == nullptr) return;
  {
    const std::lock_guard lock(memory_->mutex_);
    --allocation_->users;
  }
  memory_->let_go_.notify_all();
  allocation_.reset();
}

// ---- making and releasing -----------------------------------------------------------------------

Result<std::unique_ptr<SimulatedMemory>> SimulatedMemory::Create(int devices,
                                                                 std::uint64_t device_bytes,
                                                                 std::uint64_t pinned_bytes,
                                                                 bool network_access) {
  std::vector<std::unique_ptr<SimulatedArena>> arenas;
  for (int i = 0; i < devices; ++i) {
    FERRY_TRY_ASSIGN(auto arena, SimulatedArena::Create(network_access));
    arenas.push_back(std::move(arena));
  }
  return std::unique_ptr<SimulatedMemory>(
      new SimulatedMemory(std::move(arenas), device_bytes, pinned_bytes));
}

SimulatedMemory::SimulatedMemory(std::vector<std::unique_ptr<SimulatedArena>> arenas,
                                 std::uint64_t device_bytes, std::uint64_t pinned_bytes)
    : arenas_(std::move(arenas)),
      device_limit_(device_bytes),
      pinned_limit_(pinned_bytes),
      device_used_(arenas_.size()),
      peers_(arenas_.size(), std::vector<bool>(arenas_.size())) {}

SimulatedMemory::~SimulatedMemory() = default;

Status SimulatedMemory::Spend(std::uint64_t& used, std::uint64_t limit, std::uint64_t bytes,
                              std::string_view tried) const {
  // `used` is at most `limit`, so this does not wrap around.
  if (bytes > limit - used) {
    return CudaError(Fault::kMemoryAllocation,
                     fmt::format("{} of {} bytes with {} of {} in use", tried, bytes, used, limit));
  }
  used += bytes;
  return Ok();
}

void SimulatedMemory::Publish(const std::shared_ptr<Allocation>& allocation) {
  allocation->id = next_id_++;
  views_[AddressOf(allocation->visible)] = View{allocation, false};
  // Registered memory is found by both of its addresses.
  if (allocation->mapped != allocation->visible) {
    views_[AddressOf(allocation->mapped)] = View{allocation, true};
  }
}

void SimulatedMemory::Forget(const Allocation& allocation) {
  views_.erase(AddressOf(allocation.visible));
  views_.erase(AddressOf(allocation.mapped));
}

Result<void*> SimulatedMemory::AllocateDevice(int ordinal, std::size_t bytes) {
  const auto device = static_cast<std::size_t>(ordinal);
  SimulatedArena& arena = *arenas_[device];
  const auto made = std::make_shared<Allocation>();
  made->ordinal = ordinal;
  made->bytes = bytes;
  {
    const std::lock_guard lock(mutex_);
    FERRY_TRY(Spend(device_used_[device], device_limit_, bytes, "cudaMalloc"));
    auto offset = arena.Take(bytes);
    if (!offset) {
      device_used_[device] -= bytes;
      return CudaError(Fault::kMemoryAllocation, "cudaMalloc: " + offset.error().message());
    }
    made->offset = *offset;
  }
  made->visible = made->mapped = arena.visible(made->offset);
  made->alias = arena.alias(made->offset);
  // Without the mutex, since filling a large allocation takes long. Nobody knows the address yet.
  Poison(made->alias, bytes, kPoisonAllocated);
  const std::lock_guard lock(mutex_);
  Publish(made);
  return made->visible;
}

Result<void*> SimulatedMemory::AllocatePinned(std::size_t bytes) {
  const auto made = std::make_shared<Allocation>();
  made->resource = Resource::kPinnedMemory;
  made->bytes = bytes;
  {
    const std::lock_guard lock(mutex_);
    FERRY_TRY(Spend(pinned_used_, pinned_limit_, bytes, "cudaHostAlloc"));
  }
  auto pages = MapAnonymous(bytes, PROT_READ | PROT_WRITE);
  if (!pages) {
    const std::lock_guard lock(mutex_);
    pinned_used_ -= bytes;
    return CudaError(Fault::kMemoryAllocation, "cudaHostAlloc: " + pages.error().message());
  }
  made->owned = *std::move(pages);
  made->visible = made->alias = made->mapped = static_cast<std::byte*>(made->owned.get().at);
  Poison(made->alias, bytes, kPoisonAllocated);
  const std::lock_guard lock(mutex_);
  Publish(made);
  return made->visible;
}

Result<void*> SimulatedMemory::Register(void* data, std::size_t bytes) {
  const std::string tried = fmt::format("cudaHostRegister of {} bytes at {}", bytes, data);
  if (!IsReadable(data)) return CudaError(Fault::kInvalidValue, tried);
  const std::size_t in_page = AddressOf(data) % kSimulatedPage;
  // Another address for kernels, at the same offset in its page: a program that passes the host's
  // address to a kernel fails here, though it would work on most GPUs (docs/gotchas.md).
  FERRY_TRY_ASSIGN(UniqueMapping addresses, MapAnonymous(in_page + bytes, PROT_NONE));
  const auto made = std::make_shared<Allocation>();
  made->resource = Resource::kRegistration;
  made->bytes = bytes;
  made->visible = made->alias = static_cast<std::byte*>(data);
  made->mapped = static_cast<std::byte*>(addresses.get().at) + in_page;
  made->owned = std::move(addresses);
  const std::lock_guard lock(mutex_);
  if (Overlaps(AddressOf(data), bytes)) {
    return CudaError(Fault::kHostMemoryAlreadyRegistered, tried);
  }
  Publish(made);
  return data;
}

Result<void*> SimulatedMemory::Import(int ordinal, const IpcExport& exported) {
  FERRY_TRY_ASSIGN(TwiceMapped pages, MapSimulatedExport(exported));
  const auto made = std::make_shared<Allocation>();
  made->resource = Resource::kImport;
  made->ordinal = ordinal;
  made->bytes = exported.bytes;
  made->visible = made->mapped = pages.visible();
  made->alias = pages.alias();
  made->imported = std::move(pages);
  const std::lock_guard lock(mutex_);
  Publish(made);
  return made->visible;
}

void SimulatedMemory::Release(Resource resource, void* address) noexcept {
  std::shared_ptr<Allocation> gone;  // removed from the table, or still in it
  {
    std::unique_lock lock(mutex_);
    const View* const view = Find(AddressOf(address));
    FERRY_CHECK(view != nullptr && view->allocation->resource == resource, address);
    gone = view->allocation;
    gone->freed = true;
    // Work that runs ends first. Work that is queued finds the memory freed, and loses the device.
    let_go_.wait(lock, [&] { return gone->users == 0; });
    // Their pages belong to somebody else, so they are neither poisoned nor kept.
    if (resource == Resource::kRegistration || resource == Resource::kImport) {
      Forget(*gone);
      return;
    }
    if (resource == Resource::kPinnedMemory) {
      pinned_used_ -= gone->bytes;
    } else {
      device_used_[static_cast<std::size_t>(gone->ordinal)] -= gone->bytes;
    }
  }
  // Still in the table, so nobody else gets the addresses meanwhile.
  Poison(gone->alias, gone->bytes, kPoisonFreed);
  const std::lock_guard lock(mutex_);
  Quarantine(std::move(gone));
}

void SimulatedMemory::Quarantine(std::shared_ptr<Allocation> allocation) {
  freed_bytes_ += allocation->bytes;
  freed_.push_back(std::move(allocation));
  while (freed_bytes_ > kQuarantineBytes) {
    const std::shared_ptr<Allocation> oldest = std::move(freed_.front());  // the last reference
    freed_.pop_front();
    freed_bytes_ -= oldest->bytes;
    Forget(*oldest);
    if (oldest->resource == Resource::kDeviceMemory) {
      arenas_[static_cast<std::size_t>(oldest->ordinal)]->Give(oldest->offset, oldest->bytes);
    }
  }
}

// ---- looking ------------------------------------------------------------------------------------

std::uint64_t SimulatedMemory::Available(int ordinal) const {
  const std::lock_guard lock(mutex_);
  return device_limit_ - device_used_[static_cast<std::size_t>(ordinal)];
}

// Views do not overlap, so only the last one that begins at or before the address can contain it.
const SimulatedMemory::View* SimulatedMemory::Find(std::uint64_t address) const {
  const auto after = views_.upper_bound(address);
  if (after == views_.begin()) return nullptr;
  const auto& [first, view] = *std::prev(after);
  return address - first < view.allocation->bytes ? &view : nullptr;
}

bool SimulatedMemory::Overlaps(std::uint64_t address, std::uint64_t bytes) const {
  const auto after = views_.lower_bound(address + bytes);
  if (after == views_.begin()) return false;
  const auto& [first, view] = *std::prev(after);
  return first + view.allocation->bytes > address;
}

// Host: the CPU's addresses of pinned memory. Device: the copy engine, in the memory of any GPU.
// Kernel: pinned memory by its mapped address, this GPU's memory, and that of GPUs to which peer
// access has been enabled.
bool SimulatedMemory::MayReach(Reach reach, int ordinal, const View& view) const {
  const Allocation& allocation = *view.allocation;
  switch (reach) {
    case Reach::kHost: return !allocation.on_device() && !view.mapped;
    case Reach::kDevice: return allocation.on_device();
    case Reach::kKernel:
      if (!allocation.on_device()) return view.mapped || allocation.mapped == allocation.visible;
      return allocation.ordinal == ordinal || peers_[static_cast<std::size_t>(ordinal)]
                                                    [static_cast<std::size_t>(allocation.ordinal)];
  }
  return false;
}

Result<SimulatedMemory::Held> SimulatedMemory::Hold(Reach reach, int ordinal, std::uint64_t address,
                                                    std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const View* const view = Find(address);
  if (view == nullptr) {
    return Unreachable(address, bytes, reach == Reach::kHost ? "not pinned" : "not GPU memory");
  }
  Allocation& allocation = *view->allocation;
  if (allocation.freed) return Unreachable(address, bytes, "freed");
  if (!MayReach(reach, ordinal, *view)) {
    return Unreachable(address, bytes,
                       reach == Reach::kHost     ? "not host memory"
                       : reach == Reach::kDevice ? "host memory"
                                                 : "out of this kernel's reach");
  }
  const std::uint64_t offset =
      address - AddressOf(view->mapped ? allocation.mapped : allocation.visible);
  if (bytes > allocation.bytes - offset) {
    return Unreachable(address, bytes,
                       fmt::format("{} bytes beyond the end of its allocation",
                                   bytes - (allocation.bytes - offset)));
  }
  ++allocation.users;
  return Held(this, view->allocation, {allocation.alias + offset, bytes});
}

Result<IpcExport> SimulatedMemory::Export(const void* address) const {
  const std::lock_guard lock(mutex_);
  const View* const view = Find(AddressOf(address));
  const std::string tried = fmt::format("cudaIpcGetMemHandle of {}", address);
  if (view == nullptr || view->allocation->freed || !view->allocation->on_device()) {
    return CudaError(Fault::kInvalidValue, tried);
  }
  const Allocation& allocation = *view->allocation;
  // CUDA does not pass on what another process has shared either.
  if (allocation.imported) return CudaError(Fault::kNotSupported, tried);
  IpcExport exported = MakeSimulatedExport(*arenas_[static_cast<std::size_t>(allocation.ordinal)],
                                           allocation.offset, allocation.bytes);
  exported.offset = AddressOf(address) - AddressOf(allocation.visible);
  return exported;
}

Result<void*> SimulatedMemory::MappedAddress(void* host) const {
  const std::lock_guard lock(mutex_);
  const View* const view = Find(AddressOf(host));
  if (view == nullptr || view->allocation->freed || view->mapped || view->allocation->on_device()) {
    return CudaError(
        Fault::kInvalidValue,
        fmt::format("looking for the mapped address of {}, which is not pinned", host));
  }
  const Allocation& allocation = *view->allocation;
  return allocation.mapped + (AddressOf(host) - AddressOf(allocation.visible));
}

Result<PointerInfo> SimulatedMemory::Inspect(const void* address) const {
  {
    const std::lock_guard lock(mutex_);
    const View* const view = Find(AddressOf(address));
    if (view != nullptr && !view->allocation->freed) {
      const Allocation& allocation = *view->allocation;
      return PointerInfo{.kind = allocation.on_device() ? MemoryKind::kDevice : MemoryKind::kPinned,
                         .ordinal = allocation.ordinal,
                         .base = AddressOf(view->mapped ? allocation.mapped : allocation.visible),
                         .bytes = allocation.bytes,
                         .allocation = allocation.id};
    }
    // In quarantine: freed, although the address is still mapped.
    if (view != nullptr) return NothingThere(address);
  }
  if (!IsReadable(address)) return NothingThere(address);
  return PointerInfo{};
}

void SimulatedMemory::EnablePeerAccess(int from, int to) {
  const std::lock_guard lock(mutex_);
  peers_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] = true;
}

}  // namespace ferry::cuda
