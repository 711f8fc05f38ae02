// Decodes text and codes from received metadata, and names what frames hold.
#include "ferry/session/wire.h"

#include <algorithm>
#include <cctype>
#include <iterator>

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
  static constexpr const char* kNames[] = {"unknown", "hello",     "welcome", "join",   "joined",
                                           "refuse",  "challenge", "proof",   "rejoin", "rejoined",
                                           "resume",  "resumed",   "confirm"};
  return kNames[static_cast<std::size_t>(type) < std::size(kNames) ? static_cast<int>(type) : 0];
}

const char* RoleName(Role role) noexcept {
  static constexpr const char* kNames[] = {"an endpoint", "the plugin for NCCL",
                                           "lanes over a network plugin", "something unknown"};
  return kNames[std::min<std::size_t>(static_cast<std::size_t>(role), std::size(kNames) - 1)];
}

}  // namespace ferry::session::wire
