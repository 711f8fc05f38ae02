#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/tools/json.h"
#include "ferry/transfer/connection.h"

namespace ferry::tools {

struct TransferServerJob {
  Config config;
  std::string directory = ".";
  bool once = false;
  bool json = false;
};
// Takes one file or message of each client, until interrupted.
Status RunTransferServer(const TransferServerJob& job);

struct TransferClientJob {
  Config config;
  std::string address;
  std::optional<std::string> file;
  std::string message;  // without a file
  bool json = false;
};
Status RunTransferClient(const TransferClientJob& job);

// The client's messages: first "kind": "file" (name, size) or "message" (size), which the server
// answers with the "key" to write to (of a file with bytes) or "ready". When all bytes are there,
// "landed": true, and then the "sha256" of what was sent, so that both sides hash at the same time.
// The server ends with its own "sha256", the client with "bye", which tells the server that its
// answer arrived.
inline constexpr std::uint64_t kMessageTag = 2;

}  // namespace ferry::tools
