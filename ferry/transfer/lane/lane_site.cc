// Limits and errors that the parts of a lane have in common.
#include "ferry/transfer/lane/lane_site.h"

#include <fmt/core.h>

#include "ferry/transfer/lane/lane_limits.h"

namespace ferry::transfer {

std::size_t LaneSite::max_sequenced() const {
  const std::size_t in_messages = index == 0 ? context.config->max_operations : 0;
  return kMaxUnacked + kMaxReplies + in_messages;
}

Error MalformedFrame(const LaneSite& site, const char* what) {
  return Error(Code::kCorrupt,
               fmt::format("{} sent a malformed frame ({}); the connection was closed, reconnect "
                           "with the same release on both sides",
                           site.context.peer_name, what));
}

}  // namespace ferry::transfer
