// Decodes text and codes from received metadata.
#include "ferry/transfer/handshake/wire.h"

#include <algorithm>
#include <cctype>

namespace ferry::transfer::wire {

std::string MetaReader::Text() const {
  const auto bytes = rest_.first(std::min(rest_.size(), kMaxTextBytes));
  std::string text;
  text.reserve(bytes.size());
  for (const std::byte b : bytes) {
    const auto c = static_cast<unsigned char>(b);
    // A peer's text ends in logs and on terminals.
    text.push_back(std::isprint(c) != 0 ? static_cast<char>(c) : '?');
  }
  return text;
}

void AppendText(std::vector<std::byte>* meta, std::string_view text) {
  const auto kept = text.substr(0, kMaxTextBytes);
  if (kept.empty()) return;  // data() may be null then
  const std::size_t at = meta->size();
  meta->resize(at + kept.size());
  std::memcpy(meta->data() + at, kept.data(), kept.size());
}

Code CodeFromWire(std::uint8_t code) noexcept {
  const auto low = static_cast<std::uint8_t>(Code::kInvalidArgument);
  const auto high = static_cast<std::uint8_t>(Code::kInternal);
  // A later release may have further codes.
  return code >= low && code <= high ? static_cast<Code>(code) : Code::kInternal;
}

const char* TypeName(Type type) noexcept {
  switch (type) {
    case Type::kHello: return "hello";
    case Type::kWelcome: return "welcome";
    case Type::kJoin: return "join";
    case Type::kJoined: return "joined";
    case Type::kRefuse: return "refuse";
    case Type::kChallenge: return "challenge";
    case Type::kProof: return "proof";
    case Type::kRejoin: return "rejoin";
    case Type::kRejoined: return "rejoined";
    case Type::kResume: return "resume";
    case Type::kResumed: return "resumed";
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
  }
  return "unknown";
}

}  // namespace ferry::transfer::wire
