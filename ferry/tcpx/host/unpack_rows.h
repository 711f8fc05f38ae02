// The fragment metadata that a plugin records for each receive.
#pragma once
#include <cstdint>
#include <span>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/host/tcpx_layout.h"

namespace ferry::net::plugin {

// The records of a comm's plugin on where in its pool the pieces of messages lie.
class UnpackRows {
 public:
  // Reads the comm's device handle, in GPU or host memory; `api` is null where there are no GPUs.
  // Blocks until the deadline at most. Errors: kUnsupported for an unknown kind of handle, kCorrupt
  // for an invalid one; those of DeviceApi.
  static Result<UnpackRows> Open(const ReceiveComm& comm, cuda::DeviceApi* api, Deadline deadline);

  std::byte* pool() const noexcept { return handle_.bounce_pool; }
  // Lets kernels of this device read the rows: registers them, where they are ordinary host memory,
  // and otherwise needs all of them pinned.
  // Where that does not work the rows stay as they are, and mapped() returns null.
  void Map(cuda::DeviceApi* api, int ordinal);
  // The address for kernels of fragments that Read() has returned; null for none.
  const Fragment* mapped(std::span<const Fragment> fragments) const noexcept;

  // The fragments of a message that is done; they stay in the plugin's memory until the message is
  // consumed. Errors: kCorrupt where the plugin's request contradicts its rows.
  Result<std::span<const Fragment>> Read(const ReceiveComm::Arrival& arrival) const;

 private:
  UnpackRows(const tcpx::UnpackHandle& handle, bool has_known_requests)
      : handle_(handle), has_known_requests_(has_known_requests) {}

  tcpx::UnpackHandle handle_;
  bool has_known_requests_;     // requests have the layout of tcpx::Request
  cuda::HostRegistration pin_;  // where Map() has registered the rows
  std::uint64_t mapped_ = 0;    // address of handle_.meta for kernels; 0: none
};

}  // namespace ferry::net::plugin
