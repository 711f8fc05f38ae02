// The options of each verb of a Connection. A verb has the fields that apply to it and no others,
// so that an option that does not apply does not compile.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

namespace ferry::transfer {

// The fields that several of them have:
//
// deadline      of the operation itself. It ends config.drain_grace after it at the latest, or
//               config.peer_timeout after it while the peer acknowledges more. Without one it is
//               config.operation_timeout from now.
// checksum      every slice carries a CRC32C, which its receiver checks. A mismatch ends the
//               operation by kCorrupt. If false, config.checksum decides.
// after         the operation begins when everything that is queued on this stream now has run: for
//               example a kernel that still writes the bytes to send, or reads the bytes to
//               overwrite. Until then it can be cancelled, and its deadline counts. The call fails
//               with the error of the stream's device, or where there is no device; an operation
//               whose device is lost later ends by kDeviceLost.

struct WriteOptions {
  std::optional<Deadline> deadline = std::nullopt;
  // Delivered to the peer after all bytes of the write are in place; copied by the call. At most
  // 64 KiB; empty: none.
  std::span<const std::byte> notification = {};
  bool checksum = false;
  std::optional<cuda::StreamRef> after = std::nullopt;
};

struct ReadOptions {
  std::optional<Deadline> deadline = std::nullopt;
  bool checksum = false;
  std::optional<cuda::StreamRef> after = std::nullopt;
};

struct SendOptions {
  std::optional<Deadline> deadline = std::nullopt;
  // The bytes leave when the peer has a receive for them, and go straight there as those of a write
  // do, even if the message is small enough to be sent without waiting (config.eager_bytes).
  bool rendezvous = false;
  std::optional<cuda::StreamRef> after = std::nullopt;
};

struct RecvOptions {
  std::optional<Deadline> deadline = std::nullopt;
  std::optional<cuda::StreamRef> after = std::nullopt;
};

struct NotifyOptions {
  std::optional<Deadline> deadline = std::nullopt;
  std::optional<cuda::StreamRef> after = std::nullopt;
};

// What the program that dials says of itself while it proves the secret, in bytes of its own.
inline constexpr std::size_t kMaxIdentityBytes = 768;
// Makes it. `transcript`, 32 bytes that both sides know, is another one in each handshake: a
// signature over it and the name of the peer is valid nowhere else. Must not block.
using MakeIdentity = std::function<std::vector<std::byte>(std::span<const std::byte> transcript)>;
// Decides on the accepting side, with the same transcript, whether a peer that has proved the
// secret may connect; empty: it did not identify itself. The message of an error is told to the
// peer, as kRefused. Runs on a progress thread; must not block.
using CheckIdentity = std::function<Status(std::span<const std::byte> identity,
                                           std::span<const std::byte> transcript)>;

}  // namespace ferry::transfer
