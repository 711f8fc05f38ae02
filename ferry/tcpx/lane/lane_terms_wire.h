// What two sides tell each other before a plugin makes a lane of theirs.
#pragma once
#include <cstdint>
#include <string>
#include <type_traits>

#include "ferry/core/result.h"
#include "ferry/net/machine/socket_owner.h"
#include "ferry/session/wire.h"
#include "ferry/tcpx/host/comm.h"

namespace ferry::tcpx {

inline constexpr std::uint16_t kTermsFormat = 4;

// The body of the session's hello frame on a control lane. In a welcome the handle follows at which
// that side accepts the comm by which it receives; a confirm frame is such a handle alone.
// Little-endian, as on every machine that CUDA runs on.
struct PluginTerms {
  std::uint16_t format = kTermsFormat;  // at this offset in every format from 3 on
  std::uint16_t has_secret = 0;         // 0 or 1
  std::uint32_t plugin_version = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t tag_base = 0;
  net::ProcessHint process{};  // of the sender, where it has no secret
  std::uint32_t zero = 0;
  char plugin[96] = {};  // its name, which ends with a zero byte

  void SetPlugin(const std::string& name);
  // Printable: a peer's text goes to logs and errors.
  std::string PluginName() const;
};
static_assert(sizeof(PluginTerms) == 128 && offsetof(PluginTerms, plugin) == 32);

// Errors: kRefused where the body does not begin with terms of this format.
Result<PluginTerms> ReadTerms(session::wire::MetaReader* body, const std::string& remote);
// Whether the peer fits. Errors: kRefused, with what differs.
Status CheckFits(const PluginTerms& mine, const PluginTerms& peer, const std::string& remote);

}  // namespace ferry::tcpx
