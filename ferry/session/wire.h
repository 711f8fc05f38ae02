// Layout of the frames by which the two sides of a lane get to know each other.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ferry/core/result.h"

// The metadata of handshake frames: a Header, the body of its type, then for some types a list,
// text or proof. Little-endian, no padding; docs/wire.md describes the conversation.
namespace ferry::session::wire {

// Types from 16 on are those of the frames that a lane's user sends after the handshake.
enum class Type : std::uint8_t {
  kHello = 1,      // dialing side: begins a session, or a lane that is one of its own
  kWelcome = 2,    // answer to kHello
  kJoin = 3,       // dialing side: begins a further lane of a session
  kJoined = 4,     // answer to kJoin
  kRefuse = 5,     // accepting side, closes the lane: RefuseBody, text
  kChallenge = 6,  // answer to kHello, kJoin and kRejoin where the peer owes a proof: ChallengeBody
  kProof = 7,      // answer to kChallenge: ProofBody, identity; answers then end with the other
                   // side's proof
  kRejoin = 8,     // dialing side: begins a lane that replaces a lost one
  kRejoined = 9,   // answer to kRejoin
  kResume = 10,    // dialing side, after kRejoined: its progress on the lost lane
  kResumed = 11,   // answer to kResume: the other side's
  kConfirm = 12,   // dialing side, after kWelcome: what it tells only a proved peer; with a proof
};
const char* TypeName(Type type) noexcept;

// What a lane is for.
enum class Role : std::uint16_t {
  kEndpoint = 0,  // a connection of endpoints
  kNccl = 1,      // a comm of the plugin for NCCL
  kPlugin = 2,    // control of a lane over a network plugin
};
const char* RoleName(Role role) noexcept;

struct Header {
  Type type{};
  std::uint8_t zero = 0;
  Role role{};
  std::uint8_t zeros[20] = {};
};
static_assert(sizeof(Header) == 24 && offsetof(Header, role) == 2);

using Nonce = std::array<std::byte, 32>;

struct ChallengeBody {
  Nonce nonce{};
};

struct ProofBody {
  Nonce nonce{};                        // the dialing side's challenge
  std::array<std::byte, 32> binding{};  // net::ChannelBinding of the lane, as this side sees it
  std::array<std::byte, 32> mac{};
};
static_assert(sizeof(ChallengeBody) == 32 && sizeof(ProofBody) == 96);

// Limit of what the dialing side's program says of itself, which a ProofBody is followed by.
inline constexpr std::size_t kMaxIdentityBytes = 768;

struct RefuseBody {
  // Zero in a kRefuse; frames of endpoints use both numbers.
  std::uint32_t sequence = 0;  // of the refused frame
  std::uint32_t slice = 0;     // of the refused read
  std::uint8_t code = 0;       // ferry::Code; 0: success, in a FIN
  std::uint8_t reserved[7] = {};
};
static_assert(sizeof(RefuseBody) == 16);

inline constexpr std::size_t kMaxTextBytes = 512;

// Reads PODs from the front of received metadata. Returns false once it is too short, and from then
// on.
class MetaReader {
 public:
  explicit MetaReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  bool Read(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  std::span<const std::byte> rest() const noexcept { return rest_; }
  // The remaining bytes as text, cut to kMaxTextBytes; bytes that cannot be printed are replaced.
  std::string Text() const;

 private:
  std::span<const std::byte> rest_;
};

// The body as the bytes that are sent; a view of `body`.
template <class T>
std::span<const std::byte> BytesOf(const T& body) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&body, 1));
}

// Appends to metadata under construction.
template <class T>
void Append(std::vector<std::byte>* meta, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t at = meta->size();
  meta->resize(at + sizeof(T));
  std::memcpy(meta->data() + at, &value, sizeof(T));
}
void AppendText(std::vector<std::byte>* meta, std::string_view text);

// A code from the wire; unknown ones become kInternal.
Code CodeFromWire(std::uint8_t code) noexcept;

}  // namespace ferry::session::wire
