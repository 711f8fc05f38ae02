// Entry point of the NCCL plugin's tests and of their peer processes.

#include <gtest/gtest.h>

#include "bindings/nccl_net/tests/nccl_peer.h"
#include "tests/support/peer_process.h"

// The tests, or one peer process of a test.
int main(int argc, char** argv) {
  const auto role = ferry::tests::RoleOf(argc, argv);
  const bool is_old = role == ferry::nccl_net::testing::kOldNcclRole;
  if (is_old || role == ferry::nccl_net::testing::kNcclRole) {
    ferry::tests::LinePipe parent = ferry::tests::JoinParent();
    return ferry::nccl_net::testing::RunNcclPeer(parent, is_old ? 8 : 12);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
