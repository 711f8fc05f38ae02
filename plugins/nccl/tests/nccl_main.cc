// Entry point of the NCCL plugin's tests and of their peer processes.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>

#include "ferry/net/nccl_abi/abi.h"
#include "plugins/nccl/tests/nccl_peer.h"
#include "tests/support/peer_process.h"

// As NCCL's: the plugin finds it in the object that its logger belongs to. All tables of a process
// share an engine, so they must be those of one version.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {  // NOLINT
  constexpr int kNewest = 23007;
  const char* const text = std::getenv(ferry::nccl_net::testing::kNcclVersion);
  *version = text == nullptr ? kNewest : std::atoi(text);
  return ferry::net::nccl_abi::kSuccess;
}

namespace {

void LimitDescriptors() {
  const char* const text = std::getenv(ferry::nccl_net::testing::kDescriptors);
  if (text == nullptr) return;
  const auto most = static_cast<rlim_t>(std::atoi(text));
  const rlimit limit{most, most};
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

// The tests, or one peer process of a test.
int main(int argc, char** argv) {
  const auto role = ferry::tests::RoleOf(argc, argv);
  const bool is_old = role == ferry::nccl_net::testing::kOldNcclRole;
  if (is_old || role == ferry::nccl_net::testing::kNcclRole) {
    LimitDescriptors();
    ferry::tests::LinePipe parent = ferry::tests::JoinParent();
    return ferry::nccl_net::testing::RunNcclPeer(parent, is_old ? 8 : 12);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
