// Names the types of frames.
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer::wire {

const char* TypeName(Type type) noexcept {
  if (type < Type::kWrite) {
    return session::wire::TypeName(static_cast<session::wire::Type>(type));
  }
  switch (type) {
    case Type::kWrite: return "write";
    case Type::kReadRequest: return "read request";
    case Type::kReadData: return "read data";
    case Type::kReadRefused: return "read refused";
    case Type::kSend: return "send";
    case Type::kRts: return "RTS";
    case Type::kCts: return "CTS";
    case Type::kFin: return "FIN";
    case Type::kNotify: return "notify";
    case Type::kDeclined: return "declined";
    case Type::kCopy: return "copy";
    case Type::kShare: return "share";
    case Type::kShared: return "shared";
    case Type::kUnshare: return "unshare";
    case Type::kUnshared: return "unshared";
    case Type::kAck: return "ack";
    case Type::kNack: return "nack";
    case Type::kPing: return "ping";
    case Type::kPong: return "pong";
    case Type::kLaneLost: return "lane lost";
    default: break;
  }
  return "unknown";
}

}  // namespace ferry::transfer::wire
