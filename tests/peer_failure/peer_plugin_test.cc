// Tests a peer process over a network plugin, with GPU memory on both sides: it works, dies and
// stands still.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/core/units.h"
#include "tests/load/placed_memory.h"
#include "tests/load/posted_operations.h"
#include "tests/support/echo_role.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Connection;
using transfer::Endpoint;
using transfer::Region;
using transfer::RemoteRegion;
using transfer::Rights;

constexpr std::uint64_t kBulk = 64 * kMiB;
constexpr const char* kGpus = "simulated:1:1:open";

Settings PluginSettings() {
  return FastSettings({std::string("provider=plugin:") + FERRY_STANDIN_LIBRARY,
                       std::string("devices=") + kGpus, "cuda_ipc=off", "lanes=2",
                       // A busy machine lets a peer wait that is not frozen; one that dies is
                       // noticed by its sockets.
                       "peer_timeout=60s"});
}

// A peer in the role "echo" with a region in its GPU's memory, and one in this process's.
class PeerOverPlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    // Plugins read it in both processes; without it they send nothing.
    ASSERT_EQ(::setenv("NCCL_DYNAMIC_CHUNK_SIZE", "524288", /*overwrite=*/1), 0);
    process_ = Must(PeerProcess::Start("echo"));
    std::string command = "endpoint";
    for (const std::string& setting : PluginSettings()) command += " " + setting;
    const auto there = Must(transfer::EndpointAddress::Parse(FromHex(Ask(command))));
    const std::string key = Ask(fmt::format("region {} 0", kBulk));
    here_.emplace(DevicesOf(kGpus), 0, kBulk);
    endpoint_.emplace(Must(Endpoint::Create(ConfigOf(PluginSettings()))));
    connection_.emplace(Must(endpoint_->Connect(there, TestDeadline())));
    local_.emplace(Must(endpoint_->Register(here_->span(), Rights::kReadWrite)));
    remote_ = Must(connection_->Import(FromHex(key)));
  }
  std::string Ask(const std::string& command) {
    process_->Command(command);
    return process_->Answer();
  }
  // Waits until data of a read has come over the plugin.
  void AwaitData(std::uint64_t bytes) {
    const Deadline deadline = TestDeadline();
    for (std::uint64_t received = 0; received < bytes && !deadline.expired();) {
      received = 0;
      for (const auto& lane : connection_->Counters().lanes) {
        received += lane.traffic.payload_bytes_received;
      }
      std::this_thread::yield();
    }
  }

  std::unique_ptr<PeerProcess> process_;
  std::optional<PlacedMemory> here_;
  std::optional<Endpoint> endpoint_;
  std::optional<Connection> connection_;
  std::optional<Region> local_;
  RemoteRegion remote_;
};

TEST_F(PeerOverPlugin, WritesAndReadsItsGpuMemory) {
  const auto content = RandomBytes(kBulk, 1);
  here_->Put(content);
  MustDo(Must(connection_->Write(*local_, 0, remote_, 0, kBulk)).Wait(TestDeadline()));
  here_->Put(RandomBytes(kBulk, 2));
  MustDo(Must(connection_->Read(*local_, 0, remote_, 0, kBulk)).Wait(TestDeadline()));
  const auto back = here_->Look(kBulk);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), content.begin()));
  EXPECT_TRUE(here_->GuardsIntact());
  // The payloads needed no slots in host memory.
  EXPECT_EQ(endpoint_->Counters().staging.at(0).from_network.slots, 0U);
}

TEST_F(PeerOverPlugin, LeavesGpuMemoryAloneWhenItHasDied) {
  here_->Put(RandomBytes(kBulk, 1));
  PostedOperations posted;
  posted.Add("read", connection_->Read(*local_, 0, remote_, 0, kBulk));
  posted.Add("read again", connection_->Read(*local_, 0, remote_, 0, kBulk));
  AwaitData(kBulk / 8);
  process_->Kill();
  const Stopwatch since;
  posted.ExpectAllEnd(Code::kPeerLost, since, kPeerTimeout);
  const auto seen = here_->Look(kBulk);
  const std::vector<std::byte> right_after(seen.begin(), seen.end());
  local_.reset();
  connection_.reset();
  endpoint_.reset();
  const auto later = here_->Look(kBulk);
  EXPECT_TRUE(std::equal(later.begin(), later.end(), right_after.begin()));
  EXPECT_TRUE(here_->GuardsIntact());
  posted.ExpectEndedOnce();
}

TEST_F(PeerOverPlugin, MayStandStillPastADeadlineAndGoOn) {
  here_->Put(RandomBytes(kBulk, 1));
  MustDo(process_->Stop(TestDeadline()));
  const auto before = here_->Look(kBulk);
  const std::vector<std::byte> expected(before.begin(), before.end());
  auto read = Must(connection_->Read(*local_, 0, remote_, 0, kBulk,
                                     {.deadline = Deadline::After(milliseconds(200))}));
  const Status ended = read.Wait(TestDeadline());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), Code::kTimedOut) << ended.error().ToString();
  process_->Continue();
  // Data that it sends now is dropped.
  MustDo(Must(connection_->Notify(RandomBytes(1, 1))).Wait(TestDeadline()));
  const auto later = here_->Look(kBulk);
  EXPECT_TRUE(std::equal(later.begin(), later.end(), expected.begin()));
  MustDo(Must(connection_->Write(*local_, 0, remote_, 0, kBulk)).Wait(TestDeadline()));
}

}  // namespace
}  // namespace ferry::tests
