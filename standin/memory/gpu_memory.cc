// GPU memory of the stand-in, through CUDA's driver API.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "standin/memory/memory.h"
#include "standin/report.h"

namespace ferry::standin {
namespace {

// CUDA's driver API, as far as it is used here. Declared and loaded by hand, so that the stand-in
// is built where there is no CUDA.
using CuAddress = unsigned long long;
using CuContext = struct CuContextObject*;
using CuStream = struct CuStreamObject*;

// CUDA_MEMCPY2D.
struct CuCopy2d {
  std::size_t from_x = 0;
  std::size_t from_y = 0;
  int from_kind = 1;  // CU_MEMORYTYPE_HOST
  const void* from_host = nullptr;
  CuAddress from_device = 0;
  void* from_array = nullptr;
  std::size_t from_pitch = 0;
  std::size_t to_x = 0;
  std::size_t to_y = 0;
  int to_kind = 2;  // CU_MEMORYTYPE_DEVICE
  void* to_host = nullptr;
  CuAddress to_device = 0;
  void* to_array = nullptr;
  std::size_t to_pitch = 0;
  std::size_t width = 0;
  std::size_t height = 0;
};
static_assert(sizeof(CuCopy2d) == 128 && offsetof(CuCopy2d, from_host) == 24 &&
              offsetof(CuCopy2d, to_x) == 56 && offsetof(CuCopy2d, to_device) == 88 &&
              offsetof(CuCopy2d, width) == 112);

struct CuDriver {
  int (*init)(unsigned flags) = nullptr;
  int (*get_error_name)(int result, const char** name) = nullptr;
  int (*context_get_device)(int* device) = nullptr;
  int (*primary_context_retain)(CuContext* context, int device) = nullptr;
  int (*context_push)(CuContext context) = nullptr;
  int (*context_pop)(CuContext* context) = nullptr;
  int (*alloc)(CuAddress* address, std::size_t bytes) = nullptr;
  int (*free)(CuAddress address) = nullptr;
  int (*host_alloc)(void** memory, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_free)(void* memory) = nullptr;
  int (*host_address)(CuAddress* address, void* memory, unsigned flags) = nullptr;
  int (*stream_create)(CuStream* stream, unsigned flags, int priority) = nullptr;
  int (*stream_synchronize)(CuStream stream) = nullptr;
  int (*stream_query)(CuStream stream) = nullptr;
  int (*to_device)(CuAddress to, const void* from, std::size_t bytes, CuStream stream) = nullptr;
  int (*copy_2d)(const CuCopy2d* copy, CuStream stream) = nullptr;
  int (*to_host)(void* to, CuAddress from, std::size_t bytes, CuStream stream) = nullptr;
  int (*set_bytes)(CuAddress to, unsigned char value, std::size_t bytes, CuStream stream) = nullptr;
};

template <class Function>
bool FindSymbol(void* library, const char* name, Function** function) {
  void* const found = ::dlsym(library, name);
  if (found == nullptr) Log(abi::kLogWarn, "standin: the driver has no %s", name);
  // A pointer to data, by the type of dlsym(); POSIX lets it be a function.
  std::memcpy(static_cast<void*>(function), static_cast<const void*>(&found), sizeof(found));
  return found != nullptr;
}

bool LoadCuDriver(const std::string& name, CuDriver* driver) {
  void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);  // for good
  if (library == nullptr) {
    Log(abi::kLogWarn, "standin: FERRY_STANDIN_GPU needs %s: %s", name.c_str(), ::dlerror());
    return false;
  }
  return FindSymbol(library, "cuInit", &driver->init) &&
         FindSymbol(library, "cuGetErrorName", &driver->get_error_name) &&
         FindSymbol(library, "cuCtxGetDevice", &driver->context_get_device) &&
         FindSymbol(library, "cuDevicePrimaryCtxRetain", &driver->primary_context_retain) &&
         FindSymbol(library, "cuCtxPushCurrent_v2", &driver->context_push) &&
         FindSymbol(library, "cuCtxPopCurrent_v2", &driver->context_pop) &&
         FindSymbol(library, "cuMemAlloc_v2", &driver->alloc) &&
         FindSymbol(library, "cuMemFree_v2", &driver->free) &&
         FindSymbol(library, "cuMemHostAlloc", &driver->host_alloc) &&
         FindSymbol(library, "cuMemFreeHost", &driver->host_free) &&
         FindSymbol(library, "cuMemHostGetDevicePointer_v2", &driver->host_address) &&
         FindSymbol(library, "cuStreamCreateWithPriority", &driver->stream_create) &&
         FindSymbol(library, "cuStreamSynchronize", &driver->stream_synchronize) &&
         FindSymbol(library, "cuStreamQuery", &driver->stream_query) &&
         FindSymbol(library, "cuMemsetD8Async", &driver->set_bytes) &&
         FindSymbol(library, "cuMemcpyHtoDAsync_v2", &driver->to_device) &&
         FindSymbol(library, "cuMemcpy2DAsync_v2", &driver->copy_2d) &&
         FindSymbol(library, "cuMemcpyDtoHAsync_v2", &driver->to_host);
}

CuAddress AddressOf(const std::byte* memory) {
  CuAddress address = 0;
  static_assert(sizeof(address) == sizeof(memory));
  std::memcpy(&address, static_cast<const void*>(&memory), sizeof(address));
  return address;
}

std::byte* PointerTo(CuAddress address) {
  std::byte* memory = nullptr;
  std::memcpy(static_cast<void*>(&memory), &address, sizeof(memory));
  return memory;
}

// How many of the first of these are as long as the first, lie one after another in the host's
// memory, and at equal distances on the device.
std::size_t EvenlySpread(std::span<const Placement> placements) {
  if (placements.size() < 2 || placements[1].to <= placements[0].to) return 1;
  const std::size_t bytes = placements[0].bytes;
  const auto distance = placements[1].to - placements[0].to;
  std::size_t count = 1;
  for (; count < placements.size(); ++count) {
    const Placement& last = placements[count - 1];
    const Placement& next = placements[count];
    const bool continues =
        next.bytes == bytes && next.from == last.from + bytes && next.to - last.to == distance;
    if (!continues) break;
  }
  return std::cmp_greater(distance, bytes) ? count : 1;
}

bool ContinuesIt(const Placement& one, const Placement& next) {
  return next.to == one.to + one.bytes && next.from == one.from + one.bytes;
}

// In the primary contexts, which the host's runtime uses, too. Copies run on streams of our own,
// which do not wait for the host's.
class CuMemory : public Memory {
 public:
  explicit CuMemory(const CuDriver& driver) : driver_(driver) {}

  bool Initialize() { return Good(driver_.init(0), "cuInit"); }

  int CurrentDevice() override {
    int device = -1;
    return driver_.context_get_device(&device) == 0 ? device : -1;
  }

  std::byte* AllocateDevice(int device, std::size_t bytes) override {
    const Inside inside(*this, device);
    CuAddress address = 0;
    return inside && Good(driver_.alloc(&address, bytes), "cuMemAlloc") ? PointerTo(address)
                                                                        : nullptr;
  }
  void FreeDevice(int device, std::byte* memory) override {
    const Inside inside(*this, device);
    if (inside) (void)Good(driver_.free(AddressOf(memory)), "cuMemFree");
  }

  std::byte* AllocatePinned(int device, std::size_t bytes) override {
    constexpr unsigned kPortable = 1;
    constexpr unsigned kDeviceMap = 2;
    const Inside inside(*this, device);
    void* memory = nullptr;
    if (!inside ||
        !Good(driver_.host_alloc(&memory, bytes, kPortable | kDeviceMap), "cuMemHostAlloc")) {
      return nullptr;
    }
    std::memset(memory, 0, bytes);
    AddStream(device);
    return static_cast<std::byte*>(memory);
  }
  void FreePinned(int device, std::byte* memory) override {
    const Inside inside(*this, device);
    if (inside) (void)Good(driver_.host_free(memory), "cuMemFreeHost");
  }
  std::byte* DeviceAddress(int device, std::byte* pinned) override {
    const Inside inside(*this, device);
    CuAddress address = 0;
    return inside && Good(driver_.host_address(&address, pinned, 0), "cuMemHostGetDevicePointer")
               ? PointerTo(address)
               : nullptr;
  }

  bool Place(int device, std::span<const Placement> placements) override {
    const Inside inside(*this, device);
    bool good = static_cast<bool>(inside);
    for (std::size_t i = 0; good && i < placements.size();) {
      const std::size_t spread = EvenlySpread(placements.subspan(i));
      if (spread > 1) {
        good = CopySpread(placements.subspan(i, spread), inside.stream());
        i += spread;
        continue;
      }
      Placement one = placements[i++];
      for (; i < placements.size() && ContinuesIt(one, placements[i]); ++i) {
        one.bytes += placements[i].bytes;
      }
      good = Good(driver_.to_device(AddressOf(one.to), one.from, one.bytes, inside.stream()),
                  "cuMemcpyHtoDAsync");
    }
    return good && inside.Synchronize();
  }
  bool Fetch(int device, std::byte* to, const std::byte* from, std::size_t bytes) override {
    const Inside inside(*this, device);
    return inside &&
           Good(driver_.to_host(to, AddressOf(from), bytes, inside.stream()),
                "cuMemcpyDtoHAsync") &&
           inside.Synchronize();
  }
  // Poisoning while a kernel of the host's runs may have to wait for that kernel, which may wait
  // for the caller.
  void* Poison(int device, std::span<const std::span<std::byte>> memory) override {
    Inside inside(*this, device);
    bool good = static_cast<bool>(inside);
    for (std::size_t i = 0; good && i < memory.size(); ++i) {
      good = Good(driver_.set_bytes(AddressOf(memory[i].data()), kPoison, memory[i].size(),
                                    inside.stream()),
                  "cuMemsetD8Async");
    }
    if (!good && inside) (void)inside.Synchronize();
    return good ? inside.Keep() : nullptr;
  }
  bool IsPoisoned(int device, void* poisoning) override {
    constexpr int kNotReady = 600;
    auto* const stream = static_cast<CuStream>(poisoning);
    const Inside inside(*this, device);
    const int looked = driver_.stream_query(stream);
    if (looked == kNotReady) return false;
    (void)Good(looked, "cuStreamQuery");
    GiveStream(device, stream);
    return true;
  }

 private:
  struct Gpu {
    CuContext context = nullptr;
    std::vector<CuStream> free;
  };
  static constexpr std::size_t kMaxFreeStreams = 64;

  // Makes a device's context current for as long as it lives, on whatever thread, and has a stream.
  class Inside {
   public:
    Inside(CuMemory& memory, int device) : memory_(memory), device_(device) {
      const CuContext context = memory.ContextOf(device);
      pushed_ = context != nullptr &&
                memory.Good(memory.driver_.context_push(context), "cuCtxPushCurrent");
      if (pushed_) stream_ = memory.TakeStream(device);
    }
    ~Inside() {
      CuContext popped = nullptr;
      if (stream_ != nullptr) memory_.GiveStream(device_, stream_);
      if (pushed_) (void)memory_.driver_.context_pop(&popped);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

    explicit operator bool() const { return pushed_ && stream_ != nullptr; }
    CuStream stream() const { return stream_; }
    // The stream is the caller's, who gives it back.
    CuStream Keep() { return std::exchange(stream_, nullptr); }
    bool Synchronize() const {
      return memory_.Good(memory_.driver_.stream_synchronize(stream_), "cuStreamSynchronize");
    }

   private:
    CuMemory& memory_;
    const int device_;
    CuStream stream_ = nullptr;
    bool pushed_ = false;
  };

  // By one copy.
  bool CopySpread(std::span<const Placement> placements, CuStream stream) {
    CuCopy2d copy;
    copy.from_host = placements[0].from;
    copy.from_pitch = placements[0].bytes;
    copy.to_device = AddressOf(placements[0].to);
    copy.to_pitch = static_cast<std::size_t>(placements[1].to - placements[0].to);
    copy.width = placements[0].bytes;
    copy.height = placements.size();
    return Good(driver_.copy_2d(&copy, stream), "cuMemcpy2DAsync");
  }

  bool Good(int result, const char* call) {
    if (result == 0) return true;
    const char* name = nullptr;
    (void)driver_.get_error_name(result, &name);
    Log(abi::kLogWarn, "standin: %s: %s", call, name != nullptr ? name : "unknown error");
    return false;
  }

  CuContext ContextOf(int device) {
    const std::lock_guard lock(mutex_);
    Gpu& gpu = gpus_[device];
    if (gpu.context == nullptr) {
      (void)Good(driver_.primary_context_retain(&gpu.context, device), "cuDevicePrimaryCtxRetain");
    }
    return gpu.context;
  }

  // One that nobody uses, so that nobody waits for what others have queued. With the device's
  // context current.
  CuStream TakeStream(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<CuStream>& free = gpus_[device].free;
    if (free.empty()) return MakeStream();
    CuStream const stream = free.back();
    free.pop_back();
    return stream;
  }
  // For whoever comes: made beforehand, while the host's kernels do not run yet.
  void AddStream(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<CuStream>& free = gpus_[device].free;
    if (free.size() >= kMaxFreeStreams) return;
    if (CuStream const made = MakeStream(); made != nullptr) free.push_back(made);
  }
  // High priority, so that it shares no hardware queue with the host's streams.
  CuStream MakeStream() {
    constexpr unsigned kNonBlocking = 1;
    constexpr int kHighest = -100;  // is clamped
    CuStream stream = nullptr;
    (void)Good(driver_.stream_create(&stream, kNonBlocking, kHighest), "cuStreamCreate");
    return stream;
  }
  void GiveStream(int device, CuStream stream) {
    const std::lock_guard lock(mutex_);
    gpus_[device].free.push_back(stream);
  }

  const CuDriver driver_;
  std::mutex mutex_;
  std::map<int, Gpu> gpus_;
};

// The device finds pinned memory where the host does.
class CuMappedMemory final : public CuMemory {
 public:
  using CuMemory::CuMemory;

  std::byte* AllocateDevice(int device, std::size_t bytes) override {
    return AllocatePinned(device, bytes);
  }
  void FreeDevice(int device, std::byte* memory) override { FreePinned(device, memory); }
  bool Place(int /*device*/, std::span<const Placement> placements) override {
    for (const Placement& one : placements) std::memcpy(one.to, one.from, one.bytes);
    return true;
  }
  void* Poison(int /*device*/, std::span<const std::span<std::byte>> memory) override {
    for (const auto& bytes : memory) std::memset(bytes.data(), kPoison, bytes.size());
    return nullptr;
  }
};

template <class Kind>
std::unique_ptr<Memory> Load(const std::string& driver) {
  CuDriver loaded;
  if (!LoadCuDriver(driver, &loaded)) return nullptr;
  auto memory = std::make_unique<Kind>(loaded);
  if (!memory->Initialize()) return nullptr;
  return memory;
}

}  // namespace

std::unique_ptr<Memory> GpuMemory(const std::string& driver) { return Load<CuMemory>(driver); }
std::unique_ptr<Memory> MappedMemory(const std::string& driver) {
  return Load<CuMappedMemory>(driver);
}

}  // namespace ferry::standin
