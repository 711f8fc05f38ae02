// Jobs of `ferry transfer`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "tools/support/memory_choice.h"

namespace ferry::tools {

struct TransferServerJob {
  Config config;
  std::optional<std::string> directory;  // none: the current one, and no dot files
  MemoryChoice memory;
  bool overwrite = false;
  bool once = false;
  bool json = false;
  microseconds timeout = std::chrono::seconds(30);  // for a client that sends too little
};
// Receives one file or message from each client, from several at once, until interrupted. Blocks;
// for the main thread.
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

}  // namespace ferry::tools
