// Compares the settings of two ranks.
#include "plugins/nccl/rank.h"

#include <elf.h>
#include <fmt/core.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "ferry/core/build_commit.h"
#include "ferry/core/version.h"

namespace ferry::nccl_net {
namespace {

constexpr std::size_t kBuildDigits = 8;  // digits that fit into 32 bits

// The first bytes of the build ID in the notes of a program header; nothing if it has none.
std::optional<std::uint32_t> BuildIdIn(std::span<const std::byte> notes, std::size_t alignment) {
  const auto padded = [&](std::size_t bytes) { return (bytes + alignment - 1) & ~(alignment - 1); };
  ElfW(Nhdr) head{};
  while (notes.size() >= sizeof head) {
    std::memcpy(&head, notes.data(), sizeof head);
    const std::size_t name = padded(head.n_namesz);
    const std::size_t whole = sizeof head + name + padded(head.n_descsz);
    if (whole > notes.size()) break;
    const auto id = notes.subspan(sizeof head + name, head.n_descsz);
    const bool is_gnu = head.n_namesz == sizeof ELF_NOTE_GNU &&
                        std::memcmp(&notes[sizeof head], ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0;
    if (is_gnu && head.n_type == NT_GNU_BUILD_ID && id.size() >= sizeof(std::uint32_t)) {
      std::uint32_t number = 0;
      for (const std::byte each : id.first(sizeof number)) {
        number = number << 8 | std::to_integer<std::uint32_t>(each);
      }
      return number;
    }
    notes = notes.subspan(whole);
  }
  return std::nullopt;
}

std::uint32_t BuildOfCommit() {
  const std::string_view commit = BuiltFrom().commit;
  if (commit.size() >= kBuildDigits) {
    const std::string digits(commit.substr(0, kBuildDigits));
    return static_cast<std::uint32_t>(std::strtoul(digits.c_str(), nullptr, 16));
  }
  // Without a commit, the version identifies the build: FNV-1a.
  std::uint32_t hash = 2166136261U;
  for (const char each : std::string_view(FERRY_VERSION)) {
    hash = (hash ^ static_cast<unsigned char>(each)) * 16777619U;
  }
  return hash;
}

// The result of searching the loaded objects for the one that contains this code.
struct OwnObject {
  std::optional<std::uint32_t> build_id;
};
int LookAtObject(dl_phdr_info* info, std::size_t /*bytes*/, void* own_object) {
  const auto segments = std::span(info->dlpi_phdr, info->dlpi_phnum);
  // As a number, for comparison with segment bounds.
  const auto code = reinterpret_cast<ElfW(Addr)>(&BuildOfCommit);
  const bool is_own = std::any_of(segments.begin(), segments.end(), [&](const auto& segment) {
    const ElfW(Addr) begin = info->dlpi_addr + segment.p_vaddr;
    return segment.p_type == PT_LOAD && code >= begin && code - begin < segment.p_memsz;
  });
  if (!is_own) return 0;
  auto& found = static_cast<OwnObject*>(own_object)->build_id;
  for (const auto& segment : segments) {
    if (segment.p_type != PT_NOTE || found) continue;
    const auto* const begin =
        reinterpret_cast<const std::byte*>(info->dlpi_addr + segment.p_vaddr);  // NOLINT: as loaded
    found = BuildIdIn({begin, segment.p_memsz}, segment.p_align == 8 ? 8 : 4);
  }
  return 1;
}

// The first bytes of the build ID that the linker computed from this file's content, so that two
// builds of one commit with different changes differ. Without a build ID, the commit's.
std::uint32_t BuildNumber() {
  OwnObject own;
  (void)::dl_iterate_phdr(LookAtObject, &own);
  return own.build_id.value_or(BuildOfCommit());
}

// The value that NCCL will read, in place of a smaller one `least`: 0 if the variable is not set.
template <class Number>
Number ValueOf(const char* name, const NcclRequest& request, const Config::Getter& get,
               long long least = 0) {
  const auto set = std::find_if(request.variables.begin(), request.variables.end(),
                                [&](const auto& one) { return one.first == name; });
  const char* const text = set != request.variables.end() ? set->second.c_str() : get(name);
  if (text == nullptr || *text == '\0') return 0;
  constexpr long long kMax = std::numeric_limits<Number>::max();
  return static_cast<Number>(std::clamp(std::strtoll(text, nullptr, 0), least, kMax));
}

// NCCL prefers the newer name of a variable over the older one.
std::uint8_t BoundOf(const char* name, const char* older, const NcclRequest& request,
                     const Config::Getter& get, long long least) {
  const auto value = ValueOf<std::uint8_t>(name, request, get, least);
  return value != 0 ? value : ValueOf<std::uint8_t>(older, request, get, least);
}

std::string NumberText(std::uint32_t value) {
  return value == 0 ? "not set" : std::to_string(value);
}

const char* TunerText(RankTuner tuner) {
  switch (tuner) {
    case RankTuner::kThisLibrary: return "this plugin's";
    case RankTuner::kNone: return "none";
    case RankTuner::kOther: return "another library's";
    case RankTuner::kNotFound: return "named and not found";
  }
  return "unknown";
}

const char* LinkText(GpuLink link) {
  switch (link) {
    case GpuLink::kUnknown: break;
    case GpuLink::kDirect: return "direct";
    case GpuLink::kSwitch: return "through a PCIe switch";
  }
  return "unknown";
}

class Differences {
 public:
  explicit Differences(const std::string& peer) : peer_(peer) {}
  void Add(const char* what, const std::string& own, const std::string& others) {
    if (own == others) return;
    text_ += fmt::format("{}{} is {} here and {} at {}", text_.empty() ? "" : "; ", what, own,
                         others, peer_);
  }
  const std::string& text() const { return text_; }

 private:
  const std::string& peer_;
  std::string text_;
};

}  // namespace

RankWire RankOf(const NcclRequest& request, const NcclTuner& tuner, const Config::Getter& get) {
  RankWire rank;
  rank.tuner = tuner.whose;
  rank.tuner_hash = tuner.hash;
  rank.devices = static_cast<std::uint8_t>(request.devices);
  rank.min_channels = BoundOf("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS", request, get, 0);
  // NCCL takes less than 1 for 1.
  rank.max_channels = BoundOf("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", request, get, 1);
  rank.min_ctas = ValueOf<std::uint8_t>("NCCL_MIN_CTAS", request, get);
  rank.max_ctas = ValueOf<std::uint8_t>("NCCL_MAX_CTAS", request, get);
  rank.tuned_channels = static_cast<std::uint8_t>(request.tuned_channels);
  rank.peer_channels = ValueOf<std::uint8_t>("NCCL_NCHANNELS_PER_NET_PEER", request, get);
  rank.channel_gbps = ValueOf<std::uint8_t>("NCCL_P2P_PER_CHANNEL_NET_BW", request, get);
  rank.gpu_link = request.gpu_link;
  rank.chunk_bytes = ValueOf<std::uint32_t>("NCCL_P2P_NET_CHUNKSIZE", request, get);
  rank.build = BuildNumber();
  return rank;
}

std::optional<Error> FindDifference(const RankWire& own, const RankWire& others,
                                    const std::string& peer) {
  Differences found(peer);
  found.Add("the build of libnccl-net-ferry.so", fmt::format("{:08x}", own.build),
            fmt::format("{:08x}", others.build));
  found.Add("the number of devices (set FERRY_NCCL_DEVICES=1 on all ranks)",
            NumberText(own.devices), NumberText(others.devices));
  found.Add("NCCL_MIN_NCHANNELS (which FERRY_NCCL_CHANNELS sets)", NumberText(own.min_channels),
            NumberText(others.min_channels));
  found.Add("NCCL_MAX_NCHANNELS", NumberText(own.max_channels), NumberText(others.max_channels));
  found.Add("NCCL_MIN_CTAS", NumberText(own.min_ctas), NumberText(others.min_ctas));
  found.Add("NCCL_MAX_CTAS", NumberText(own.max_ctas), NumberText(others.max_ctas));
  found.Add("NCCL_NCHANNELS_PER_NET_PEER", NumberText(own.peer_channels),
            NumberText(others.peer_channels));
  found.Add("NCCL_P2P_PER_CHANNEL_NET_BW", NumberText(own.channel_gbps),
            NumberText(others.channel_gbps));
  found.Add("the GPUs' connection to the CPU (set FERRY_NCCL_DEVICES=1 on all ranks)",
            LinkText(own.gpu_link), LinkText(others.gpu_link));
  found.Add("NCCL_P2P_NET_CHUNKSIZE", NumberText(own.chunk_bytes), NumberText(others.chunk_bytes));
  found.Add("NCCL's tuner (NCCL_TUNER_PLUGIN, libnccl-tuner.so)", TunerText(own.tuner),
            TunerText(others.tuner));
  if (own.tuner == others.tuner) {
    found.Add("that tuner's file (a hash of its name and size)",
              fmt::format("{:02x}", own.tuner_hash), fmt::format("{:02x}", others.tuner_hash));
  }
  found.Add("the number of channels that the tuner keeps to (FERRY_NCCL_CHANNELS)",
            NumberText(own.tuned_channels), NumberText(others.tuned_channels));
  if (found.text().empty()) return std::nullopt;
  return Error(Code::kInvalidArgument,
               fmt::format("{}; NCCL may hang where ranks differ: give all of them the same "
                           "variables and the same libnccl-net-ferry.so",
                           found.text()));
}

Error OtherVersion(std::uint16_t others, const std::string& peer) {
  return Error(Code::kInvalidArgument,
               fmt::format("the protocol of libnccl-net-ferry.so is version {} here and another "
                           "version, {}, at {}; use the same file on all nodes",
                           kWireVersion, others, peer));
}

Error ListenCommClosed(const std::string& peer) {
  return Error(Code::kRefused,
               fmt::format("{} closed the listen comm of this handle; call listen there again and "
                           "connect with the new handle",
                           peer));
}

}  // namespace ferry::nccl_net
