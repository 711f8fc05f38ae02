// A peer process with an agent and a back end.
#pragma once
#include <string>

#include "tests/support/peer_process.h"

namespace ferry::nixl::testing {

inline constexpr const char* kAgentRole = "agent";
inline constexpr const char* kPeerName = "peer";

// The commands: "create [NAME=VALUE...]" makes the agent, "memory BYTES SEED" registers memory that
// has the pattern: answers its address; "metadata"; "load METADATA"; "digest": of all memory;
// "register OFFSET BYTES" registers a part of it, too; "deregister OFFSET BYTES [TIMES]"; "notify
// NAME BYTES COUNT": sends them; "await COUNT": takes notifications and answers
// "SENDER:BYTES:DIGEST" of each; "destroy" ends the agent and answers "ok" once the process has as
// many threads and descriptors as it had at the start.
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

// The number of threads and descriptors of this process.
struct Holdings {
  // Starts and joins a thread first: with the first thread the sanitizer starts one of its own.
  static Holdings AtStart();

  // Waits until the process has as many again, because a joined thread stays in /proc for a moment.
  // Answers an empty text, or after the tests' deadline a sentence with both counts.
  [[nodiscard]] std::string Difference() const;

  std::size_t threads = 0;
  std::size_t descriptors = 0;
};

}  // namespace ferry::nixl::testing
