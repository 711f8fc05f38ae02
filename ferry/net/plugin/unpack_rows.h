// The fragment metadata that a plugin records for each receive.
#pragma once
#include <cstdint>
#include <span>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/net/plugin/comm.h"
#include "ferry/net/plugin/tcpx_layout.h"

namespace ferry::net::plugin {

// Where the plugin writes down, for one comm, where in its pool the pieces of messages lie.
class UnpackRows {
 public:
  // Reads the comm's device handle, in GPU memory or host memory; `api` is null where there are no
  // GPUs. Errors: kUnsupported where the plugin hands out another kind of handle, kCorrupt for
  // one that cannot be; those of DeviceApi.
  static Result<UnpackRows> Open(const ReceiveComm& comm, cuda::DeviceApi* api, Deadline deadline);

  std::byte* pool() const noexcept { return handle_.bounce_pool; }
  // What has come for a message that is done: in the plugin's memory, until the message is
  // consumed. Errors: kCorrupt where the plugin's request does not agree with its rows.
  Result<std::span<const Fragment>> Read(const ReceiveComm::Arrival& arrival) const;

 private:
  UnpackRows(const tcpx::UnpackHandle& handle, bool has_known_requests)
      : handle_(handle), has_known_requests_(has_known_requests) {}

  tcpx::UnpackHandle handle_;
  bool has_known_requests_;  // they are tcpx::Request
};

}  // namespace ferry::net::plugin
