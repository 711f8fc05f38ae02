// Implements the checks of messages between the two sides of `ferry transfer`.

#include "tools/transfer/messages.h"

#include <fmt/core.h>

#include "ferry/core/units.h"
#include "tools/support/json.h"

namespace ferry::tools {

Result<std::string> MemoryField(const Json& message) {
  if (!message.contains("memory")) return std::string("host");
  return TextField(message, "memory");
}

// The name comes from a client: no folder of it is used, and none is left by "..".
Result<std::string> BaseNameOf(std::string_view path) {
  std::string name(path.substr(path.find_last_of("/\\") + 1));
  const bool usable =
      !name.empty() && name != "." && name != ".." && name.find('\0') == std::string::npos;
  if (usable) return name;
  return Error(Code::kInvalidArgument, fmt::format("\"{}\" is not a valid file name", path));
}

Result<TransferRequest> ParseRequest(const Json& message, bool dot_files) {
  if (message.contains("do")) {
    return Error(Code::kUnsupported, "a `ferry transfer server` listens there, not a perf server");
  }
  TransferRequest request;
  FERRY_TRY_ASSIGN(const std::string kind, TextField(message, "kind"));
  FERRY_TRY_ASSIGN(request.size, NumberField(message, "size"));
  FERRY_TRY_ASSIGN(request.memory, MemoryField(message));
  if (kind == "file") {
    FERRY_TRY_ASSIGN(const std::string path, TextField(message, "name"));
    FERRY_TRY_ASSIGN(request.file, BaseNameOf(path));
    if (dot_files || request.file->front() != '.') return request;
    return Error(Code::kRefused,
                 fmt::format("{} begins with a dot, and this server takes such names only into a "
                             "folder that its --dir names; start it with --dir, or rename the file",
                             *request.file));
  }
  if (kind != "message") {
    return Error(Code::kUnsupported,
                 fmt::format("this server takes files and messages, not \"{}\"", kind));
  }
  if (request.size <= kMaxMessage) return request;
  return Error(Code::kUnavailable,
               fmt::format("a message of {} bytes is more than the {} that are taken; send a file",
                           request.size, FormatSize(kMaxMessage)));
}

Result<TransferStep> ParseStep(const Json& message, std::uint64_t taken, std::uint64_t size,
                               std::uint64_t window) {
  TransferStep step{size, FlagField(message, "landed")};
  if (!step.landed) {
    FERRY_TRY_ASSIGN(step.bytes, NumberField(message, "written"));
  }
  // A step without progress would hold the client's place on the server.
  const bool has_progress = step.landed || step.bytes > taken;
  if (has_progress && step.bytes >= taken && step.bytes <= size && step.bytes - taken <= window) {
    return step;
  }
  return Error(Code::kCorrupt,
               fmt::format("the client says that {} of {} bytes are written, of which {} have been "
                           "taken out of a window of {}; use the same version of ferry on both "
                           "sides",
                           step.bytes, size, taken, window));
}

Result<TransferAnswer> ParseAnswer(const Json& message, std::uint64_t size) {
  TransferAnswer offer{{}, size};
  FERRY_TRY_ASSIGN(offer.key, BytesField(message, "key"));
  if (message.contains("window")) {
    FERRY_TRY_ASSIGN(offer.window, NumberField(message, "window"));
  }
  if (offer.window > 0 && offer.window <= size) return offer;
  return Error(Code::kCorrupt, fmt::format("the server offers a window of {} bytes for a file of "
                                           "{}; use the same version of ferry on both sides",
                                           offer.window, size));
}

}  // namespace ferry::tools
