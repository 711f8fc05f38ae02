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

// The metadata of the engine's frames: a MessageHeader, the body of its type, then for some types
// a list or text. Little-endian, no padding; docs/wire.md has the conversation.
namespace ferry::transfer::wire {

inline constexpr std::uint16_t kVersion = 1;

enum class Type : std::uint8_t {
  kHello = 1,         // client, first frame of the first lane
  kWelcome = 2,       // server's answer
  kJoin = 3,          // client, first frame of every further lane
  kJoined = 4,        // server's answer
  kRefuse = 5,        // server's answer that ends the lane: RefuseBody, text
  kChallenge = 6,     // server's answer to kHello and kJoin where it has a secret: ChallengeBody
  kProof = 7,         // client's answer to that: ProofBody; then kWelcome or kJoined with a code
  kWrite = 16,        // WriteBody, BlockOnWire[], payload; sequenced
  kReadRequest = 17,  // WriteBody, BlockOnWire[]; answered in order by kReadData or kReadRefused
  kReadData = 18,     // SliceBody, payload; sequenced
  kReadRefused = 19,  // RefuseBody, text
  kSend = 20,         // TagBody, payload: a whole small message; sequenced
  kOffer = 21,        // TagBody: a message that waits for kSolicit; sequenced
  kSolicit = 22,      // KeyBody: write the offered message into this region
  kDelivered =
      23,        // RefuseBody, text: from the sender, an offered message is in place or withdrawn
  kNotify = 24,  // payload: a notification; sequenced
  // RefuseBody, text: from the receiver, an offered message will not be asked for: it is not
  // wanted, or (code 0) it is there, having no bytes.
  kDeclined = 25,
  kAck = 32,   // nothing but the header's ack
  kNack = 33,  // RefuseBody, text: a sequenced frame was refused
  kPing = 34,
  kPong = 35,
};

struct MessageHeader {
  Type type{};
  std::uint8_t reserved8 = 0;
  std::uint16_t reserved16 = 0;
  // How many of the peer's sequenced frames on this lane have been dealt with, modulo 2^32.
  std::uint32_t ack = 0;
  std::uint64_t operation = 0;  // chosen by the side that began the operation
};
static_assert(sizeof(MessageHeader) == 16 && offsetof(MessageHeader, operation) == 8);

struct HelloBody {
  std::uint16_t version = kVersion;  // stays here in every version
  std::uint16_t lanes = 0;
  std::uint32_t has_secret = 0;  // 0 or 1
  std::uint8_t endpoint[16] = {};
  std::uint64_t window_bytes = 0;
};
static_assert(sizeof(HelloBody) == 32);

using Nonce = std::array<std::byte, 32>;

struct ChallengeBody {
  Nonce nonce{};
};

struct ProofBody {
  Nonce nonce{};  // the client's challenge
  std::array<std::byte, 32> mac{};
};
static_assert(sizeof(ChallengeBody) == 32 && sizeof(ProofBody) == 64);

struct WelcomeBody {
  std::uint16_t version = kVersion;
  std::uint16_t lanes = 0;
  std::uint32_t connection = 0;
  std::uint8_t endpoint[16] = {};
  std::uint8_t token[16] = {};  // proves that a kJoin comes from whom this was sent to
  std::uint64_t window_bytes = 0;
};
static_assert(sizeof(WelcomeBody) == 48);

struct JoinBody {
  std::uint16_t version = kVersion;
  std::uint16_t lane = 0;
  std::uint32_t connection = 0;
  std::uint8_t token[16] = {};
};
static_assert(sizeof(JoinBody) == 24);

struct RefuseBody {
  std::uint32_t sequence = 0;  // kNack: of the refused frame
  std::uint32_t slice = 0;     // kReadRefused
  std::uint8_t code = 0;       // ferry::Code; 0 in a kDelivered that succeeded
  std::uint8_t reserved[7] = {};
};
static_assert(sizeof(RefuseBody) == 16);

struct KeyBody {
  std::uint32_t region = 0;
  std::uint32_t generation = 0;
  std::uint64_t token = 0;
};
static_assert(sizeof(KeyBody) == 16);

struct WriteBody {
  KeyBody key;
  std::uint32_t slice = 0;
  std::uint32_t blocks = 0;
};
static_assert(sizeof(WriteBody) == 24);

struct BlockOnWire {
  std::uint64_t offset = 0;  // in the region
  std::uint64_t length = 0;
};
static_assert(sizeof(BlockOnWire) == 16);

struct SliceBody {
  std::uint32_t slice = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(SliceBody) == 8);

struct TagBody {
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(TagBody) == 16);

inline constexpr std::size_t kMaxBlocksPerFrame = 4000;
inline constexpr std::size_t kMaxTextBytes = 512;

// Reads PODs off the front of received metadata; false once it is too short, and then for good.
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
  // What is left, as text, cut to kMaxTextBytes and made printable.
  std::string Text() const;

 private:
  std::span<const std::byte> rest_;
};

// Appends to metadata under construction.
template <class T>
void Append(std::vector<std::byte>* meta, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t at = meta->size();
  meta->resize(at + sizeof(T));
  std::memcpy(meta->data() + at, &value, sizeof(T));
}
void AppendText(std::vector<std::byte>* meta, std::string_view text);

// A code off the wire; unknown ones become kInternal.
Code CodeFromWire(std::uint8_t code) noexcept;
const char* TypeName(Type type) noexcept;

}  // namespace ferry::transfer::wire
