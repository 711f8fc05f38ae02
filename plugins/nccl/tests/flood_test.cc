// A flood of pending peers that prove nothing.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/log_limiter.h"
#include "plugins/nccl/tests/nccl_peer.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "plugins/nccl/tests/testing/raw_sender.h"
#include "tests/support/peer_process.h"

namespace ferry::nccl_net {
namespace {

using testing::NcclConnect;
using testing::NcclHost;
using testing::RawSender;
using testing::Require;
using testing::WaitFor;
using tests::TestDeadline;

constexpr std::size_t kPlaces = 64;    // the least that the setting allows
constexpr std::size_t kOwnLanes = 64;  // more than a comm has
constexpr std::size_t kSilent = 300;

std::size_t DescriptorsOf(pid_t process) {
  const std::filesystem::directory_iterator all(fmt::format("/proc/{}/fd", process));
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// A listening process with few places for pending peers, whose log is captured.
class PendingPeerFlood : public ::testing::Test {
 protected:
  PendingPeerFlood() {
    ::testing::internal::CaptureStderr();  // the peer's, too
    (void)::setenv("FERRY_MAX_PENDING_HANDSHAKES", std::to_string(kPlaces).c_str(), 1);
    (void)::setenv("FERRY_HANDSHAKE_TIMEOUT", "2s", 1);
    peer_ = tests::Must(tests::PeerProcess::Start(testing::kNcclRole));
    (void)::unsetenv("FERRY_MAX_PENDING_HANDSHAKES");
    (void)::unsetenv("FERRY_HANDSHAKE_TIMEOUT");
    handle_ = testing::HandleOf(peer_->Ask("listen"));
  }

  // Connects as a rank of the job does, sends a message, and closes.
  void Exchange() {
    peer_->Command("accept");
    void* const send = NcclConnect(&host_, handle_).Connect(TestDeadline());
    peer_->Answer();
    peer_->Command("last 9");
    std::vector<std::byte> message(9);
    void* request = nullptr;
    Require(host_->Send(send, {message.data(), message.size(), 1, nullptr}, &request), "isend");
    Require(WaitFor(host_, request, nullptr, TestDeadline()), "test");
    peer_->Answer();
    Require(host_->CloseSend(send), "closeSend");
  }
  // Says the first bytes of a hello frame of another listen comm, and perhaps garbage as its rest.
  void Say(std::size_t bytes, bool garbage) {
    RawSender& sender = Connect();
    HelloWire hello = sender.Hello();
    hello.listen += 1;
    auto frame = RawSender::HelloBytes(hello);
    std::fill(frame.begin() + static_cast<std::ptrdiff_t>(bytes), frame.end(), std::byte{0xFF});
    sender.SayBytes(std::span(frame).first(garbage ? frame.size() : bytes));
  }
  RawSender& Connect() {
    most_ = std::max(most_, DescriptorsOf(peer_->pid()));
    return *flood_.emplace_back(std::make_unique<RawSender>(handle_));
  }

  NcclHost host_{FERRY_NCCL_PLUGIN, 12};
  testing::AskedPeer peer_;
  testing::Handle handle_{};
  std::vector<std::unique_ptr<RawSender>> flood_;
  std::size_t most_ = 0;  // of the peer's descriptors
};

TEST_F(PendingPeerFlood, KeepsNobodyOutAndTakesBoundedDescriptorsAndLines) {
  const auto begun = Clock::now();
  Exchange();
  const std::size_t before = DescriptorsOf(peer_->pid());
  for (std::size_t i = 0; i < kSilent; ++i) (void)Connect();
  const std::size_t frame = RawSender::HelloBytes(HelloWire{}).size();
  for (std::size_t bytes = 0; bytes < frame; ++bytes) Say(bytes, bytes % 2 == 0);
  // It is accepted after all of them.
  Exchange();
  most_ = std::max(most_, DescriptorsOf(peer_->pid()));
  EXPECT_LE(most_, before + 2 * kPlaces + kOwnLanes);
  flood_.clear();
  const Deadline deadline = TestDeadline();
  while (DescriptorsOf(peer_->pid()) > before && !deadline.expired()) std::this_thread::yield();
  EXPECT_LE(DescriptorsOf(peer_->pid()), before);
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto lines = std::count(log.begin(), log.end(), '\n');
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, kPeerLines * (2 + static_cast<int>(Seconds(Clock::now() - begun)))) << log;
}

}  // namespace
}  // namespace ferry::nccl_net
