// The header of each frame on a TCP lane.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ferry::net::tcp {

// The header that precedes each frame on a TCP lane (docs/wire.md); little-endian, as on every
// machine that CUDA runs on.
struct FramePrefix {
  std::uint32_t magic = kMagic;
  std::uint32_t meta_bytes = 0;
  std::uint64_t payload_bytes = 0;

  static constexpr std::uint32_t kMagic = 0x59525246;  // the bytes "FRRY"
};
static_assert(sizeof(FramePrefix) == 16);
static_assert(offsetof(FramePrefix, payload_bytes) == 8);

}  // namespace ferry::net::tcp
