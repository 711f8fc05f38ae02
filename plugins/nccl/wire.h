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
#include "ferry/core/secret.h"
#include "ferry/net/address.h"
#include "ferry/net/nccl_abi/abi.h"

// Bytes that go from one process to another: in NCCL's handles, and as the metadata of frames.
// Little-endian. A frame of another version ends its lane.
namespace ferry::nccl_net {

namespace abi = net::nccl_abi;

inline constexpr std::uint16_t kWireVersion = 8;
// From this version on, handles begin alike in all versions, and hello frames from version 7 on, so
// that ranks with different versions can tell each other.
inline constexpr std::uint16_t kFirstAlike = 5;

// What a sender may send on lane 0 without a credit, over all tags: the number of messages, the
// bytes of each (one step of NCCL's protocol LL), and the bytes in total. The receiver keeps them
// until their receives are posted.
inline constexpr std::size_t kMaxEarly = 32;
inline constexpr std::uint64_t kMaxEarlyBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxEarlyTotal = 8 * kMaxEarlyBytes;
// Tags per comm; NCCL uses few. The limit bounds the memory that the other side can make us
// allocate.
inline constexpr std::size_t kMaxTags = 4096;

using Key = std::array<std::byte, 16>;
// The key as the secret of a session.
Secret SecretOf(const Key& key);

// Which tuner NCCL asks.
enum class RankTuner : std::uint8_t {
  kThisLibrary = 0,
  kNone = 1,
  kOther = 2,
  kNotFound = 3  // a variable names one that this library has not found
};

// How GPUs are connected to the CPU.
enum class GpuLink : std::uint8_t { kUnknown = 0, kDirect = 1, kSwitch = 2 };

// Values that must be equal on all ranks (rank.h). For NCCL's variables, 0 means not set.
struct RankWire {
  std::uint32_t build = 0;          // BuildNumber()
  std::uint32_t chunk_bytes = 0;    // NCCL_P2P_NET_CHUNKSIZE
  std::uint8_t devices = 0;         // as which the NIC is shown
  std::uint8_t min_channels = 0;    // NCCL_MIN_NCHANNELS, or NCCL_MIN_NRINGS
  std::uint8_t max_channels = 0;    // NCCL_MAX_NCHANNELS, or NCCL_MAX_NRINGS
  std::uint8_t min_ctas = 0;        // NCCL_MIN_CTAS
  std::uint8_t max_ctas = 0;        // NCCL_MAX_CTAS
  std::uint8_t tuned_channels = 0;  // channels that the tuner keeps to; 0: it does nothing
  RankTuner tuner = RankTuner::kThisLibrary;
  std::uint8_t tuner_hash = 0;     // NcclTuner::hash
  std::uint8_t peer_channels = 0;  // NCCL_NCHANNELS_PER_NET_PEER
  std::uint8_t channel_gbps = 0;   // NCCL_P2P_PER_CHANNEL_NET_BW
  // Only where NCCL counts channels by it: up to 2.28, with several devices. kUnknown otherwise.
  GpuLink gpu_link = GpuLink::kUnknown;
  std::uint8_t zero = 0;
};
static_assert(sizeof(RankWire) == 20 && offsetof(RankWire, devices) == 8 &&
              offsetof(RankWire, tuner_hash) == 15 && offsetof(RankWire, gpu_link) == 18);

// The address of a listen comm. NCCL passes the handle to the connecting side by its own means;
// whoever has it may connect.
struct ListenAddress {
  std::uint64_t listen = 0;
  Key key{};
  std::vector<net::Address> at;  // at most kMaxAddresses
  std::uint16_t version = kWireVersion;
  RankWire rank{};  // of the listening side; valid for this version only
};
inline constexpr std::size_t kMaxAddresses = 4;

// ListenAddress in NCCL's handle. Everything before `rank` but `rank_end` is the same in all
// versions from kFirstAlike on. `attempt` belongs to the connecting side, which gets the same
// memory in each call.
struct HandleWire {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t port;
  std::uint64_t listen;
  Key key;
  std::uint8_t addresses;
  std::uint8_t families[kMaxAddresses];  // 4 or 6
  std::uint8_t rank_end[3];              // bytes 16 to 18 of a RankWire; zeros in version 5
  std::uint8_t hosts[kMaxAddresses][16];
  std::uint8_t rank[16];  // the first bytes of a RankWire
  std::uint64_t attempt;  // 0: none yet
};
static_assert(sizeof(HandleWire) == abi::kHandleBytes && offsetof(HandleWire, key) == 16 &&
              offsetof(HandleWire, addresses) == 32 && offsetof(HandleWire, hosts) == 40 &&
              offsetof(HandleWire, rank) == 104 && offsetof(HandleWire, attempt) == 120);

// `handle` is kHandleBytes of any alignment. Errors: kInvalidArgument for an address that is not
// numeric.
Status WriteHandle(const ListenAddress& address, void* handle);
// Errors: kInvalidArgument for bytes that are not a handle, or for a handle from before
// kFirstAlike.
Result<ListenAddress> ReadHandle(const void* handle);
std::uint64_t AttemptOf(const void* handle) noexcept;
void SetAttempt(void* handle, std::uint64_t attempt) noexcept;

enum class FrameType : std::uint8_t {
  kData = 2,
  kCredit = 3,
  kBeat = 4,
  kAsk = 5,
  kBye = 6,
  kWelcome = 7
};

// The body of the session's hello frame on each lane. Everything before `comm` is the same in all
// versions from 7 on. The secret that both sides prove is the key of the handle.
struct HelloWire {
  std::uint16_t version = kWireVersion;
  std::uint16_t lane = 0;
  std::uint16_t lanes = 0;
  std::uint16_t zero = 0;
  std::uint64_t listen = 0;
  Uuid comm;
  std::uint64_t early_bytes = 0;  // largest message that this sender sends without a credit
  RankWire rank;
  std::uint32_t zero_end = 0;
};
static_assert(sizeof(HelloWire) == 64 && offsetof(HelloWire, comm) == 16 &&
              offsetof(HelloWire, rank) == 40);

// A piece of a message, which is the frame's payload. On lane 0 padding makes the frame kMinFrame
// bytes long; its content is ignored.
struct DataWire {
  FrameType type = FrameType::kData;
  std::uint8_t zero[3] = {};
  std::int32_t tag = 0;
  std::uint64_t sequence = 0;  // among messages of this tag
  std::uint64_t total = 0;     // bytes of the message
  std::uint64_t offset = 0;    // of the piece
};
static_assert(sizeof(DataWire) == 32 && offsetof(DataWire, offset) == 24);

// Minimum frame size on lane 0. When two segments have at least this length, and the same one,
// Linux acknowledges the second on arrival; shorter segments are acknowledged when they are read,
// before the reader gets them, which takes 2 to 3 us (tcp_measure_rcv_mss, TCP_MSS_DEFAULT).
inline constexpr std::size_t kMinFrame = 544;

// kCredit: the number of receives posted so far, by tag. kAsk: the number that the sender waits
// for. `entries` CountWires follow.
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

// On lane 0, from a sender that is about to close. The receiver answers with the same frame when
// this one, and so everything sent before it on this lane, has arrived.
struct ByeWire {
  FrameType type = FrameType::kBye;
};

// On lane 0, from the receiver: all lanes are up. Before this it may turn the sender away.
struct WelcomeWire {
  FrameType type = FrameType::kWelcome;
};

template <class Wire>
void StoreWire(const Wire& wire, std::vector<std::byte>* meta) {
  static_assert(std::is_trivially_copyable_v<Wire>);
  meta->resize(sizeof wire);
  std::memcpy(meta->data(), &wire, sizeof wire);
}
// Returns nothing unless the metadata is exactly one of these.
template <class Wire>
std::optional<Wire> LoadWire(std::span<const std::byte> meta) {
  static_assert(std::is_trivially_copyable_v<Wire>);
  Wire wire;
  if (meta.size() != sizeof wire) return std::nullopt;
  std::memcpy(&wire, meta.data(), sizeof wire);
  return wire;
}
// The part that hello frames of all versions begin with; the other fields keep their defaults.
// Returns nothing where the body is shorter.
std::optional<HelloWire> LoadHelloHead(std::span<const std::byte> body);
// As StoreWire, with zeros after it where the payload is short.
void StorePadded(const DataWire& wire, std::uint64_t payload_bytes, std::vector<std::byte>* meta);
// Returns nothing where the metadata is shorter than one of these, or longer than any padding
// allows.
std::optional<DataWire> LoadPadded(std::span<const std::byte> meta);
// Returns nothing where the frame has another type, or the count does not match its size.
std::optional<std::vector<CountWire>> LoadCounts(FrameType type, std::span<const std::byte> meta);
void StoreCounts(FrameType type, std::span<const CountWire> counts, std::vector<std::byte>* meta);

}  // namespace ferry::nccl_net
