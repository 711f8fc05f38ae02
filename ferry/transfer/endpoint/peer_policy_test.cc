// Tests of trust in peers and lanes, and of the count of refusals.
#include "ferry/transfer/endpoint/peer_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

net::LaneInfo LaneBy(const std::string& interface, bool same_machine = false) {
  net::LaneInfo lane;
  lane.interface = interface;
  lane.same_machine = same_machine;
  return lane;
}

Config WithSecret() {
  Config config;
  config.secret = "a secret of more than sixteen bytes";
  return config;
}

TEST(PeerPolicy, WithoutASecretDialsNoOtherMachine) {
  Config config;
  PeerPolicy policy(config);
  ASSERT_TRUE(policy.Load());
  EXPECT_FALSE(policy.secret());
  const Status refused =
      policy.CheckLane(LaneBy("eth0"), "10.0.0.1:1", policy.secret().has_value());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr("FERRY_SECRET_FILE"));
}

TEST(PeerPolicy, DialsAPeerOfThisMachineOrOneThatTlsHasAuthenticated) {
  Config config;
  PeerPolicy policy(config);
  ASSERT_TRUE(policy.Load());
  EXPECT_TRUE(policy.CheckLane(LaneBy("lo", /*same_machine=*/true), "127.0.0.1:1",
                               policy.secret().has_value()));
  net::LaneInfo lane = LaneBy("eth0");
  lane.authenticated = true;
  EXPECT_TRUE(policy.CheckLane(lane, "10.0.0.1:1", policy.secret().has_value()));
}

TEST(PeerPolicy, ThatIsInsecureTrustsEverybody) {
  Config config;
  config.insecure = OnOff::kOn;
  PeerPolicy policy(config);
  ASSERT_TRUE(policy.Load());
  EXPECT_TRUE(policy.CheckLane(LaneBy("eth0"), "10.0.0.1:1", policy.secret().has_value()));
}

TEST(PeerPolicy, WithASecretLeavesAuthenticationToTheHandshake) {
  const Config config = WithSecret();
  PeerPolicy policy(config);
  ASSERT_TRUE(policy.Load());
  EXPECT_TRUE(policy.secret());
  EXPECT_TRUE(policy.CheckLane(LaneBy("eth0"), "10.0.0.1:1", policy.secret().has_value()));
}

TEST(PeerPolicy, RefusesALaneByAnInterfaceThatIsNotAllowed) {
  Config config = WithSecret();
  config.interfaces = "eth1";
  PeerPolicy policy(config);
  ASSERT_TRUE(policy.Load());
  EXPECT_TRUE(policy.CheckLane(LaneBy("eth1"), "10.0.0.1:1", policy.secret().has_value()));
  EXPECT_TRUE(policy.CheckLane(LaneBy("lo", /*same_machine=*/true), "127.0.0.1:1",
                               policy.secret().has_value()));
  const Status refused =
      policy.CheckLane(LaneBy("eth0"), "10.0.0.1:1", policy.secret().has_value());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("leaves by eth0"));
}

TEST(PeerPolicy, CountsRefusals) {
  const Config config;
  PeerPolicy policy(config);
  EXPECT_EQ(policy.refused(), 0U);
  policy.OnRefused("10.0.0.1:1", "refused 10.0.0.1:1: no reason");
  policy.OnRefused("10.0.0.1:1", "refused 10.0.0.1:1: no reason");
  EXPECT_EQ(policy.refused(), 2U);
}

}  // namespace
}  // namespace ferry::transfer
