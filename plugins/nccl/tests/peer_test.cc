// Two processes, one of which ends, or stops.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "plugins/nccl/tests/nccl_peer.h"
#include "plugins/nccl/tests/testing/nccl_host.h"
#include "tests/support/peer_process.h"

namespace ferry::nccl_net {
namespace {

namespace abi = net::nccl_abi;
using testing::Logged;
using testing::LoggedText;
using testing::NcclConnect;
using testing::NcclHost;
using testing::NcclListen;
using testing::PatternOf;
using testing::Require;
using testing::WaitFor;
using tests::PeerProcess;

using Bytes = std::vector<std::byte>;

// So that a stopped peer is noticed soon; before the plugin is initialised in this process.
class ShortSilence : public ::testing::Environment {
 public:
  void SetUp() override {
    (void)::setenv("FERRY_PEER_TIMEOUT", "5s", 1);
    (void)::setenv("FERRY_HEARTBEAT_INTERVAL", "500ms", 1);
  }
};
[[maybe_unused]] const auto* const kShortSilence =
    ::testing::AddGlobalTestEnvironment(new ShortSilence);

// A peer with one connection each way.
class NcclPeer : public ::testing::Test {
 protected:
  void SetUp() override {
    peer_ = tests::Must(PeerProcess::Start(testing::kNcclRole));
    NcclListen listen(&host_);
    const std::string handle = peer_->Ask("listen");
    NcclConnect connect(&host_, testing::HandleOf(handle));
    peer_->Command("connect " + tests::ToHex(listen.handle()));
    send_ = connect.Connect(tests::TestDeadline());
    recv_ = listen.Accept(tests::TestDeadline());
    peer_->Answer();
    peer_->Ask("accept");
  }
  void TearDown() override {
    if (send_ != nullptr) Require(host_->CloseSend(send_), "closeSend");
    if (recv_ != nullptr) Require(host_->CloseReceive(recv_), "closeRecv");
  }

  void* Send(Bytes* from) {
    void* request = nullptr;
    Require(host_->Send(send_, {from->data(), from->size(), 1, nullptr}, &request), "isend");
    return request;
  }
  void* Receive(Bytes* into) {
    void* request = nullptr;
    Require(host_->Receive(recv_, {into->data(), into->size(), 1, nullptr}, &request), "irecv");
    return request;
  }

  NcclHost host_{FERRY_NCCL_PLUGIN, 12};
  testing::AskedPeer peer_;
  void* send_ = nullptr;
  void* recv_ = nullptr;
};

TEST_F(NcclPeer, BytesGoToAnotherProcessAndBack) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{40'000}, std::size_t{5} << 20}) {
    Bytes from = PatternOf(size, size);
    Bytes into(size);
    peer_->Command(fmt::format("echo {}", size));
    void* const receive = Receive(&into);
    void* const send = Send(&from);
    EXPECT_EQ(WaitFor(host_, send, nullptr, tests::TestDeadline()), abi::kSuccess);
    EXPECT_EQ(WaitFor(host_, receive, nullptr, tests::TestDeadline()), abi::kSuccess);
    peer_->Answer();
    EXPECT_EQ(into, from);
  }
}

// The receiver is done at once where the message is there before its receive; the sender is, when
// it hears of that receive.
TEST_F(NcclPeer, WhatWasReceivedWasSentAlthoughTheReceiverCloses) {
  for (int round = 0; round < 50; ++round) {
    NcclConnect connect(&host_, testing::HandleOf(peer_->Ask("listen")));
    void* const send = connect.Connect(tests::TestDeadline());
    peer_->Ask("accept");
    Bytes bytes = PatternOf(8, 1);
    void* request = nullptr;
    Require(host_->Send(send, {bytes.data(), bytes.size(), 1, nullptr}, &request), "isend");
    peer_->Ask("last 8");
    ASSERT_EQ(WaitFor(host_, request, nullptr, tests::TestDeadline()), abi::kSuccess) << round;
    Require(host_->CloseSend(send), "closeSend");
  }
}

// The receiver's credits go out while what was sent is on its way: they must not meet a socket that
// is closed.
TEST_F(NcclPeer, WhatWasSentIsReceivedAlthoughTheSenderCloses) {
  constexpr std::size_t kBytes = 65'536;
  std::vector<Bytes> from;
  for (std::size_t i = 0; i < 8; ++i) from.push_back(PatternOf(kBytes, i));
  for (int round = 0; round < 200; ++round) {
    // Or it has closed before the other side accepts.
    const bool late = round % 2 == 1;
    const std::string take = fmt::format("compare {} {}", kBytes, from.size());
    NcclConnect connect(&host_, testing::HandleOf(peer_->Ask("listen")));
    void* const send = connect.Connect(tests::TestDeadline());
    if (!late) {
      peer_->Ask("accept");
      peer_->Command(take);
    }
    std::vector<void*> requests(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      Require(host_->Send(send, {from[i].data(), kBytes, 1, nullptr}, &requests[i]), "isend");
    }
    for (void* const request : requests) {
      ASSERT_EQ(WaitFor(host_, request, nullptr, tests::TestDeadline()), abi::kSuccess) << round;
    }
    Require(host_->CloseSend(send), "closeSend");
    if (late) peer_->Ask("accept");
    if (late) peer_->Command(take);
    EXPECT_EQ(peer_->Answer(), "") << round;
  }
}

TEST_F(NcclPeer, RequestsFailWhenThePeerIsKilled) {
  Bytes from(1 << 20);
  Bytes into(1 << 20);
  void* const send = Send(&from);
  void* const receive = Receive(&into);
  peer_->Kill();
  const auto begin = Clock::now();
  EXPECT_EQ(WaitFor(host_, send, nullptr, tests::TestDeadline()), abi::kRemoteError);
  EXPECT_EQ(WaitFor(host_, receive, nullptr, tests::TestDeadline()), abi::kRemoteError);
  EXPECT_LT(Seconds(Clock::now() - begin), 20);
}

TEST_F(NcclPeer, RequestsFailWhenThePeerIsKilledInTheMiddleOfMessages) {
  std::vector<Bytes> from(8, Bytes(16 << 20));
  std::vector<Bytes> into(8, Bytes(16 << 20));
  peer_->Command("stream 16777216 8");
  std::vector<void*> requests;
  for (std::size_t i = 0; i < 8; ++i) {
    requests.push_back(Receive(&into[i]));
    requests.push_back(Send(&from[i]));
  }
  EXPECT_EQ(WaitFor(host_, requests[0], nullptr, tests::TestDeadline()), abi::kSuccess);
  peer_->Kill();
  int failed = 0;
  for (std::size_t i = 1; i < requests.size(); ++i) {
    if (WaitFor(host_, requests[i], nullptr, tests::TestDeadline()) != abi::kSuccess) ++failed;
  }
  EXPECT_GT(failed, 0);
}

TEST_F(NcclPeer, RequestsFailWhenThePeerIsStopped) {
  Bytes from(1 << 20);
  Bytes into(1 << 20);
  void* const send = Send(&from);
  void* const receive = Receive(&into);
  tests::MustDo(peer_->Stop(tests::TestDeadline()));
  EXPECT_EQ(WaitFor(host_, send, nullptr, tests::TestDeadline()), abi::kRemoteError);
  EXPECT_EQ(WaitFor(host_, receive, nullptr, tests::TestDeadline()), abi::kRemoteError);
  EXPECT_TRUE(Logged("was silent for")) << LoggedText();
}

TEST_F(NcclPeer, APeerThatOnlyWaitsIsNotLost) {
  Bytes from(1 << 20);
  void* const send = Send(&from);
  // Nobody receives for longer than a peer may be silent.
  const auto enough = Deadline::After(std::chrono::seconds(7));
  int done = 0;
  while (!enough.expired()) {
    Require(host_->Test(send, &done, nullptr), "test");
    ASSERT_EQ(done, 0);
  }
  peer_->Ask("sink 1048576");
  EXPECT_EQ(WaitFor(host_, send, nullptr, tests::TestDeadline()), abi::kSuccess);
}

TEST(NcclPeerGone, ConnectFailsWhereNobodyListensAnyMore) {
  NcclHost host(FERRY_NCCL_PLUGIN, 12);
  testing::AskedPeer peer = tests::Must(PeerProcess::Start(testing::kNcclRole));
  NcclConnect connect(&host, testing::HandleOf(peer->Ask("listen")));
  peer->Kill();
  tests::MustDo([&]() -> Status {
    FERRY_TRY(peer->WaitExit(tests::TestDeadline()));
    return Ok();
  }());
  void* send = nullptr;
  int outcome = abi::kSuccess;
  const Deadline deadline = tests::TestDeadline();
  while (outcome == abi::kSuccess && send == nullptr && !deadline.expired()) {
    outcome = connect.TryConnect(&send);
  }
  EXPECT_EQ(outcome, abi::kRemoteError);
}

}  // namespace
}  // namespace ferry::nccl_net
