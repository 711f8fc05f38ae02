// Conformance suite of providers: listening and connecting.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/net/testing/conformance.h"

namespace ferry::net {

using ::testing::HasSubstr;

// ---- listening and connecting -------------------------------------------------------------------

TEST_P(ProviderConformance, ListeningTellsThePortItTook) {
  const auto address = far_host_->Listen(target_->ListenAddress(), config_);
  ASSERT_TRUE(address) << address.error().ToString();
  EXPECT_EQ(address->host, target_->ListenAddress().host);
  EXPECT_NE(address->port, 0);
}

TEST_P(ProviderConformance, ListeningOnATakenPortIsUnavailable) {
  const auto address = far_host_->Listen(target_->ListenAddress(), config_);
  ASSERT_TRUE(address) << address.error().ToString();
  const auto again = near_host_->Listen(*address, config_);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::kUnavailable);
  EXPECT_THAT(again.error().message(), HasSubstr(address->ToString()));
}

TEST_P(ProviderConformance, ListeningTakesAFreePortOfTheConfiguredRange) {
  Config config = config_;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto any = far_host_->Listen(target_->ListenAddress(), config_);
    ASSERT_TRUE(any) << any.error().ToString();
    far_host_->StopListening();
    if (any->port == 65535) continue;
    config.port_first = any->port;
    config.port_last = static_cast<std::uint16_t>(any->port + 1);
    const auto first = far_host_->Listen(target_->ListenAddress(), config);
    const auto second = near_host_->Listen(target_->ListenAddress(), config);
    if (!first || !second) continue;  // another process has one of the two ports
    EXPECT_EQ(first->port, config.port_first);
    EXPECT_EQ(second->port, config.port_last);
    TestHost third(target_->MakeProvider());
    const auto none = third.Listen(target_->ListenAddress(), config);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code(), Code::kUnavailable);
    EXPECT_THAT(none.error().message(), HasSubstr(std::to_string(config.port_first)));
    EXPECT_THAT(none.error().message(), HasSubstr(std::to_string(config.port_last)));
    return;
  }
  GTEST_SKIP() << "no two neighbouring ports stayed free";
}

TEST_P(ProviderConformance, ListeningOnABadAddressIsInvalid) {
  const auto bad = far_host_->Listen({"no such place", 0}, config_);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(bad.error().message(), HasSubstr("no such place"));
}

TEST_P(ProviderConformance, ConnectingToABadAddressIsInvalid) {
  const auto bad = near_host_->Connect({"no such place", 1}, config_);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(bad.error().message(), HasSubstr("no such place"));
}

TEST_P(ProviderConformance, ConnectingWhereNobodyListensAnyMoreIsPeerLost) {
  const auto address = far_host_->Listen(target_->ListenAddress(), config_);
  ASSERT_TRUE(address) << address.error().ToString();
  far_host_->StopListening();
  const auto refused = near_host_->Connect(*address, config_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPeerLost);
  EXPECT_THAT(refused.error().message(), HasSubstr(address->ToString()));
}

TEST_P(ProviderConformance, ConnectingWithoutAnAnswerTimesOutAtItsDeadline) {
  const Address silent = target_->SilentAddress();
  const Deadline deadline = Deadline::After(milliseconds(100));
  const auto timed_out = near_host_->Connect(silent, config_, deadline);
  EXPECT_TRUE(deadline.expired());
  ASSERT_FALSE(timed_out);
  EXPECT_EQ(timed_out.error().code(), Code::kTimedOut);
  EXPECT_THAT(timed_out.error().message(), HasSubstr(silent.ToString()));
}

// Regression: the pending connect lived on, with everything that it owned.
TEST_P(ProviderConformance, AConnectInFlightGoesWithItsLoop) {
  const Address silent = target_->SilentAddress();
  const auto owned = std::make_shared<int>(1);  // counts the remaining callbacks
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop);
  (*loop)->PostOrRun([&] {
    near_host_->provider().Connect(silent, config_, loop->get(), Deadline::Never(),
                                   [owned](auto) { ADD_FAILURE() << "answered"; });
  });
  EXPECT_EQ(owned.use_count(), 2);
  (*loop)->Stop();
  loop->reset();
  EXPECT_EQ(owned.use_count(), 1);
}

TEST_P(ProviderConformance, AConnectIsCancelledWithItsTimer) {
  const Address silent = target_->SilentAddress();
  const auto owned = std::make_shared<int>(1);  // counts the remaining callbacks
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop);
  (*loop)->PostOrRun([&] {
    const EventLoop::TimerId connect =
        near_host_->provider().Connect(silent, config_, loop->get(), Deadline::Never(),
                                       [owned](auto) { ADD_FAILURE() << "answered"; });
    (*loop)->CancelTimerOnLoop(connect);
  });
  EXPECT_EQ(owned.use_count(), 1);
  (*loop)->DriveOnce();
}

TEST_P(ProviderConformance, ALaneOutlivesItsListener) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  far_host_->StopListening();
  const std::vector<TestFrame*> frames = {Make(*near_, "a", 1000)};
  near_->Send(frames);
  EXPECT_TRUE(Match(frames, far_->Take(1)));
}

TEST_P(ProviderConformance, AListenerServesManyConnections) {
  constexpr std::size_t kLanes = 16;
  const auto address = far_host_->Listen(target_->ListenAddress(), config_);
  ASSERT_TRUE(address) << address.error().ToString();
  std::vector<std::unique_ptr<LaneEnd>> ends;
  std::vector<std::string> metas;
  for (std::size_t i = 0; i < kLanes; ++i) {
    auto lane = near_host_->Connect(*address, config_);
    ASSERT_TRUE(lane) << lane.error().ToString();
    ends.push_back(std::make_unique<LaneEnd>(*std::move(lane), near_host_->loop(i % 2)));
    ends.back()->Attach();
    metas.push_back(std::to_string(i));
    ends.back()->Send(Make(*ends.back(), metas.back(), 10'000));
  }
  std::vector<std::string> arrived;
  for (std::size_t i = 0; i < kLanes; ++i) {
    ends.push_back(std::make_unique<LaneEnd>(far_host_->Accept(), far_host_->loop(i % 2)));
    ends.back()->Attach();
    for (const Arrived& frame : ends.back()->Take(1)) arrived.push_back(frame.meta);
  }
  EXPECT_THAT(arrived, ::testing::UnorderedElementsAreArray(metas));
}

}  // namespace ferry::net
