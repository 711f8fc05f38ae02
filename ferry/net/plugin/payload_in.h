// Receives the payloads of one lane over a comm of a plugin.
#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ferry/core/mapping.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/net/io_cursor.h"
#include "ferry/net/plugin/comm.h"
#include "ferry/net/plugin/receiver.h"
#include "ferry/unpack/unpacker.h"

namespace ferry::net::plugin {

// One payload after the other, at most ReceiveComm::kWindow chunks posted. The plugin never has the
// address of a placement: it receives into its pool or, where it receives straight into memory,
// into slots of this object, which live until the comm is closed. From there this side copies. So
// when DropRest() or the destructor returns, nothing touches the placement, although receives of a
// plugin cannot be cancelled. One thread at a time; nothing blocks.
class PayloadIn {
 public:
  // `api` may be null. Errors: those of Receiver::Create() and of mmap(2); kUnsupported for a
  // plugin that receives into GPU memory.
  static Result<std::unique_ptr<PayloadIn>> Create(cuda::DeviceApi* api,
                                                   std::unique_ptr<ReceiveComm> comm,
                                                   std::uint64_t chunk_bytes);
  PayloadIn(const PayloadIn&) = delete;
  PayloadIn& operator=(const PayloadIn&) = delete;

  // The next payload has this size and goes to `memory`, whose array and memory must stay valid
  // until it is in place or DropRest(); empty: it is dropped. Not while busy(). Receives nothing
  // yet.
  void Begin(std::uint64_t bytes, std::span<const iovec> memory);
  // The rest of the payload is received, but dropped.
  void DropRest();
  // Call repeatedly while busy(). Errors are final.
  Status Progress();
  bool busy() const noexcept { return left_ > 0; }
  // Bytes that are in place or dropped, since the creation.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }

 private:
  explicit PayloadIn(std::uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  void PostSome();
  ChunkPlace TakePlace(std::size_t bytes);

  const std::uint64_t chunk_bytes_;
  bool straight_ = false;
  HugeMemory slots_;
  std::unique_ptr<Unpacker> unpacker_;
  std::unique_ptr<Receiver> receiver_;  // closes its comm after the registration below is gone
  std::optional<Registration> registration_;
  std::uint64_t next_chunk_ = 0;
  // The current payload.
  IoCursor place_;  // where the next chunk goes; at its end for a payload that is dropped
  std::uint64_t total_ = 0;
  std::uint64_t unposted_ = 0;
  std::uint64_t left_ = 0;  // not in place yet
  std::uint64_t received_bytes_ = 0;
  std::vector<std::uint64_t> done_;
};

}  // namespace ferry::net::plugin
