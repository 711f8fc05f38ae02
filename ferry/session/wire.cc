// Decodes text and codes from received metadata, and names what frames hold.
#include "ferry/session/wire.h"

#include <algorithm>
#include <cctype>

namespace ferry::session::wire {

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
    case Type::kConfirm: return "confirm";
  }
  return "unknown";
}

const char* RoleName(Role role) noexcept {
  switch (role) {
    case Role::kEndpoint: return "an endpoint";
    case Role::kNccl: return "the plugin for NCCL";
    case Role::kPlugin: return "lanes over a network plugin";
  }
  return "something unknown";
}

}  // namespace ferry::session::wire
