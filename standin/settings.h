// Settings of the stand-in and the faults that it injects.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace ferry::standin {

// Faults that the stand-in injects; docs/tcpx_standin.md describes the effect of each.
enum class Fault {
  kNone,
  kIsendRc2,
  kIrecvRc3,
  kTestRc2,
  kExitNoCmsg,
  kStuckCount,
  kCountStaysZero,
  kOversize,
  kShort,
  kOverlap,
  kOutOfPool,
  kWrap,
  kZeroLength,
  kSlowPeer,
  kHalfClose,
  kConnectNever,
  kConnectFail,
  kAcceptFail,
  kInitFail,
  kNoDevices,
  kBadRow,
};

enum class Cut { kFixed, kRandom, kTiny, kMerged };

// The bounce pools: memory of the host's, of GPUs, or of the host's that GPUs reach.
enum class Where { kHost, kGpu, kMapped };

// The variables FERRY_STANDIN_..., in the order of the table of docs/tcpx_standin.md.
struct Settings {
  int nics = 2;
  int polls = 2;
  bool immediate = false;
  int sockets = 2;
  std::uint32_t chunk = 64 * 1024;        // bytes
  std::uint64_t pool = 64 * 1024 * 1024;  // bytes, of each device
  std::uint32_t together = 1;             // pages
  std::uint32_t spread = 1;               // pages
  Cut cut = Cut::kFixed;
  std::uint32_t fragment = 4096;  // bytes, with Cut::kFixed
  std::uint64_t seed = 1;
  Fault fault = Fault::kNone;
  std::uint64_t fault_at = 1;
  int delay_ms = 20;
  bool abort = false;
  Where memory = Where::kHost;
  std::string driver = "libcuda.so.1";
};

// Nothing if a variable cannot be understood; `*problem` then says which.
std::optional<Settings> ReadSettings(std::string* problem);

// FERRY_STANDIN_NAME, or "GPUDirectTCPX_v7".
const char* PluginName();

}  // namespace ferry::standin
