// Writes to NCCL's log and maps errors to its result codes.
#include "bindings/nccl_net/report.h"

#include <atomic>

#include "ferry/core/stderr_line.h"

namespace ferry::nccl_net {
namespace {

namespace abi = net::plugin::abi;

constexpr unsigned long kInitFlag = 1;
constexpr unsigned long kNetFlag = 16;

std::atomic<abi::Logger> logger_in_use{nullptr};

void Say(int level, unsigned long flags, const std::string& text) {
  const abi::Logger logger = logger_in_use.load();
  if (logger == nullptr) return;
  logger(level, flags, "nccl_net", 0, "NET/Ferry : %s", EscapeControls(text).c_str());
}

}  // namespace

void SetLogger(abi::Logger logger) noexcept {
  // A null logger leaves the former one, whose address CodeOfNccl() needs as well.
  if (logger != nullptr) logger_in_use.store(logger);
}

// The address of a function as a data pointer, which dladdr(3) takes.
const void* CodeOfNccl() noexcept { return reinterpret_cast<const void*>(logger_in_use.load()); }

void Warn(const std::string& text) { Say(abi::kLogWarn, kNetFlag, text); }
void InformNet(const std::string& text) { Say(abi::kLogInfo, kNetFlag, text); }
void InformInit(const std::string& text) { Say(abi::kLogInfo, kInitFlag | kNetFlag, text); }

int OutcomeOf(Code code) noexcept {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported: return abi::kInvalidUsage;
    case Code::kUnavailable:
    case Code::kDeviceLost: return abi::kSystemError;
    case Code::kRefused:
    case Code::kTimedOut:
    case Code::kPeerLost:
    case Code::kCorrupt: return abi::kRemoteError;
    case Code::kCancelled:
    case Code::kInternal: break;
  }
  return abi::kInternalError;
}

int Fail(const Error& error) {
  Warn(error.message());
  return OutcomeOf(error.code());
}

}  // namespace ferry::nccl_net
