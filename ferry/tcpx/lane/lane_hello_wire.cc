// Packs, checks and signs the frames by which two sides agree on a plugin.
#include "ferry/tcpx/lane/lane_hello_wire.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "ferry/core/check.h"
#include "ferry/core/units.h"

namespace ferry::net::plugin {
namespace {

constexpr std::uint64_t kMagic = 0x474c505952524546;  // the bytes "FERRYPLG"
constexpr std::uint32_t kFormat = 2;                  // 1 proved nothing

// Little-endian, as on every machine that CUDA runs on. Texts end with a zero byte.
struct WireHello {
  std::uint64_t magic = kMagic;
  std::uint32_t format = kFormat;
  std::uint32_t kind = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t plugin_version = 0;
  std::uint32_t tag_base = 0;
  char plugin[96] = {};
  Handle handle{};
  char text[512] = {};
  std::uint64_t has_secret = 0;
  ProcessHint process{};
  LaneHello::Nonce nonce{};
  Mac mac{};
};
static_assert(sizeof(WireHello) == 848 && sizeof(WireHello) <= kMaxPendingPeerMeta);
static_assert(offsetof(WireHello, handle) == 128 && offsetof(WireHello, text) == 256);
static_assert(offsetof(WireHello, nonce) == 784 && offsetof(WireHello, mac) == 816);

// What frames of all formats begin with.
struct WireFormat {
  std::uint64_t magic = 0;
  std::uint32_t format = 0;
  std::uint32_t kind = 0;
};

template <std::size_t kSize>
void StoreText(std::string_view text, char (&to)[kSize]) {
  const auto kept = text.substr(0, kSize - 1);
  std::copy(kept.begin(), kept.end(), to);
}

// A peer's text goes to logs and errors.
template <std::size_t kSize>
std::string LoadText(const char (&from)[kSize]) {
  std::string text(from, strnlen(from, kSize - 1));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

std::vector<std::byte> Pack(const LaneHello& hello) {
  WireHello wire;
  wire.kind = static_cast<std::uint32_t>(hello.kind);
  wire.chunk_bytes = hello.chunk_bytes;
  wire.plugin_version = hello.plugin_version;
  wire.tag_base = hello.tag_base;
  StoreText(hello.plugin, wire.plugin);
  wire.handle = hello.handle;
  StoreText(hello.text, wire.text);
  wire.has_secret = hello.has_secret ? 1 : 0;
  wire.process = hello.process;
  wire.nonce = hello.nonce;
  wire.mac = hello.mac;
  std::vector<std::byte> bytes(sizeof wire);
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

Result<LaneHello> UnpackLaneHello(std::span<const std::byte> bytes, const std::string& remote) {
  WireFormat form;
  if (bytes.size() >= sizeof form) std::memcpy(&form, bytes.data(), sizeof form);
  if (form.magic != kMagic) {
    return Error(Code::kRefused,
                 fmt::format("{} does not use a network plugin, and this side does; set the "
                             "provider to the same on both sides (FERRY_PROVIDER)",
                             remote));
  }
  WireHello wire;
  const bool is_whole = bytes.size() == sizeof wire;
  if (is_whole) std::memcpy(&wire, bytes.data(), sizeof wire);
  const bool known = wire.kind >= static_cast<std::uint32_t>(LaneHello::Kind::kHello) &&
                     wire.kind <= static_cast<std::uint32_t>(LaneHello::Kind::kHandle);
  if (form.format != kFormat || !is_whole || !known || wire.has_secret > 1) {
    return Error(Code::kRefused,
                 fmt::format("{} sets up lanes over a network plugin by another format ({}, and {} "
                             "here); use the same release of this library on both sides",
                             remote, form.format, kFormat));
  }
  return LaneHello{static_cast<LaneHello::Kind>(wire.kind),
                   LoadText(wire.plugin),
                   wire.plugin_version,
                   wire.chunk_bytes,
                   wire.tag_base,
                   wire.has_secret != 0,
                   wire.process,
                   wire.nonce,
                   wire.handle,
                   wire.mac,
                   LoadText(wire.text)};
}

Status CheckFits(const LaneHello& mine, const LaneHello& peer, const std::string& remote) {
  if (peer.has_secret != mine.has_secret) {
    return Error(
        Code::kRefused,
        fmt::format("{} has {} secret, and this side has {}; set FERRY_SECRET_FILE to the "
                    "same on both sides",
                    remote, peer.has_secret ? "a" : "no", mine.has_secret ? "one" : "none"));
  }
  if (peer.plugin != mine.plugin) {
    return Error(Code::kRefused,
                 fmt::format("{} uses network plugin {}, and this side {}; use the same plugin on "
                             "both sides (FERRY_PROVIDER)",
                             remote, peer.plugin, mine.plugin));
  }
  if (peer.plugin_version != mine.plugin_version) {
    return Error(Code::kRefused,
                 fmt::format("{} uses version {} of network plugin {}, and this side version {}; "
                             "install the same plugin on both sides",
                             remote, peer.plugin_version, peer.plugin, mine.plugin_version));
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

bool IsSigned(LaneHello::Kind kind) noexcept {
  return kind == LaneHello::Kind::kProof || kind == LaneHello::Kind::kWelcome ||
         kind == LaneHello::Kind::kHandle;
}

// A frame's kind tells its sender's side, so that nobody's mac can be sent back to him.
Mac LaneMac(const std::optional<Secret>& secret, std::span<const std::byte> frames,
            std::span<const std::byte> frame) {
  if (!secret) return Mac{};
  std::vector<std::byte> unsigned_frame(frame.begin(), frame.end());
  SetMac(Mac{}, &unsigned_frame);
  return secret->Sign("lane over a plugin", {frames, unsigned_frame});
}

void SetMac(const Mac& mac, std::vector<std::byte>* frame) {
  FERRY_CHECK(frame->size() == sizeof(WireHello), frame->size());
  std::memcpy(frame->data() + offsetof(WireHello, mac), mac.data(), mac.size());
}

Status CheckTrusted(bool has_secret, bool insecure, const LaneInfo& peer) {
  if (has_secret || insecure || peer.same_machine) return Ok();
  return Error(
      Code::kRefused,
      fmt::format("{} is on another machine and there is no secret to authenticate it; set "
                  "FERRY_SECRET_FILE on both sides, or FERRY_INSECURE=on in a network you "
                  "trust",
                  peer.remote));
}

}  // namespace ferry::net::plugin
