// The bounce pool of a plugin, and its records on where in it messages lie.
#pragma once
#include <cstdint>
#include <span>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/unpack/fragments.h"

namespace ferry::tcpx {

namespace layout {
struct UnpackMeta;
}

// The pool into which a comm's plugin receives, and its records of the pieces of each message. Both
// are the plugin's, and stay until the comm is closed; destroy this before. For plugins that unpack
// (NicFacts::unpacks). One thread at a time; only Open() waits.
class UnpackRows {
 public:
  // Reads the comm's device handle, in GPU or host memory, and finds out where the pool lies and
  // how large it is, at most. `api` is null where the CPU copies; otherwise the GPU `ordinal` can
  // read the pool: one in host memory is registered with it, for the life of the process, because
  // all comms of a plugin share it. Blocks until the deadline at most. Errors: kUnsupported for an
  // unknown kind of handle, and for a pool in host memory of unknown size; kCorrupt for an invalid
  // handle; kTimedOut; those of DeviceApi.
  static Result<UnpackRows> Open(const ReceiveComm& comm, cuda::DeviceApi* api, int ordinal,
                                 Deadline deadline);

  // What the plugin's handle says beside the pool, for logs.
  const layout::UnpackMeta* meta() const noexcept { return meta_; }
  std::uint64_t head() const noexcept { return head_; }
  // What fragments are offsets in. Its address is that for the CPU, where the pool is host memory.
  const Place& pool() const noexcept { return pool_; }
  std::uint64_t pool_bytes() const noexcept { return pool_bytes_; }
  // How the pool is copied to GPU memory: UnpackerOptions::kind.
  cuda::CopyKind copy_kind() const noexcept { return copy_kind_; }
  // Whether kernels of the GPU can read the pool, as far as CUDA says: they cannot where it lies in
  // another GPU without peer access. Copy engines always can.
  bool kernels_read_pool() const noexcept { return kernels_read_pool_; }
  // Lets kernels of this device read the rows: registers them, where they are ordinary host memory,
  // and otherwise needs all of them pinned. Where that does not work the rows stay as they are, and
  // mapped() returns null. Blocks for the registration.
  void Map(cuda::DeviceApi* api, int ordinal);
  // The address for kernels (RowsRequest::rows) of fragments that Read() has returned; null before
  // Map(), and where it did not work.
  const Fragment* mapped(std::span<const Fragment> fragments) const noexcept;

  // The fragments of a message that is done; they stay in the plugin's memory until the message is
  // consumed. Unchecked: for a FragmentReader, or a kernel that checks them. Errors: kCorrupt where
  // the plugin's request contradicts its rows.
  Result<std::span<const Fragment>> Read(const ReceiveComm::Arrival& arrival) const;

 private:
  UnpackRows(layout::UnpackMeta* meta, std::byte* base, std::uint64_t head, bool has_known_requests)
      : meta_(meta), base_(base), head_(head), has_known_requests_(has_known_requests) {}
  Status FindPool(const Plugin& plugin, cuda::DeviceApi* api, int ordinal);
  Status MeasurePool(const Plugin& plugin, const cuda::PointerInfo& info);

  layout::UnpackMeta* meta_;
  std::byte* base_;          // of the pool
  std::uint64_t head_;       // number of receives when the handle was read, less 1
  bool has_known_requests_;  // requests are those of layout::Request
  Place pool_;
  std::uint64_t pool_bytes_ = 0;
  cuda::CopyKind copy_kind_ = cuda::CopyKind::kDeviceToDevice;
  bool kernels_read_pool_ = true;
  cuda::HostRegistration pin_;  // where Map() has registered the rows
  std::uint64_t mapped_ = 0;    // address of meta_ for kernels; 0: none
};

}  // namespace ferry::tcpx
