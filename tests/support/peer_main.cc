// Entry point of the tests with several processes and of their peer roles.

#include <gtest/gtest.h>

#include <string_view>

#include "tests/limits/limits_role.h"
#include "tests/links/load_meter.h"
#include "tests/support/echo_role.h"
#include "tests/support/engine_peer.h"
#include "tests/support/peer_process.h"
#include "tests/support/raw_role.h"

namespace {

class EachTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override { ferry::tests::RestartLoadMeter(); }
};

}  // namespace

// The tests, or one peer process of a test.
int main(int argc, char** argv) {
  using ferry::tests::LinePipe;
  if (const std::string_view role = ferry::tests::RoleOf(argc, argv); !role.empty()) {
    LinePipe parent = ferry::tests::JoinParent();
    if (role == "engine") return ferry::tests::RunEnginePeer(parent);
    if (role == "limited") return ferry::tests::RunLimitedPeer(parent);
    if (role == "raw") return ferry::tests::RunRawPeer(parent);
    if (role == "echo") return ferry::tests::RunEchoPeer(parent);
    return 2;
  }
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new EachTest);
  return RUN_ALL_TESTS();
}
