// Two agents in two processes, for tests.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugins/nixl/tests/nixl_peer.h"
#include "plugins/nixl/tests/testing/standin_agent.h"
#include "tests/support/engine_peer.h"

namespace ferry::nixl::testing {

inline constexpr const char* kOwnName = "tested";
inline constexpr std::uint64_t kOwnSeed = 1;
inline constexpr std::uint64_t kPeerSeed = 2;

// Timeouts of tenths of seconds instead of seconds.
abi::Params FastParams(const abi::Params& more = {});

// An agent here and one in another process, each with memory that has a pattern, which have loaded
// each other.
class AgentsTest : public ::testing::Test {
 protected:
  void Begin(std::size_t bytes, const abi::Params& params = FastParams());
  // The same without loading.
  void Start(std::size_t bytes, const abi::Params& params = FastParams());
  std::string Ask(std::string_view line);
  static Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }
  std::uint32_t PeerDigest() { return static_cast<std::uint32_t>(std::stoul(Ask("digest"))); }
  // A range of the own memory, of the peer's.
  Range Own(std::size_t offset, std::size_t bytes) const;
  Range Peers(std::size_t offset, std::size_t bytes) const {
    return {peer_address_ + offset, bytes};
  }
  StandInAgent::Transfer Prepare(abi::Direction direction, std::size_t bytes);

  std::unique_ptr<tests::PeerProcess> peer_;
  std::vector<std::byte> memory_;
  std::optional<StandInAgent> agent_;  // after its memory
  std::uintptr_t peer_address_ = 0;
};

}  // namespace ferry::nixl::testing
