// The frames by which two sides prove the secret and agree on a plugin before a lane is used.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/core/secret.h"
#include "ferry/net/provider.h"
#include "ferry/net/socket_owner.h"
#include "ferry/tcpx/host/comm.h"

// Over the TCP lane, in turns:
//
//   connecting side     accepting side
//   hello, nonce   ->
//                  <-   challenge, nonce
//   proof          ->                        the connecting side knows the secret
//                  <-   welcome, handle      and so does the accepting side
//   handle         ->
//
// Each frame carries all that must be the same on both sides. In place of its answer the accepting
// side may send a refusal with the reason. Frames of the lane's user follow, and are told apart by
// their order only. No side calls the plugin before the other has proved itself.
namespace ferry::net::plugin {

struct LaneHello {
  enum class Kind : std::uint32_t {
    kHello = 1,
    kWelcome = 2,
    kRefusal = 3,
    kChallenge = 4,
    kProof = 5,
    kHandle = 6,
  };
  using Nonce = std::array<std::byte, 32>;

  Kind kind = Kind::kHello;
  // What must be the same on both sides.
  std::string plugin;
  std::uint32_t plugin_version = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t tag_base = 0;
  bool has_secret = false;
  ProcessHint process{};  // the sender's; zeros with a secret
  Nonce nonce{};          // of a hello and a challenge
  // Where this side accepts the comm by which it receives; in a welcome and a handle.
  Handle handle{};
  Mac mac{};         // of a proof, a welcome and a handle: LaneMac(); zeros without a secret
  std::string text;  // of a refusal
};

std::vector<std::byte> Pack(const LaneHello& hello);
// Errors: kRefused where the bytes are not such a frame: the peer `remote` uses no plugin.
Result<LaneHello> UnpackLaneHello(std::span<const std::byte> bytes, const std::string& remote);
// Whether the peer fits. Errors: kRefused, with what differs.
Status CheckFits(const LaneHello& mine, const LaneHello& peer, const std::string& remote);

// Whether frames of this kind are signed.
bool IsSigned(LaneHello::Kind kind) noexcept;
// Signs the frames of a lane so far, whichever side sent them, and `frame` as if its mac were
// zeros. So the handle and the terms in it are the signer's, and nonces of both sides make it of
// this lane only. `frame`: as Pack() returns it. Zeros without a secret.
Mac LaneMac(const std::optional<Secret>& secret, std::span<const std::byte> frames,
            std::span<const std::byte> frame);
// Puts the mac into a packed frame.
void SetMac(const Mac& mac, std::vector<std::byte>* frame);

// Whether a peer may go on: one that will prove the secret; without a secret only one of this
// machine, which still has to be of our user (Lane::ProvePeer()), or any if `insecure`. Errors:
// kRefused.
Status CheckTrusted(bool has_secret, bool insecure, const LaneInfo& peer);

}  // namespace ferry::net::plugin
