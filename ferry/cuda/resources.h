// Owners of GPU memory, streams, events and graphs; views of streams.
#pragma once
#include <cstddef>
#include <span>

#include "ferry/core/unique_handle.h"

// Owners of what a DeviceApi makes, and views of streams. A DeviceApi outlives all it has made.
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
};

// What an owner holds. For implementations of DeviceApi; users have the classes below.
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
  // The device that it belongs to, or was made for; -1 for none.
  int ordinal() const noexcept { return this->get().ordinal; }
};

// Memory. Its owner sees to it that no queued work uses it any more before it goes. Giving memory
// back may wait for everything that the device does (cudaFree, cudaFreeHost): not for data paths.
template <Resource kResource>
class MemoryOwner : public Owner<kResource> {
 public:
  using Owner<kResource>::Owner;
  void* data() const noexcept { return this->get().native; }
  std::size_t size() const noexcept { return this->get().bytes; }  // bytes
};

// GPU memory, aligned to 256 bytes. The CPU must not touch it.
using DeviceBuffer = MemoryOwner<Resource::kDeviceMemory>;
// Another process's GPU memory, mapped here: the whole allocation.
using ImportedBuffer = MemoryOwner<Resource::kImport>;

// Host memory that the CPU and every device can reach at any time.
template <Resource kResource>
class HostMemoryOwner : public MemoryOwner<kResource> {
 public:
  using MemoryOwner<kResource>::MemoryOwner;
  std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(this->data()), this->size()};
  }
};

// Host memory of whole pages that CUDA has allocated.
using PinnedBuffer = HostMemoryOwner<Resource::kPinnedMemory>;
// Keeps somebody else's host memory pinned. That memory must outlive it.
using HostRegistration = HostMemoryOwner<Resource::kRegistration>;

// A view of a stream, of two words. Passed by value; stored only by who knows that the stream
// lives.
class StreamRef {
 public:
  // A stream that somebody else has made on this device: a cudaStream_t, null for the device's
  // default stream.
  static StreamRef Foreign(int ordinal, void* native) noexcept { return {ordinal, native}; }

  int ordinal() const noexcept { return ordinal_; }
  void* native() const noexcept { return native_; }

 private:
  friend class Stream;
  StreamRef(int ordinal, void* native) noexcept : ordinal_(ordinal), native_(native) {}

  int ordinal_;
  void* native_;
};

// A queue of work for one device. Work of one stream is done in the order of the calls; work of
// several streams in any. Does not wait for the device's default stream. May be destroyed while its
// work goes on; the memory of that work must live on.
class Stream : public Owner<Resource::kStream> {
 public:
  using Owner::Owner;
  operator StreamRef() const noexcept {  // NOLINT: implicit by design, like string_view
    return {ordinal(), get().native};
  }
};

// A mark in a stream. Recording it again moves it; it is made once and used for years.
class Event : public Owner<Resource::kEvent> {
 public:
  using Owner::Owner;
};

// Work that a stream was given once, to be given to streams again as one. May be destroyed while
// its work goes on; the memory of that work must live on.
class Graph : public Owner<Resource::kGraph> {
 public:
  using Owner::Owner;
};

}  // namespace ferry::cuda
