// Owners of GPU memory, streams, events and graphs; views of streams.
#pragma once
#include <cstddef>
#include <span>

#include "ferry/core/unique_handle.h"

// Owners of the resources that a DeviceApi creates, and views of streams. A DeviceApi must outlive
// its resources.
namespace ferry::cuda {

class DeviceApi;

enum class Resource : unsigned char {
  kDeviceMemory,
  kPinnedMemory,
  kRegistration,  // of host memory that somebody else allocated
  kImport,        // of another process's device memory
  kStream,
  kEvent,
  kGraph,
  kCurrentDevice,  // of a thread
};

// The contents of an owner. For implementations of DeviceApi; users have the classes below.
struct ResourceHandle {
  DeviceApi* api = nullptr;
  void* native = nullptr;  // the address, cudaStream_t, cudaEvent_t or cudaGraphExec_t
  std::size_t bytes = 0;   // of memory
  int ordinal = -1;
  friend bool operator==(const ResourceHandle&, const ResourceHandle&) = default;
};

template <Resource kResource>
struct ResourceTraits {
  using Handle = ResourceHandle;
  static constexpr Handle kInvalid{};
  static void Destroy(Handle handle) noexcept;
};

template <Resource kResource>
class Owner : public UniqueHandle<ResourceTraits<kResource>> {
 public:
  using UniqueHandle<ResourceTraits<kResource>>::UniqueHandle;
  // The device that the resource belongs to, or was created for; -1 for none.
  int ordinal() const noexcept { return this->get().ordinal; }
};

// Memory. The owner must ensure that no queued work uses it when it is freed. Freeing may block
// until the device is idle (cudaFree, cudaFreeHost): not for data paths.
template <Resource kResource>
class MemoryOwner : public Owner<kResource> {
 public:
  using Owner<kResource>::Owner;
  void* data() const noexcept { return this->get().native; }
  std::size_t size() const noexcept { return this->get().bytes; }  // bytes
};

// GPU memory, aligned to 256 bytes. The CPU must not access it.
using DeviceBuffer = MemoryOwner<Resource::kDeviceMemory>;
// Another process's GPU memory, mapped here: always the whole allocation.
using ImportedBuffer = MemoryOwner<Resource::kImport>;

// Host memory that the CPU and every device can access at any time.
template <Resource kResource>
class HostMemoryOwner : public MemoryOwner<kResource> {
 public:
  using MemoryOwner<kResource>::MemoryOwner;
  std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(this->data()), this->size()};
  }
};

// Host memory in whole pages, allocated by CUDA.
using PinnedBuffer = HostMemoryOwner<Resource::kPinnedMemory>;
// Keeps foreign host memory pinned. That memory must outlive it.
using HostRegistration = HostMemoryOwner<Resource::kRegistration>;

// A view of a stream: two words, passed by value. Store it only where the stream is known to live
// longer.
class StreamRef {
 public:
  // A foreign stream on this device: a cudaStream_t, null for the device's default stream.
  static StreamRef Foreign(int ordinal, void* native) noexcept { return {ordinal, native}; }

  int ordinal() const noexcept { return ordinal_; }
  void* native() const noexcept { return native_; }

 private:
  friend class Stream;
  StreamRef(int ordinal, void* native) noexcept : ordinal_(ordinal), native_(native) {}

  int ordinal_;
  void* native_;
};

// A queue of work for one device. Work of one stream runs in the order of the calls; work of
// several streams in any order. Does not wait for the device's default stream. May be destroyed
// while its work is in flight; the memory of that work must stay valid.
class Stream : public Owner<Resource::kStream> {
 public:
  using Owner::Owner;
  operator StreamRef() const noexcept {  // NOLINT: implicit by design, like string_view
    return {ordinal(), get().native};
  }
};

// A mark in a stream. Recording it again moves it, so one event can be reused indefinitely.
class Event : public Owner<Resource::kEvent> {
 public:
  using Owner::Owner;
};

// Captured work that can be queued on streams again as a whole. May be destroyed while its work is
// in flight; the memory of that work must stay valid.
class Graph : public Owner<Resource::kGraph> {
 public:
  using Owner::Owner;
};

// While it lives its device is current on the thread that made it, which then has its former one
// again. Must be destroyed on that thread, the latest one first.
using CurrentDevice = Owner<Resource::kCurrentDevice>;

}  // namespace ferry::cuda
