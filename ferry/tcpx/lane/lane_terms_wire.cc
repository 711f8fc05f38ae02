// Checks what two sides tell each other about a plugin.
#include "ferry/tcpx/lane/lane_terms_wire.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "ferry/core/units.h"

namespace ferry::tcpx {

void PluginTerms::SetPlugin(const std::string& name) {
  std::copy_n(name.begin(), std::min(name.size(), sizeof plugin - 1), plugin);
}

std::string PluginTerms::PluginName() const {
  std::string text(plugin, strnlen(plugin, sizeof plugin - 1));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

Result<PluginTerms> ReadTerms(session::wire::MetaReader* body, const std::string& remote) {
  PluginTerms terms;
  session::wire::MetaReader peek = *body;
  (void)peek.Read(&terms.format);  // for the error, where the rest has another layout
  if (body->Read(&terms) && terms.format == kTermsFormat && terms.has_secret <= 1) return terms;
  return Error(Code::kRefused,
               fmt::format("{} sets up lanes over a network plugin by another format ({}, and {} "
                           "here); use the same release of this library on both sides",
                           remote, terms.format, kTermsFormat));
}

Status CheckFits(const PluginTerms& mine, const PluginTerms& peer, const std::string& remote) {
  if (peer.has_secret != mine.has_secret) {
    return Error(Code::kRefused,
                 fmt::format("{} has {} secret, and this side has {}; set FERRY_SECRET_FILE to the "
                             "same on both sides",
                             remote, peer.has_secret != 0 ? "a" : "no",
                             mine.has_secret != 0 ? "one" : "none"));
  }
  if (peer.PluginName() != mine.PluginName()) {
    return Error(Code::kRefused,
                 fmt::format("{} uses network plugin {}, and this side {}; use the same plugin on "
                             "both sides (FERRY_PROVIDER)",
                             remote, peer.PluginName(), mine.PluginName()));
  }
  if (peer.plugin_version != mine.plugin_version) {
    return Error(Code::kRefused,
                 fmt::format("{} uses version {} of network plugin {}, and this side version {}; "
                             "install the same plugin on both sides",
                             remote, peer.plugin_version, mine.PluginName(), mine.plugin_version));
  }
  if (peer.chunk_bytes != mine.chunk_bytes) {
    return Error(
        Code::kRefused,
        fmt::format("{} sends chunks of {}, and this side of {}; set plugin_chunk_bytes to "
                    "the same on both sides (FERRY_PLUGIN_CHUNK_BYTES)",
                    remote, FormatSize(peer.chunk_bytes), FormatSize(mine.chunk_bytes)));
  }
  if (peer.tag_base != mine.tag_base) {
    return Error(Code::kRefused,
                 fmt::format("{} tags chunks from {} on, and this side from {} on; set "
                             "plugin_tag_base to the same on both sides (FERRY_PLUGIN_TAG_BASE)",
                             remote, peer.tag_base, mine.tag_base));
  }
  return Ok();
}

}  // namespace ferry::tcpx
