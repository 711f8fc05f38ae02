// Messages between the two sides of `ferry transfer`, and the checks of what a peer puts into them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/result.h"
#include "tools/support/json_fwd.h"

namespace ferry::tools {

// The client's messages: first "kind": "file" (name, size, memory) or "message" (size, memory),
// which the server answers with its own "memory" and, for a file with bytes, the "key" to write to
// and the "window": byte n of the file belongs at n % window. Where that is less than the file, the
// client says how many bytes are "written" before it goes on where others have been, and the server
// answers when it has taken them out. When all bytes are there, "landed": true, and then the
// "sha256" of what was sent. The server ends with its own "sha256", the client with "bye", which
// tells the server that its answer arrived.
inline constexpr std::uint64_t kMessageTag = 2;
inline constexpr std::uint64_t kMaxMessage = std::uint64_t{16} << 20;

// The memory that a message names; "host" if it names none, as older releases do.
Result<std::string> MemoryField(const Json& message);

// The first message of a client.
struct TransferRequest {
  std::optional<std::string> file;  // a name without a folder; none: a message
  std::uint64_t size = 0;
  std::string memory;
};
// `dot_files`: whether names that begin with a dot are taken. Errors: kCorrupt, kUnsupported (a
// client of another server or kind), kInvalidArgument and kRefused (name), kUnavailable (size).
Result<TransferRequest> ParseRequest(const Json& message, bool dot_files);

// How far a client is: `bytes` of the file are in the window, or have been taken out of it.
struct TransferStep {
  std::uint64_t bytes = 0;
  bool landed = false;  // all bytes
};
// Errors: kCorrupt for bytes beyond the file's `size`, or more than a `window` after the `taken`.
Result<TransferStep> ParseStep(const Json& message, std::uint64_t taken, std::uint64_t size,
                               std::uint64_t window);

// The server's answer to a request for a file of `size` bytes, above 0.
struct TransferAnswer {
  std::vector<std::byte> key;
  std::uint64_t window = 0;  // 1 to `size`
};
Result<TransferAnswer> ParseAnswer(const Json& message, std::uint64_t size);

// The local name of a file that a peer names: the last component of its path. Errors:
// kInvalidArgument for a name without one ("", "a/", "..").
Result<std::string> BaseNameOf(std::string_view path);

}  // namespace ferry::tools
