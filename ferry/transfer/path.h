// The direction of a transfer, and how its bytes go.
#pragma once
#include <cstdint>
#include <string>

namespace ferry::transfer {

// How bytes come from one side to the other.
enum class Path : std::uint8_t {
  kNetwork,  // over the lanes
  kGpuCopy,  // by the peer's copies between GPU memory of this machine
  kBoth,     // some parts so, some so
};
const char* PathName(Path path) noexcept;  // "network", "gpu-copy", "both"
struct PathReport {
  Path path = Path::kNetwork;
  std::string why;  // of the first part, in words
};

enum class Direction : std::uint8_t { kWrite, kRead };

}  // namespace ferry::transfer
