// Tests what a peer may still write after its connection was lost and it has connected again.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ferry/net/testing/fault_proxy.h"
#include "ferry/transfer/testing/linked_endpoints.h"

// Bytes of a write wait in the network while the writer gives its connection up and connects again.
namespace ferry::transfer {
namespace {

constexpr std::size_t kWrittenBytes = 32 * 1024;
constexpr auto kOld = std::byte{0x0A};
constexpr auto kNew = std::byte{0x0B};

class ReconnectTest : public ::testing::Test {
 protected:
  // The old connection leads through the proxy. Only its writer gives up soon.
  ReconnectTest() {
    Config config = SmallSlices(1, 2);
    far_.emplace(Must(Endpoint::Create(config)));
    config.drain_grace = milliseconds(50);
    near_.emplace(Must(Endpoint::Create(config)));
    proxy_ = Must(net::FaultProxy::Start({"127.0.0.1", far_->port()}));
    old_.emplace(Must(near_->Connect(proxy_->address().ToString(), Soon())));
    accepted_.emplace(Must(far_->Accept(Soon())));
    local_.emplace(Must(near_->Register(here_.span(), Rights::kNone)));
    remote_.emplace(Must(far_->Register(there_.span(), Rights::kReadWrite)));
    EXPECT_TRUE(Works(*old_, *accepted_));
  }

  // Leaves a write of kOld in the network, loses its connection at the writer and connects again.
  void LoseAWrite() {
    proxy_->SetStalled(true);
    here_.Fill(kOld);
    Operation write = Must(old_->Write(*local_, 0, remote_->remote(), 0, kWrittenBytes));
    write.Cancel();
    EXPECT_TRUE(EndsWith(Code::kCancelled, write));
    const auto note = old_->TakeNotification(Soon());
    EXPECT_TRUE(!note && old_->lost());
    old_->Close();
    new_.emplace(Must(near_->Connect(HostAndPort(far_->port()), Soon())));
  }
  void WriteNew() {
    here_.Fill(kNew);
    EXPECT_TRUE(EndsOk(new_->Write(*local_, 0, remote_->remote(), 0, kWrittenBytes)));
    EXPECT_TRUE(IsAll(kNew));
  }
  // The network delivers the old write slowly, so that most of it arrives before the reset that
  // follows it.
  void Deliver() {
    proxy_->SetPieceBytes(32);
    proxy_->SetDelay(milliseconds(1));
    proxy_->SetStalled(false);
  }
  // Until the target, too, has lost the old connection.
  void AwaitTheOldConnectionsEnd() {
    proxy_->SetPieceBytes(0);
    proxy_->SetDelay(microseconds(0));
    while (accepted_->TakeNotification(Soon())) {
    }
    EXPECT_TRUE(accepted_->lost());
    accepted_->Close();
  }
  // Read on the near side, over the new connection: nothing else orders it after what arrives.
  bool IsAll(std::byte value) {
    const Region into = Must(near_->Register(fetched_.span(), Rights::kNone));
    EXPECT_TRUE(EndsOk(new_->Read(into, 0, remote_->remote(), 0, kWrittenBytes)));
    const auto got = fetched_.span();
    return std::all_of(got.begin(), got.end(), [&](std::byte each) { return each == value; });
  }

  GuardedMemory here_{kWrittenBytes, 1};
  GuardedMemory there_{kWrittenBytes, 2};
  GuardedMemory fetched_{kWrittenBytes, 3};
  std::optional<Endpoint> far_;
  std::optional<Endpoint> near_;
  std::unique_ptr<net::FaultProxy> proxy_;
  std::optional<Connection> old_;
  std::optional<Connection> accepted_;  // the target's side of it
  std::optional<Connection> new_;
  std::optional<Region> local_;
  std::optional<Region> remote_;
};

// Why a writer that has lost its connection must not simply write again.
TEST_F(ReconnectTest, AWriteOverALostConnectionMayArriveAfterALaterOne) {
  LoseAWrite();
  WriteNew();
  Deliver();
  const Deadline deadline = Soon();
  while (IsAll(kNew) && !accepted_->lost() && !deadline.expired()) std::this_thread::yield();
  EXPECT_FALSE(IsAll(kNew));
}

TEST_F(ReconnectTest, NothingArrivesOverALostConnectionAfterTheRegionWasDeregistered) {
  LoseAWrite();
  ASSERT_TRUE(remote_->Deregister(Soon()));
  remote_.emplace(Must(far_->Register(there_.span(), Rights::kReadWrite)));
  WriteNew();
  Deliver();
  AwaitTheOldConnectionsEnd();
  EXPECT_TRUE(IsAll(kNew));
}

TEST_F(ReconnectTest, NothingArrivesOverALostConnectionAfterTheTargetHasClosedIt) {
  LoseAWrite();
  accepted_->Close();
  WriteNew();
  Deliver();
  AwaitTheOldConnectionsEnd();
  EXPECT_TRUE(IsAll(kNew));
}

TEST_F(ReconnectTest, NothingArrivesOverAConnectionThatTheTargetHasLost) {
  LoseAWrite();
  Deliver();
  AwaitTheOldConnectionsEnd();
  WriteNew();
  EXPECT_TRUE(IsAll(kNew));
}

}  // namespace
}  // namespace ferry::transfer
