// The frames by which two sides agree on a plugin before a lane is used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/tcpx/host/comm.h"

// Each side sends one such frame over the TCP lane: the connecting side a hello; the accepting side
// a welcome or, where the two do not fit together, a refusal with the reason. Frames of the lane's
// user follow, and are told apart by their order only.
namespace ferry::net::plugin {

struct LaneHello {
  enum class Kind : std::uint32_t { kHello = 1, kWelcome = 2, kRefusal = 3 };
  Kind kind = Kind::kHello;
  // What must be the same on both sides.
  std::string plugin;
  std::uint32_t plugin_version = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t tag_base = 0;
  Handle handle{};   // where this side accepts the comm by which it receives
  std::string text;  // of a refusal
};

std::vector<std::byte> Pack(const LaneHello& hello);
// Errors: kRefused where the bytes are not such a frame: the peer `remote` uses no plugin.
Result<LaneHello> UnpackLaneHello(std::span<const std::byte> bytes, const std::string& remote);
// Whether the peer fits. Errors: kRefused, with what differs.
Status CheckFits(const LaneHello& mine, const LaneHello& peer, const std::string& remote);

}  // namespace ferry::net::plugin
