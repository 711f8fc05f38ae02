// A peer process that drives the NCCL plugin.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "plugins/nccl/tests/testing/nccl_host.h"
#include "tests/support/peer_process.h"

namespace ferry::nccl_net::testing {

inline constexpr const char* kNcclRole = "nccl";          // of the newest version
inline constexpr const char* kOldNcclRole = "nccl-2.20";  // of one before 2.24

// Variables for the tests' processes: the version that their NCCL states (by default the newest),
// and the hard limit of descriptors of a peer process.
inline constexpr const char* kNcclVersion = "TEST_NCCL_VERSION";
inline constexpr const char* kDescriptors = "TEST_DESCRIPTORS";

// A process that uses the plugin, as its parent sees it.
class AskedPeer {
 public:
  AskedPeer() = default;
  AskedPeer(std::unique_ptr<tests::PeerProcess> process)  // NOLINT: implicit, it is nothing more
      : process_(std::move(process)) {}

  AskedPeer* operator->() noexcept { return this; }
  pid_t pid() const noexcept { return process_->pid(); }
  void Command(std::string_view line) { process_->Command(line); }
  std::string Answer() { return process_->Answer(); }
  std::string Ask(std::string_view line) {
    Command(line);
    return Answer();
  }
  void ExpectLogged(const std::string& text) { EXPECT_EQ(Ask("logged " + text), text); }
  void Kill() { process_->Kill(); }
  Status Stop(Deadline deadline) { return process_->Stop(deadline); }
  Result<int> WaitExit(Deadline deadline) { return process_->WaitExit(deadline); }

 private:
  std::unique_ptr<tests::PeerProcess> process_;
};

Handle HandleOf(const std::string& hex);

// The peer's main: listen, connect HANDLE, accept, echo BYTES, sink BYTES, stream BYTES COUNT (both
// ways at once), variable NAME (its value), logged TEXT (which is the answer where it was, and the
// log where it was not), devices (their number), last BYTES (and closes), compare BYTES COUNT (with
// PatternOf, one after another, and closes). Where init fails, so does each of these, with its
// error.
int RunNcclPeer(tests::LinePipe& parent, int version);

}  // namespace ferry::nccl_net::testing
