// Tests of the fault proxy.
#include "ferry/net/testing/fault_proxy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>

#include "ferry/net/testing/lane_end.h"
#include "ferry/net/testing/raw_peer.h"

namespace ferry::net {
namespace {

class FaultProxyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto proxy = FaultProxy::Start(listener_.address());
    ASSERT_TRUE(proxy) << proxy.error().ToString();
    proxy_ = *std::move(proxy);
  }
  void Connect() {
    client_.emplace(RawPeer::ConnectTo(proxy_->address()));
    target_.emplace(listener_.Accept());
  }
  // The bytes that arrive at the target, until all have arrived or the stream ends.
  std::vector<std::byte> SendToTarget(std::span<const std::byte> bytes) {
    std::vector<std::byte> arrived;
    std::thread reader([&] { arrived = target_->Read(bytes.size()); });
    (void)client_->Write(bytes);
    reader.join();
    return arrived;
  }

  const std::vector<std::byte> bytes_ = RandomBytes(1 << 20, 1);
  RawListener listener_;
  std::unique_ptr<FaultProxy> proxy_;
  std::optional<RawPeer> client_;
  std::optional<RawPeer> target_;
};

TEST_F(FaultProxyTest, ForwardsBothWaysAndEachEnd) {
  Connect();
  EXPECT_TRUE(SendToTarget(bytes_) == bytes_);
  EXPECT_TRUE(target_->Write(AsBytes("answer")));
  EXPECT_EQ(AsText(client_->Read(6)), "answer");
  client_->EndWriting();
  EXPECT_EQ(target_->ReadToEnd(), 0);
  EXPECT_TRUE(target_->Write(AsBytes("last")));
  target_->Close();
  EXPECT_EQ(AsText(client_->Read(100)), "last");
  EXPECT_EQ(proxy_->forwarded(ProxyDirection::kToTarget), bytes_.size());
  EXPECT_EQ(proxy_->forwarded(ProxyDirection::kToClient), 10U);
}

TEST_F(FaultProxyTest, ForwardsInSmallDelayedPieces) {
  proxy_->SetPieceBytes(100);
  proxy_->SetDelay(milliseconds(2));
  Connect();
  const auto some = std::span(bytes_).first(2000);
  EXPECT_TRUE(std::ranges::equal(SendToTarget(some), some));
}

TEST_F(FaultProxyTest, PassesAResetOn) {
  Connect();
  EXPECT_TRUE(client_->Write(AsBytes("x")));
  EXPECT_EQ(target_->Read(1).size(), 1U);
  client_->Reset();
  EXPECT_EQ(target_->ReadToEnd(), ECONNRESET);
}

TEST_F(FaultProxyTest, CutsEveryConnectionByAnEndOfTheStream) {
  proxy_->CutAt(ProxyDirection::kToTarget, 1000, ProxyCut::kClose);
  Connect();
  RawPeer other_client = RawPeer::ConnectTo(proxy_->address());
  RawPeer other_target(listener_.Accept());
  const auto arrived = SendToTarget(bytes_);
  EXPECT_TRUE(std::ranges::equal(arrived, std::span(bytes_).first(1000)));
  EXPECT_EQ(target_->ReadToEnd(), 0);
  EXPECT_EQ(client_->ReadToEnd(), 0);
  EXPECT_EQ(other_target.ReadToEnd(), 0);
  EXPECT_EQ(other_client.ReadToEnd(), 0);
}

TEST_F(FaultProxyTest, ServesConnectionsThatComeAfterACut) {
  proxy_->CutAt(ProxyDirection::kToTarget, 1000, ProxyCut::kClose);
  Connect();
  EXPECT_EQ(SendToTarget(bytes_).size(), 1000U);
  Connect();
  EXPECT_TRUE(SendToTarget(bytes_) == bytes_);
  EXPECT_EQ(proxy_->connections(), 2U);
}

TEST_F(FaultProxyTest, CutsByAReset) {
  proxy_->CutAt(ProxyDirection::kToClient, 2, ProxyCut::kReset);
  Connect();
  EXPECT_TRUE(target_->Write(AsBytes("abc")));
  EXPECT_EQ(client_->ReadToEnd(), ECONNRESET);
  EXPECT_EQ(target_->ReadToEnd(), ECONNRESET);
  EXPECT_EQ(proxy_->forwarded(ProxyDirection::kToClient), 2U);
}

TEST_F(FaultProxyTest, CutsAtOnce) {
  Connect();
  EXPECT_TRUE(client_->Write(AsBytes("x")));
  EXPECT_EQ(target_->Read(1).size(), 1U);
  proxy_->CutNow(ProxyCut::kReset);
  EXPECT_EQ(client_->ReadToEnd(), ECONNRESET);
  EXPECT_EQ(target_->ReadToEnd(), ECONNRESET);
  Connect();
  EXPECT_TRUE(client_->Write(AsBytes("x")));
  EXPECT_EQ(target_->Read(1).size(), 1U);
  proxy_->CutAt(ProxyDirection::kToTarget, 1, ProxyCut::kClose);
  EXPECT_EQ(client_->ReadToEnd(), 0);
  EXPECT_EQ(target_->ReadToEnd(), 0);
}

TEST_F(FaultProxyTest, CorruptsOneByte) {
  proxy_->CorruptAt(ProxyDirection::kToTarget, 777'777);
  Connect();
  auto expected = bytes_;
  expected[777'777] = ~expected[777'777];
  EXPECT_TRUE(SendToTarget(bytes_) == expected);
  EXPECT_TRUE(SendToTarget(bytes_) == bytes_);
}

TEST_F(FaultProxyTest, KeepsEverythingWhileStalled) {
  Connect();
  proxy_->SetStalled(true);
  RawPeer later_client = RawPeer::ConnectTo(proxy_->address());
  EXPECT_TRUE(client_->Write(AsBytes("abc")));
  EXPECT_TRUE(later_client.Write(AsBytes("def")));
  client_->EndWriting();
  EXPECT_EQ(proxy_->forwarded(ProxyDirection::kToTarget), 0U);
  proxy_->SetStalled(false);
  EXPECT_EQ(AsText(target_->Read(100)), "abc");
  RawPeer later_target(listener_.Accept());
  EXPECT_EQ(AsText(later_target.Read(3)), "def");
}

TEST_F(FaultProxyTest, EndsConnectionsThatTheTargetRefuses) {
  Address nobody;
  {
    const RawListener gone;
    nobody = gone.address();
  }
  auto proxy = FaultProxy::Start(nobody);
  ASSERT_TRUE(proxy);
  RawPeer client = RawPeer::ConnectTo((*proxy)->address());
  EXPECT_EQ(client.ReadToEnd(), ECONNRESET);
}

TEST_F(FaultProxyTest, ResetsWhatIsOpenWhenItGoes) {
  Connect();
  EXPECT_TRUE(client_->Write(AsBytes("x")));
  EXPECT_EQ(target_->Read(1).size(), 1U);
  proxy_.reset();
  EXPECT_EQ(client_->ReadToEnd(), ECONNRESET);
  EXPECT_EQ(target_->ReadToEnd(), ECONNRESET);
}

TEST(FaultProxyStart, RefusesATargetThatIsNotNumeric) {
  const auto proxy = FaultProxy::Start({"node7", 80});
  ASSERT_FALSE(proxy);
  EXPECT_EQ(proxy.error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace ferry::net
