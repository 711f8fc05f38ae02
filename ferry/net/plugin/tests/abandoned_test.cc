// Connections over the stand-in that are given up in the middle leave nothing open.
#include "ferry/net/plugin/abandoned.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

#include "ferry/net/plugin/factory.h"
#include "ferry/net/plugin/tests/testing/standin.h"
#include "ferry/net/tcp/factory.h"
#include "ferry/net/testing/lane_end.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::net::plugin {
namespace {

using plugin::testing::StandIn;
using plugin::testing::Variables;
using transfer::Must;

std::size_t DescriptorsOpen() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

class AbandonedConnect : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(standin_.Misuse(), ""); }

  // The thread ends connections, and threads of the stand-in their sockets.
  void ExpectDescriptors(std::size_t expected) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(30));
    while ((AbandonedConnections() > 0 || DescriptorsOpen() > expected) && !deadline.expired()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(AbandonedConnections(), 0U);
    EXPECT_EQ(DescriptorsOpen(), expected);
  }

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
  EXPECT_EQ(AbandonedConnections(), 1U);
  listening_.reset();
  ExpectDescriptors(before);
}

TEST_F(AbandonedConnect, NobodyWaitsForWhatHasNotBegun) {
  const std::size_t before = DescriptorsOpen();
  listening_ = Must(Listening::Open(plugin_, 0));
  connecting_ = std::make_unique<Connecting>(plugin_, 0, listening_->handle());
  CloseInBackground({}, std::move(listening_), std::move(connecting_));
  EXPECT_EQ(AbandonedConnections(), 0U);
  ExpectDescriptors(before);
}

TEST_F(AbandonedConnect, OfALaneThatIsGivenUpLeavesNothing) {
  Config config;
  config.provider = "plugin:" + standin_.path();
  config.devices = DeviceChoice::None();
  const std::size_t before = DescriptorsOpen();
  {
    TestHost near(Must(CreateProvider(config, tcp::CreateProvider())));
    TestHost far(Must(CreateProvider(config, tcp::CreateProvider())));
    const Address address = Must(far.Listen({"127.0.0.1", 0}, {}));
    for (int i = 0; i < 5; ++i) {
      const auto lane = near.Connect(address, {}, Deadline::After(milliseconds(30)));
      EXPECT_FALSE(lane);
    }
  }
  ExpectDescriptors(before);
}

}  // namespace
}  // namespace ferry::net::plugin
