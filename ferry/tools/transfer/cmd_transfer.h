// Jobs of `ferry transfer` and the control messages between its client and server.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/tools/support/json_fwd.h"
#include "ferry/tools/support/memory_choice.h"

namespace ferry::tools {

struct TransferServerJob {
  Config config;
  std::string directory = ".";
  MemoryChoice memory;
  bool once = false;
  bool json = false;
};
// Receives one file or message from each client, until interrupted. Blocks; for the main thread.
Status RunTransferServer(const TransferServerJob& job);

struct TransferClientJob {
  Config config;
  std::string address;
  std::optional<std::string> file;
  std::string message;  // without a file
  MemoryChoice memory;
  bool json = false;
};
Status RunTransferClient(const TransferClientJob& job);

// The client's messages: first "kind": "file" (name, size, memory) or "message" (size, memory),
// which the server answers with its own "memory" and, for a file with bytes, the "key" to write to
// and the "window": byte n of the file belongs at n % window. Where that is less than the file, the
// client says how many bytes are "written" before it goes on where others have been, and the server
// answers when it has taken them out. When all bytes are there, "landed": true, and then the
// "sha256" of what was sent, so that both sides hash at the same time. The server ends with its own
// "sha256", the client with "bye", which tells the server that its answer arrived.
inline constexpr std::uint64_t kMessageTag = 2;

// The memory that a message names; "host" if it names none, as older releases do.
Result<std::string> MemoryField(const Json& message);

}  // namespace ferry::tools
