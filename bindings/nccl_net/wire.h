// The wire format of the NCCL plugin: handles and frame metadata.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"
#include "ferry/net/plugin/abi.h"

// Bytes that go from one process to another: in NCCL's handles, and as the metadata of frames.
// Little-endian. Frames of another version end the lane that they come by.
namespace ferry::nccl_net {

namespace abi = net::plugin::abi;

inline constexpr std::uint16_t kWireVersion = 5;
// From this version on handles and hellos begin alike in all versions, so that ranks with different
// ones can tell each other.
inline constexpr std::uint16_t kFirstAlike = 5;

// What a sender may send on lane 0 before it is asked for, of all tags: so many messages of at most
// so many bytes each, which is a step of NCCL's protocol LL, and in all. The receiver keeps them.
inline constexpr std::size_t kMostEarly = 32;
inline constexpr std::uint64_t kMostEarlyBytes = 64 * 1024;
inline constexpr std::uint64_t kMostEarlyTotal = 8 * kMostEarlyBytes;
// Of a comm; NCCL has few. More would be memory of the other side's choosing.
inline constexpr std::size_t kMostTags = 4096;

using Key = std::array<std::byte, 16>;

// Whose tuner NCCL asks.
enum class RankTuner : std::uint8_t {
  kThisLibrary = 0,
  kNone = 1,
  kOther = 2,
  kNotFound = 3  // a variable names one that this library has not found
};

// What must be alike on all ranks (rank.h). Of NCCL's variables 0: not set.
struct RankWire {
  std::uint32_t build = 0;          // BuildNumber()
  std::uint32_t chunk_bytes = 0;    // NCCL_P2P_NET_CHUNKSIZE
  std::uint8_t devices = 0;         // as which the NIC is shown
  std::uint8_t min_channels = 0;    // NCCL_MIN_NCHANNELS, or NCCL_MIN_NRINGS
  std::uint8_t max_channels = 0;    // NCCL_MAX_NCHANNELS, or NCCL_MAX_NRINGS
  std::uint8_t min_ctas = 0;        // NCCL_MIN_CTAS
  std::uint8_t max_ctas = 0;        // NCCL_MAX_CTAS
  std::uint8_t tuned_channels = 0;  // that the tuner keeps to; 0: it says nothing
  RankTuner tuner = RankTuner::kThisLibrary;
  std::uint8_t tuner_hash = 0;  // NcclTuner::hash
};
static_assert(sizeof(RankWire) == 16 && offsetof(RankWire, devices) == 8 &&
              offsetof(RankWire, tuner_hash) == 15);

// What a listen comm is reached by. NCCL takes the handle to the connecting side by ways of its
// own; whoever has it may connect.
struct ListenAddress {
  std::uint64_t listen = 0;
  Key key{};
  std::vector<net::Address> at;  // at most kMaxAddresses
  std::uint16_t version = kWireVersion;
  RankWire rank{};  // of the side that listens; of this version only
};
inline constexpr std::size_t kMaxAddresses = 4;

// ListenAddress in NCCL's handle. All before `rank` is the same in all versions from kFirstAlike
// on. `attempt` belongs to the side that connects, which is given the
// same memory again and again.
struct HandleWire {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t port;
  std::uint64_t listen;
  Key key;
  std::uint8_t addresses;
  std::uint8_t families[kMaxAddresses];  // 4 or 6
  std::uint8_t zero[3];
  std::uint8_t hosts[kMaxAddresses][16];
  RankWire rank;
  std::uint64_t attempt;  // 0: none yet
};
static_assert(sizeof(HandleWire) == abi::kHandleBytes && offsetof(HandleWire, key) == 16 &&
              offsetof(HandleWire, addresses) == 32 && offsetof(HandleWire, hosts) == 40 &&
              offsetof(HandleWire, rank) == 104 && offsetof(HandleWire, attempt) == 120);

// `handle` is kHandleBytes of any alignment. Errors: kInvalidArgument for an address that is none.
Status WriteHandle(const ListenAddress& address, void* handle);
// Errors: kInvalidArgument for bytes that are no handle, or one from before kFirstAlike.
Result<ListenAddress> ReadHandle(const void* handle);
std::uint64_t AttemptOf(const void* handle) noexcept;
void SetAttempt(void* handle, std::uint64_t attempt) noexcept;

enum class FrameType : std::uint8_t {
  kHello = 1,
  kData = 2,
  kCredit = 3,
  kBeat = 4,
  kAsk = 5,
  kBye = 6,
  kWelcome = 7,
  kRefusal = 8
};

// First on each lane, from the sending side. All before `comm` is the same in all versions from
// kFirstAlike on.
struct HelloWire {
  FrameType type = FrameType::kHello;
  std::uint8_t zero = 0;
  std::uint16_t version = kWireVersion;
  std::uint16_t lane = 0;
  std::uint16_t lanes = 0;
  std::uint64_t listen = 0;
  Key key{};
  Uuid comm;
  std::uint64_t early_bytes = 0;  // what this sender sends at most before it is asked for
  RankWire rank;
};
static_assert(sizeof(HelloWire) == 72 && offsetof(HelloWire, comm) == 32 &&
              offsetof(HelloWire, rank) == 56);

// A piece of a message, which is the frame's payload. On lane 0 bytes follow that make the frame
// kLeastFrame bytes long; nobody looks at them.
struct DataWire {
  FrameType type = FrameType::kData;
  std::uint8_t zero[3] = {};
  std::int32_t tag = 0;
  std::uint64_t sequence = 0;  // among messages of this tag
  std::uint64_t total = 0;     // bytes of the message
  std::uint64_t offset = 0;    // of the piece
};
static_assert(sizeof(DataWire) == 32 && offsetof(DataWire, offset) == 24);

// Of two segments that are as long as this, and as each other, the second is acknowledged as it
// comes; of shorter ones when it is read, before the reader has it, which takes 2 to 3 us (Linux:
// tcp_measure_rcv_mss, TCP_MSS_DEFAULT).
inline constexpr std::size_t kLeastFrame = 544;

// kCredit: how many receives of a tag there have been so far. kAsk: how many the sender waits for.
// `entries` of these follow the type.
struct CountsWire {
  FrameType type = FrameType::kCredit;
  std::uint8_t zero[3] = {};
  std::uint32_t entries = 0;
};
struct CountWire {
  std::int32_t tag = 0;
  std::uint32_t zero = 0;
  std::uint64_t receives = 0;
};
static_assert(sizeof(CountsWire) == 8 && sizeof(CountWire) == 16);

struct BeatWire {
  FrameType type = FrameType::kBeat;
};

// On lane 0, of a sender that is about to close. The receiver says the same when it has come, and
// with it all that was sent there before.
struct ByeWire {
  FrameType type = FrameType::kBye;
};

// On lane 0, from the receiver: all lanes are there. Until then it may turn the sender away.
struct WelcomeWire {
  FrameType type = FrameType::kWelcome;
};

// On any lane, in place of a welcome: the process has no listen comm with this number and key, and
// will not have one. The sender does not dial again. The lane ends behind it.
struct RefusalWire {
  FrameType type = FrameType::kRefusal;
};

template <class Wire>
void StoreWire(const Wire& wire, std::vector<std::byte>* meta) {
  static_assert(std::is_trivially_copyable_v<Wire>);
  meta->resize(sizeof wire);
  std::memcpy(meta->data(), &wire, sizeof wire);
}
// Nothing where the metadata is not exactly one of these.
template <class Wire>
std::optional<Wire> LoadWire(std::span<const std::byte> meta) {
  static_assert(std::is_trivially_copyable_v<Wire>);
  Wire wire;
  if (meta.size() != sizeof wire) return std::nullopt;
  std::memcpy(&wire, meta.data(), sizeof wire);
  return wire;
}
// What hellos of all versions begin with; nothing where the metadata is shorter. The rest of it is
// as it is at first.
std::optional<HelloWire> LoadHelloHead(std::span<const std::byte> meta);
// As StoreWire, with zeros behind it where the payload is short.
void StorePadded(const DataWire& wire, std::uint64_t payload_bytes, std::vector<std::byte>* meta);
// Nothing where it is shorter than one of these, or longer than any padding.
std::optional<DataWire> LoadPadded(std::span<const std::byte> meta);
// Nothing where the frame is of another type, or they are not as many as it says.
std::optional<std::vector<CountWire>> LoadCounts(FrameType type, std::span<const std::byte> meta);
void StoreCounts(FrameType type, std::span<const CountWire> counts, std::vector<std::byte>* meta);

}  // namespace ferry::nccl_net
