// Entry point of the NIXL back end's tests and of their peer processes.
#include <gtest/gtest.h>

#include "plugins/nixl/tests/nixl_peer.h"
#include "tests/support/peer_process.h"

// The tests, or one peer process of a test.
int main(int argc, char** argv) {
  if (ferry::tests::RoleOf(argc, argv) == ferry::nixl::testing::kAgentRole) {
    ferry::tests::LinePipe parent = ferry::tests::JoinParent();
    return ferry::nixl::testing::RunAgentPeer(parent);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
