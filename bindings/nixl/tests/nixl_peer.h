// A peer process with an agent and a back end.
#pragma once
#include "tests/support/peer_process.h"

namespace ferry::nixl::testing {

inline constexpr const char* kAgentRole = "agent";
inline constexpr const char* kPeerName = "peer";

// The commands: "create [NAME=VALUE...]" makes the agent, "memory BYTES SEED" registers memory that
// has the pattern: answers its address; "metadata"; "load METADATA"; "digest": of all memory;
// "deregister"; "notify NAME BYTES COUNT": sends them; "await COUNT": takes notifications and
// answers "SENDER:BYTES:DIGEST" of each; "threads" and "descriptors": how many there are;
// "destroy".
int RunAgentPeer(tests::LinePipe& parent);

// The byte at `index` of a pattern.
constexpr std::byte PatternAt(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t word = (seed * 0x9e3779b97f4a7c15ULL + index / 8) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<std::byte>((word ^ (word >> 29)) >> (index % 8 * 8));
}
std::vector<std::byte> Pattern(std::uint64_t seed, std::size_t bytes);
std::uint32_t DigestOf(std::span<const std::byte> bytes);
std::string Text(std::uint64_t seed, std::size_t bytes);
std::uint32_t DigestOf(std::string_view text);
std::size_t Threads();

}  // namespace ferry::nixl::testing
