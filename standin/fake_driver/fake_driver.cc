// The part of CUDA's driver API that the stand-in calls, with two devices and without a GPU. The
// host cannot access device memory, work on a stream happens when the stream is synchronised, and
// every call but a few needs a current context and copies pinned memory only.

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace {

constexpr int kDevices = 2;
constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;

using Address = unsigned long long;

struct Context {
  int device = 0;
};
struct Stream {
  std::vector<std::function<void()>> pending;
};
struct Allocation {
  std::size_t bytes = 0;
  std::unique_ptr<std::byte[]> content;  // of device memory
};

std::mutex all_mutex;
std::map<Address, Allocation> device_memory;
std::map<Address, Allocation> pinned_memory;
std::deque<Stream> all_streams;
Context contexts[kDevices] = {{0}, {1}};
thread_local std::vector<Context*> current;
int allocations_until_failure = 0;  // 0: none fails
bool context_calls_throw = false;

Address NumberOf(const void* pointer) {
  Address number = 0;
  std::memcpy(&number, static_cast<const void*>(&pointer), sizeof(pointer));
  return number;
}

void* PointerOf(Address number) {
  void* pointer = nullptr;
  std::memcpy(static_cast<void*>(&pointer), &number, sizeof(pointer));
  return pointer;
}

// The allocation that has all of the range, and where that begins in it.
Allocation* FindRange(std::map<Address, Allocation>& memory, Address at, std::size_t bytes,
                      std::size_t* offset) {
  auto next = memory.upper_bound(at);
  if (next == memory.begin()) return nullptr;
  auto& [base, allocation] = *std::prev(next);
  *offset = at - base;
  const bool inside = *offset <= allocation.bytes && bytes <= allocation.bytes - *offset;
  return inside ? &allocation : nullptr;
}

// Null if the copy is not one between the device and pinned memory.
std::byte* ContentFor(Address device, const void* host, std::size_t bytes) {
  std::size_t offset = 0;
  if (host != nullptr && FindRange(pinned_memory, NumberOf(host), bytes, &offset) == nullptr) {
    return nullptr;
  }
  // The device finds pinned memory where the host does.
  if (FindRange(pinned_memory, device, bytes, &offset) != nullptr) {
    return static_cast<std::byte*>(PointerOf(device));
  }
  Allocation* const found = FindRange(device_memory, device, bytes, &offset);
  return found == nullptr ? nullptr : found->content.get() + offset;
}

// Whether this allocation is the one to fail. Called with the mutex held.
bool FailsNow() { return allocations_until_failure > 0 && --allocations_until_failure == 0; }

template <class Work>
int Enqueue(Stream* stream, Work work) {
  if (current.empty()) return kInvalidContext;
  const std::lock_guard lock(all_mutex);
  auto pending = work();
  if (!pending) return kInvalidValue;
  stream->pending.push_back(std::move(pending));
  return 0;
}

}  // namespace

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): the driver's names

// ---- for tests ----

int ferryFakeAllocations() {
  const std::lock_guard lock(all_mutex);
  return static_cast<int>(device_memory.size() + pinned_memory.size());
}
// One allocation to come fails: the first for 1, the second for 2.
int ferryFakeFailAllocation(int which) {
  const std::lock_guard lock(all_mutex);
  allocations_until_failure = which;
  return 0;
}
// cuCtxGetDevice() throws, as its caller might for want of memory.
int ferryFakeThrow(int throws) {
  const std::lock_guard lock(all_mutex);
  context_calls_throw = throws != 0;
  return 0;
}

// ---- the driver's ----

int cuInit(unsigned /*flags*/) { return 0; }

int cuGetErrorName(int result, const char** name) {
  *name = result == kInvalidContext ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}

int cuCtxGetDevice(int* device) {
  {
    const std::lock_guard lock(all_mutex);
    if (context_calls_throw) throw std::bad_alloc();
  }
  if (current.empty()) return kInvalidContext;
  *device = current.back()->device;
  return 0;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (device < 0 || device >= kDevices) return kInvalidValue;
  *context = &contexts[device];
  return 0;
}

int cuCtxPushCurrent_v2(Context* context) {
  current.push_back(context);
  return 0;
}

int cuCtxPopCurrent_v2(Context** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return 0;
}

int cuMemAlloc_v2(Address* address, std::size_t bytes) {
  if (current.empty()) return kInvalidContext;
  const std::lock_guard lock(all_mutex);
  if (FailsNow()) return kInvalidValue;
  void* const reserved = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return kInvalidValue;
  *address = NumberOf(reserved);
  device_memory[*address] = {bytes, std::make_unique<std::byte[]>(bytes)};
  return 0;
}

int cuMemFree_v2(Address address) {
  const std::lock_guard lock(all_mutex);
  const auto found = device_memory.find(address);
  if (current.empty() || found == device_memory.end()) return kInvalidValue;
  (void)::munmap(PointerOf(address), found->second.bytes);
  device_memory.erase(found);
  return 0;
}

int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  if (current.empty()) return kInvalidContext;
  const std::lock_guard lock(all_mutex);
  if (FailsNow()) return kInvalidValue;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  pinned_memory[NumberOf(*memory)] = {bytes, nullptr};
  return 0;
}

int cuMemFreeHost(void* memory) {
  const std::lock_guard lock(all_mutex);
  if (pinned_memory.erase(NumberOf(memory)) == 0) return kInvalidValue;
  std::free(memory);
  return 0;
}

int cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned /*flags*/) {
  *address = NumberOf(memory);
  return 0;
}

int cuStreamCreateWithPriority(Stream** stream, unsigned /*flags*/, int /*priority*/) {
  if (current.empty()) return kInvalidContext;
  const std::lock_guard lock(all_mutex);
  *stream = &all_streams.emplace_back();
  return 0;
}

int cuStreamSynchronize(Stream* stream) {
  const std::lock_guard lock(all_mutex);
  for (const auto& work : std::exchange(stream->pending, {})) work();
  return 0;
}

// As if its work ended at the second look.
int cuStreamQuery(Stream* stream) {
  constexpr int kNotReady = 600;
  const std::lock_guard lock(all_mutex);
  if (stream->pending.empty()) return 0;
  for (const auto& work : std::exchange(stream->pending, {})) work();
  return kNotReady;
}

int cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, Stream* stream) {
  return Enqueue(stream, [&]() -> std::function<void()> {
    std::byte* const content = ContentFor(to, nullptr, bytes);
    if (content == nullptr) return nullptr;
    return [=] { std::memset(content, value, bytes); };
  });
}

int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Stream* stream) {
  return Enqueue(stream, [&]() -> std::function<void()> {
    std::byte* const content = ContentFor(to, from, bytes);
    if (content == nullptr) return nullptr;
    return [=] { std::memcpy(content, from, bytes); };
  });
}

// CUDA_MEMCPY2D, from the host's memory to the device's.
struct Copy2d {
  std::size_t from_x;
  std::size_t from_y;
  int from_kind;
  const void* from_host;
  Address from_device;
  void* from_array;
  std::size_t from_pitch;
  std::size_t to_x;
  std::size_t to_y;
  int to_kind;
  void* to_host;
  Address to_device;
  void* to_array;
  std::size_t to_pitch;
  std::size_t width;
  std::size_t height;
};

int cuMemcpy2DAsync_v2(const Copy2d* asked, Stream* stream) {
  return Enqueue(stream, [&]() -> std::function<void()> {
    const Copy2d copy = *asked;
    const bool is_upload = copy.from_kind == 1 && copy.to_kind == 2 && copy.height > 0 &&
                           copy.to_pitch >= copy.width && copy.from_pitch >= copy.width;
    if (!is_upload) return nullptr;
    const std::size_t room = (copy.height - 1) * copy.to_pitch + copy.width;
    std::byte* const content = ContentFor(copy.to_device, nullptr, room);
    const auto* const from = static_cast<const std::byte*>(copy.from_host);
    if (content == nullptr) return nullptr;
    return [=] {
      for (std::size_t row = 0; row < copy.height; ++row) {
        std::memcpy(content + row * copy.to_pitch, from + row * copy.from_pitch, copy.width);
      }
    };
  });
}

int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream* stream) {
  return Enqueue(stream, [&]() -> std::function<void()> {
    const std::byte* const content = ContentFor(from, to, bytes);
    if (content == nullptr) return nullptr;
    return [=] { std::memcpy(to, content, bytes); };
  });
}

// NOLINTEND(readability-identifier-naming)
}
