// Names of error codes and the printed form of an error.
#include "ferry/core/result.h"

namespace ferry {

const char* CodeName(Code code) noexcept {
  switch (code) {
    case Code::kInvalidArgument: return "InvalidArgument";
    case Code::kUnsupported: return "Unsupported";
    case Code::kUnavailable: return "Unavailable";
    case Code::kRefused: return "Refused";
    case Code::kCancelled: return "Cancelled";
    case Code::kTimedOut: return "TimedOut";
    case Code::kPeerLost: return "PeerLost";
    case Code::kDeviceLost: return "DeviceLost";
    case Code::kCorrupt: return "Corrupt";
    case Code::kInternal: return "Internal";
  }
  return "Unknown";
}

std::string Error::ToString() const { return std::string(CodeName(code_)) + ": " + message_; }

}  // namespace ferry
