// Layout of the engine's frames on the wire.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "ferry/net/machine/socket_owner.h"
#include "ferry/session/wire.h"
#include "ferry/transfer/region.h"

// The metadata of the engine's frames: a MessageHeader, the body of its type, then for some types a
// list or text. Little-endian, no padding; docs/wire.md describes the conversation.
namespace ferry::transfer::wire {

using session::wire::Append;
using session::wire::AppendText;
using session::wire::BytesOf;
using session::wire::ChallengeBody;
using session::wire::CodeFromWire;
using session::wire::kMaxTextBytes;
using session::wire::MetaReader;
using session::wire::Nonce;
using session::wire::ProofBody;
using session::wire::RefuseBody;

// Version 3: a proof names the role of its lane, and may carry an identity.
inline constexpr std::uint16_t kVersion = 3;

enum class Type : std::uint8_t {
  kHello = 1,      // client, first frame of the first lane
  kWelcome = 2,    // server's answer to kHello
  kJoin = 3,       // client, first frame of every further lane
  kJoined = 4,     // server's answer to kJoin
  kRefuse = 5,     // server's answer that closes the lane: RefuseBody, text
  kChallenge = 6,  // server's answer to kHello and kJoin if it has a secret: ChallengeBody
  kProof = 7,      // client's answer to kChallenge: ProofBody, identity; the server's answer then
                   // carries a proof
  kRejoin = 8,     // client, first frame of a lane that replaces a lost one
  kRejoined = 9,   // server's answer to kRejoin
  kResume = 10,    // client, after kRejoined: ResumeBody, RefusalOnWire[]
  kResumed = 11,   // server's answer: the same for its side; the lane is in use from here
  kWrite = 16,     // WriteBody, BlockOnWire[], payload; sequenced
  kReadRequest = 17,  // WriteBody, BlockOnWire[]; answered in order by kReadData or kReadRefused
  kReadData = 18,     // SliceBody, payload; sequenced
  kReadRefused = 19,  // RefuseBody, text
  kSend = 20,         // TagBody, payload: a whole small message; sequenced
  kRts = 21,          // RTS, TagBody: a message that waits for kCts; sequenced
  kCts = 22,          // CTS, CtsBody: write the message of an RTS into this region; sequenced
  // FIN, RefuseBody, text: from the sender, the message of an RTS is in place or withdrawn;
  // sequenced.
  kFin = 23,
  kNotify = 24,  // payload: a notification; sequenced
  // RefuseBody, text: from the receiver, no CTS will follow. Either the message is refused, or
  // (code 0) it is complete because it is empty. Sequenced.
  kDeclined = 25,
  kCopy = 26,      // CopyBody, CopyOnWire[]: a slice that its receiver copies itself; sequenced
  kShare = 27,     // ShareBody: GPU memory that the receiver may map, for kCopy; sequenced
  kShared = 28,    // RefuseBody, text: it was mapped, or the reason why not; sequenced
  kUnshare = 29,   // SliceBody: it must no longer be used; sequenced
  kUnshared = 30,  // SliceBody: nothing uses it any more; sequenced
  kAck = 32,       // nothing but the header's ack
  kNack = 33,      // RefuseBody, text: a sequenced frame was refused
  kPing = 34,
  kPong = 35,
  kLaneLost = 36,  // JoinBody: from the accepting side, a request to replace this lane
};

struct MessageHeader {
  Type type{};
  std::uint8_t flags = 0;
  std::uint16_t reserved16 = 0;
  // Number of the peer's sequenced frames on this lane that have been processed, modulo 2^32.
  std::uint32_t ack = 0;
  std::uint64_t operation = 0;  // id chosen by the side that began the operation
  // CRC32C, if kChecked is set: of the payload, and of the metadata with meta_crc as zero.
  std::uint32_t crc = 0;
  std::uint32_t meta_crc = 0;
};
static_assert(sizeof(MessageHeader) == 24 && offsetof(MessageHeader, operation) == 8);

// MessageHeader flag: the frame carries checksums; in a kReadRequest: the answer should, too.
inline constexpr std::uint8_t kChecked = 1;

// Flags. In HelloBody: features that the sender has or requests. In WelcomeBody: those agreed.
inline constexpr std::uint32_t kHasSecret = 1;
inline constexpr std::uint32_t kChecksums = 2;

struct HelloBody {
  std::uint16_t version = kVersion;  // at this offset in every version
  std::uint16_t lanes = 0;
  std::uint32_t flags = 0;
  std::uint8_t endpoint[16] = {};
  std::uint8_t expected[16] = {};  // id of the endpoint dialed; zeros: any
  std::uint64_t window_bytes = 0;
  net::ProcessHint process = {};  // of the sender; zeros: not told
};
static_assert(sizeof(HelloBody) == 56 && sizeof(net::ProcessHint) == 8);

struct WelcomeBody {
  std::uint16_t version = kVersion;
  std::uint16_t lanes = 0;
  std::uint32_t connection = 0;
  std::uint8_t endpoint[16] = {};
  std::uint8_t token[16] = {};  // proves that a kJoin comes from the peer that this was sent to
  std::uint64_t window_bytes = 0;
  std::uint32_t flags = 0;
  // Size of the EndpointAddress that follows: further interfaces at which the server can be
  // reached.
  std::uint32_t address_bytes = 0;
  net::ProcessHint process;  // as in HelloBody
};
static_assert(sizeof(WelcomeBody) == 64);

struct JoinBody {
  std::uint16_t version = kVersion;
  std::uint16_t lane = 0;
  std::uint32_t connection = 0;
  std::uint8_t token[16] = {};
};
static_assert(sizeof(JoinBody) == 24);

struct RejoinBody {
  std::uint16_t version = kVersion;
  std::uint16_t lane = 0;
  std::uint32_t connection = 0;
  std::uint32_t attempt = 0;  // increases with each attempt for a lane
  std::uint32_t reserved = 0;
  std::uint8_t token[16] = {};
};
static_assert(sizeof(RejoinBody) == 32);

// Which of the frames that the other side has sent on this lane were processed.
struct ResumeBody {
  std::uint32_t finished = 0;  // as MessageHeader::ack
  std::uint32_t refusals = 0;
};
struct RefusalOnWire {
  std::uint32_t sequence = 0;  // of a refused frame among those
  std::uint32_t code = 0;      // ferry::Code
};
static_assert(sizeof(ResumeBody) == 8 && sizeof(RefusalOnWire) == 8);

using KeyBody = RegionKey;

struct CtsBody {
  KeyBody key;
  std::uint64_t most_slice = ~std::uint64_t{0};  // slice limit in bytes
};
static_assert(sizeof(CtsBody) == 24);

struct WriteBody {
  KeyBody key;
  std::uint32_t slice = 0;
  std::uint32_t blocks = 0;
};
static_assert(sizeof(WriteBody) == 24);

struct CopyBody {
  KeyBody key;
  std::uint32_t slice = 0;
  std::uint32_t blocks = 0;
  std::uint32_t share = 0;  // number of the sender's memory
  std::uint32_t into = 0;   // 1: the region is written, 0: read
};
static_assert(sizeof(CopyBody) == 32);

struct CopyOnWire {
  std::uint64_t offset = 0;  // in the region
  std::uint64_t shared = 0;  // offset in the sender's shared memory
  std::uint64_t length = 0;
};
static_assert(sizeof(CopyOnWire) == 24);

struct ShareBody {
  std::uint32_t share = 0;             // number, chosen by the sender; not 0
  std::uint32_t gpu = 0;               // ordinal of the receiver's GPU that will access it
  std::uint64_t allocation = 0;        // size of the mapped allocation, in bytes
  std::uint64_t offset = 0;            // usable part: offset in the allocation
  std::uint64_t bytes = 0;             // usable part: size
  std::uint8_t host[16] = {};          // boot id of the machine
  std::uint8_t token[16] = {};         // identifies the memory within the sender's own process
  std::array<std::byte, 64> handle{};  // cudaIpcMemHandle_t
  char bus[16] = {};                   // PCI bus id of its GPU
};
static_assert(sizeof(ShareBody) == 144);

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
// Limit of blocks in a kReadRequest of this release: the answering side keeps the list until the
// answer is sent.
inline constexpr std::size_t kMaxBlocksPerRead = 256;
inline constexpr std::size_t kMaxCopiesPerFrame = 2600;
// Limit of a kCopy: large enough that the frame costs nothing compared with the copy, small enough
// that copies in flight end soon.
inline constexpr std::uint64_t kMaxCopyBytes = std::uint64_t{16} << 20;
// Smallest slice limit that an endpoint may request by a key or a kCts: each slice of a plan
// costs the other side memory.
inline constexpr std::uint64_t kMinSlice = 4096;
const char* TypeName(Type type) noexcept;

}  // namespace ferry::transfer::wire
