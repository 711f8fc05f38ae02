// Connections over the stand-in that are given up in the middle leave nothing open.
#include "ferry/tcpx/lane/abandoned.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/net/machine/socket_owner.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/testing/lane_end.h"
#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::tcpx {
namespace {

using net::Address;
using net::TestHost;
using net::ThisProcess;
using testing::ScopedVariables;
using testing::StandIn;
using testing::Variables;
using transfer::Must;

std::size_t DescriptorsOpen() {
  (void)ThisProcess();  // opens the list of this process's sockets, once
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

class AbandonedConnect : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(standin_.Misuse(), ""); }

  // The thread ends connections, and threads of the stand-in their sockets. Both counts are of the
  // process, where earlier tests may have left some, which may end meanwhile.
  void ExpectDescriptors(std::size_t most) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(30));
    while ((AbandonedConnections() > abandoned_before_ || DescriptorsOpen() > most) &&
           !deadline.expired()) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_LE(AbandonedConnections(), abandoned_before_);
    EXPECT_LE(DescriptorsOpen(), most);
  }

  const std::size_t abandoned_before_ = AbandonedConnections();
  // So many polls that a set-up does not end before it is given up.
  StandIn standin_{Variables{{"POLLS", "50"}}};
  Plugin* const plugin_ = Must(standin_.Open());
  std::unique_ptr<Listening> listening_;
  std::unique_ptr<Connecting> connecting_;
};

TEST_F(AbandonedConnect, IsCompletedAndClosedOnBothSides) {
  const std::size_t before = DescriptorsOpen();
  listening_ = Must(Listening::Open(plugin_, 0));
  connecting_ = std::make_unique<Connecting>(plugin_, 0, listening_->handle());
  EXPECT_FALSE(listening_->pending() || connecting_->pending());
  EXPECT_EQ(Must(connecting_->Connect()), nullptr);
  EXPECT_EQ(Must(listening_->Accept()), nullptr);
  EXPECT_TRUE(listening_->pending() && connecting_->pending());
  CloseInBackground({}, std::move(listening_), std::move(connecting_));
  ExpectDescriptors(before);
}

TEST_F(AbandonedConnect, EndsWhenTheOtherSideStopsToAccept) {
  const std::size_t before = DescriptorsOpen();
  listening_ = Must(Listening::Open(plugin_, 0));
  connecting_ = std::make_unique<Connecting>(plugin_, 0, listening_->handle());
  EXPECT_EQ(Must(connecting_->Connect()), nullptr);
  CloseInBackground({}, nullptr, std::move(connecting_));
  EXPECT_GE(AbandonedConnections(), 1U);
  listening_.reset();
  ExpectDescriptors(before);
}

TEST_F(AbandonedConnect, NobodyWaitsForWhatHasNotBegun) {
  const std::size_t before = DescriptorsOpen();
  listening_ = Must(Listening::Open(plugin_, 0));
  connecting_ = std::make_unique<Connecting>(plugin_, 0, listening_->handle());
  CloseInBackground({}, std::move(listening_), std::move(connecting_));
  EXPECT_LE(AbandonedConnections(), abandoned_before_);
  ExpectDescriptors(before);
}

TEST_F(AbandonedConnect, OfALaneThatIsGivenUpLeavesNothing) {
  Config config;
  config.provider = "plugin:" + standin_.path();
  config.devices = DeviceChoice::None();
  const std::size_t before = DescriptorsOpen();
  {
    TestHost near(Must(CreateProvider(config, net::tcp::CreateProvider())));
    TestHost far(Must(CreateProvider(config, net::tcp::CreateProvider())));
    const Address address = Must(far.Listen({"127.0.0.1", 0}, {}));
    for (int i = 0; i < 5; ++i) {
      const auto lane = near.Connect(address, {}, Deadline::After(milliseconds(30)));
      EXPECT_FALSE(lane);
    }
  }
  ExpectDescriptors(before);
}

// ---- many ---------------------------------------------------------------------------------------

// They end by themselves, so that no lane of a later test is refused.
TEST_F(AbandonedConnect, RefusesLanesThatPeersBeginWhereManyAreLeft) {
  const std::size_t before = DescriptorsOpen();
  StandIn slow(Variables{{"POLLS", "200"}});
  Plugin* const plugin = Must(slow.Open());
  Config config;
  config.provider = "plugin:" + slow.path();
  config.devices = DeviceChoice::None();
  {
    TestHost near(Must(CreateProvider(config, net::tcp::CreateProvider())));
    TestHost far(Must(CreateProvider(config, net::tcp::CreateProvider())));
    const Address address = Must(far.Listen({"127.0.0.1", 0}, {}));
    std::vector<std::pair<std::unique_ptr<Listening>, std::unique_ptr<Connecting>>> pairs;
    for (std::size_t i = 0; i < kMaxAbandonedWhenAccepting / 2; ++i) {
      auto listening = Must(Listening::Open(plugin, 0));
      auto connecting = std::make_unique<Connecting>(plugin, 0, listening->handle());
      EXPECT_EQ(Must(connecting->Connect()), nullptr);
      EXPECT_EQ(Must(listening->Accept()), nullptr);
      pairs.emplace_back(std::move(listening), std::move(connecting));
    }
    for (auto& [listening, connecting] : pairs) {
      CloseInBackground({}, std::move(listening), std::move(connecting));
    }
    const auto refused = near.Connect(address, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kRefused) << refused.error().ToString();
    EXPECT_THAT(refused.error().message(),
                ::testing::HasSubstr("connections that were given up are still being closed"));
  }
  EXPECT_TRUE(CheckAbandoned(*plugin, kMaxAbandonedWhenConnecting));
  ExpectDescriptors(before);
  EXPECT_TRUE(CheckAbandoned(*plugin, kMaxAbandonedWhenAccepting));
  EXPECT_EQ(slow.Misuse(), "");
}

// ---- exit() -------------------------------------------------------------------------------------

// Static objects of plugins are destroyed then. In a process of its own.
void ExitWithAnAbandonedConnect() {
  const ScopedVariables set(Variables{{"TOY_NULL", "connect"}, {"TOY_WATCH_EXIT", "1"}});
  Plugin* const toy = Must(Plugin::Open(std::string(FERRY_TOY_FOLDER) + "/ferry_toy_v7.so"));
  auto connecting = std::make_unique<Connecting>(toy, 0, Handle{});
  if (Must(connecting->Connect()) != nullptr) std::exit(1);
  CloseInBackground({}, nullptr, std::move(connecting));
  std::exit(0);
}

TEST(AbandonedConnects, AreNotContinuedWhileTheProcessExits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ExitWithAnAbandonedConnect(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ferry::tcpx
