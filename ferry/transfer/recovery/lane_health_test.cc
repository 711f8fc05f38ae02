// Tests which network path a lane is replaced over, with a provider that connects nothing.
#include "ferry/transfer/recovery/lane_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class IdleProvider final : public net::Provider {
 public:
  const char* name() const override { return "idle"; }
  net::Capabilities capabilities() const override { return {}; }
  Result<std::unique_ptr<net::Listener>> Listen(const net::Address& /*address*/,
                                                const Config& /*config*/, EventLoop* /*loop*/,
                                                Accepted /*accepted*/) override {
    return Error(Code::kUnavailable, "idle");
  }
  EventLoop::TimerId Connect(const net::Address& address, const Config& config, EventLoop* /*loop*/,
                             Deadline /*deadline*/, Connected connected) override {
    dialed.push_back(address.host);
    lists.push_back(config.interfaces);
    attempts.push_back(std::move(connected));
    return 0;
  }
  // As of a machine with two interfaces in one subnet.
  std::vector<std::string> InterfacesTo(const net::Address& /*to*/,
                                        const Config& /*config*/) const override {
    return {"eth0", "eth1"};
  }
  // Ends the latest attempt.
  void Fail(Code code = Code::kPeerLost) {
    Connected connected = std::move(attempts.back());
    attempts.pop_back();
    connected(Error(code, "unreachable"));
  }

  std::vector<std::string> dialed;
  std::vector<std::string> lists;  // config.interfaces of each
  std::vector<Connected> attempts;
};

TEST(NetworkPathsTo, GiveEachInterfaceOfASubnetAnAddressOfThePeer) {
  const IdleProvider provider;
  const net::Address first{"10.9.0.2", 1};
  const net::Address second{"10.9.0.12", 1};
  const auto paths = NetworkPathsTo(provider, {}, {first, "eth0"}, {first, second});
  ASSERT_EQ(paths.size(), 2U);
  EXPECT_EQ(paths[0].to, first);
  EXPECT_EQ(paths[0].interface, "eth0");
  EXPECT_FALSE(paths[0].is_forced);
  EXPECT_EQ(paths[1].to, second);
  EXPECT_EQ(paths[1].interface, "eth1");
  EXPECT_TRUE(paths[1].is_forced);
  EXPECT_EQ(NetworkPathsTo(provider, {}, {first, "eth0"}, {first}).size(), 1U);
}

class LaneHealthTest : public ::testing::Test, private RecoveryHost {
 protected:
  // One lane on each path. `forced`: the number of a path that the route would not use.
  void Begin(std::size_t paths, std::optional<std::size_t> forced = std::nullopt) {
    RecoveryContext context;
    context.config = &config_;
    context.home = loop_.get();
    context.peer_name = "peer:1";
    context.lanes = paths;
    context.provider = &provider_;
    std::vector<NetworkPath> all;
    for (std::size_t i = 0; i < paths; ++i) {
      const std::string number = std::to_string(i);
      all.push_back({{"10.0.0." + number, 1}, "eth" + number, forced == i});
    }
    RecoveryHost* const host = this;
    health_.emplace(std::move(context), host, std::move(all));
  }
  void TearDown() override { health_->Stop(); }

  std::shared_ptr<void> KeepAlive() override { return nullptr; }
  void Note(const std::string& event) override { events_.push_back(event); }
  void Fail(const Error& error) override { failed_ = error.message(); }
  void FailIfWaitedFor(std::uint32_t lane, const Error& /*reason*/) override {
    given_up_.push_back(lane);
  }
  void Freeze(std::uint32_t /*lane*/, std::uint32_t /*attempt*/, Frozen /*then*/) override {}
  void Revive(std::uint32_t /*lane*/, std::uint32_t /*attempt*/,
              std::unique_ptr<net::Lane> /*replacement*/, const LaneProgress& /*peer*/) override {}

  Config config_;
  const std::unique_ptr<EventLoop> loop_ = Must(EventLoop::Create());
  IdleProvider provider_;
  std::optional<LaneHealth> health_;
  std::vector<std::string> events_;
  std::string failed_;
  std::vector<std::uint32_t> given_up_;
};

TEST_F(LaneHealthTest, LanesMoveToTheirOwnPathsAtTheStart) {
  Begin(3);
  health_->Start();
  EXPECT_THAT(provider_.dialed, ElementsAre("10.0.0.1", "10.0.0.2"));
}

TEST_F(LaneHealthTest, LanesOfAPathThatTheRouteWouldNotUseAreDialedByItsInterfaceAlone) {
  Begin(3, /*forced=*/1);
  health_->Start();
  EXPECT_THAT(provider_.dialed, ElementsAre("10.0.0.1", "10.0.0.2"));
  EXPECT_THAT(provider_.lists, ElementsAre("eth1", ""));
}

TEST_F(LaneHealthTest, AResetLaneIsDialedAgainOverItsPath) {
  Begin(2);
  health_->OnLaneLost(0, net::LaneLoss::kReset);
  EXPECT_THAT(provider_.dialed, ElementsAre("10.0.0.0"));
}

TEST_F(LaneHealthTest, AfterOtherLossesItsPathIsAvoided) {
  Begin(2);
  health_->OnLaneLost(0, net::LaneLoss::kUnreachable);
  EXPECT_THAT(provider_.dialed, ElementsAre("10.0.0.1"));
}

TEST_F(LaneHealthTest, TheOnlyPathIsTriedAgain) {
  Begin(1);
  health_->OnLaneLost(0, net::LaneLoss::kUnreachable);
  EXPECT_THAT(provider_.dialed, ElementsAre("10.0.0.0"));
  provider_.Fail();
  EXPECT_THAT(events_, Contains(HasSubstr("did not come up on eth0")));
  EXPECT_TRUE(
      loop_->DriveUntil([&] { return provider_.dialed.size() == 2; }, Soon(), microseconds(0)));
  EXPECT_EQ(failed_, "");
}

TEST_F(LaneHealthTest, AFailedAuthenticationWhileNoLaneIsUpEndsTheConnection) {
  config_.tls = TlsMode::kCert;
  Begin(1);
  health_->OnLaneLost(0, net::LaneLoss::kUnreachable);
  provider_.Fail(Code::kRefused);
  EXPECT_EQ(failed_, "unreachable");
}

TEST_F(LaneHealthTest, ALaneIsGivenUpWhenAuthenticationFailsAndNoPathIsBetter) {
  config_.tls = TlsMode::kCert;
  Begin(2);
  health_->OnLaneLost(0, net::LaneLoss::kReset);
  provider_.Fail(Code::kRefused);
  EXPECT_THAT(given_up_, IsEmpty());
  EXPECT_THAT(provider_.dialed, ElementsAre("10.0.0.0", "10.0.0.1"));
  provider_.Fail();
  EXPECT_THAT(given_up_, ElementsAre(0U));
  EXPECT_EQ(failed_, "");
}

TEST_F(LaneHealthTest, ALaneIsNotGivenUpForWhatAnotherAddressSays) {
  config_.tls = TlsMode::kCert;
  Begin(2);
  health_->OnLaneLost(0, net::LaneLoss::kReset);
  provider_.Fail();
  provider_.Fail(Code::kRefused);
  EXPECT_THAT(given_up_, IsEmpty());
}

TEST_F(LaneHealthTest, ASuspectLaneTriesAnotherPathOnce) {
  Begin(2);
  health_->OnSuspect(0, "has been silent");
  health_->OnSuspect(0, "has been silent");
  EXPECT_THAT(provider_.dialed, ElementsAre("10.0.0.1"));
  EXPECT_THAT(events_, ElementsAre(HasSubstr("lane 0 on eth0 has been silent")));
}

TEST_F(LaneHealthTest, ASuspectLaneWithoutAnotherPathStays) {
  Begin(1);
  health_->OnSuspect(0, "has been silent");
  EXPECT_THAT(provider_.dialed, IsEmpty());
}

TEST_F(LaneHealthTest, ALinkThatIsDownIsAvoidedAtOnce) {
  Begin(2);
  health_->OnLinkChange({.interface = "eth1", .up = false});
  health_->OnLaneLost(1, net::LaneLoss::kReset);
  EXPECT_THAT(provider_.dialed, ElementsAre("10.0.0.0"));
}

TEST_F(LaneHealthTest, NothingIsDialedAfterAStop) {
  Begin(2);
  health_->Stop();
  health_->OnLaneLost(0, net::LaneLoss::kReset);
  health_->Beat();
  EXPECT_THAT(provider_.dialed, IsEmpty());
}

}  // namespace
}  // namespace ferry::transfer
