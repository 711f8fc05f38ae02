// Tests of slow and failing name servers.
#include "ferry/net/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace ferry::net {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kResolveWait{60};  // for events that happen at once
Deadline InTime() { return Deadline::After(kResolveWait); }

TEST(Resolve, LeavesNumericAddressesAsTheyAre) {
  for (const Address& address : {Address{"127.0.0.1", 80}, Address{"::1", 81}}) {
    const auto found = Resolve(address, InTime());
    ASSERT_TRUE(found) << found.error().ToString();
    EXPECT_THAT(*found, ElementsAre(address));
  }
}

TEST(Resolve, FindsTheAddressesOfAName) {
  const auto found = Resolve({"localhost", 80}, InTime());
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_FALSE(found->empty());
  for (const Address& address : *found) {
    EXPECT_TRUE(IsLoopback(*ToRaw(address))) << address.ToString();
    EXPECT_EQ(address.port, 80);
  }
}

TEST(Resolve, NamesTheHostThatItDoesNotKnow) {
  const auto found = Resolve({"no such host", 80}, InTime());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(found.error().message(), HasSubstr("\"no such host\""));
}

// Name servers that answer on request of the test.
class SlowServers {
 public:
  NameResolver::Ask ask() {
    return [state = state_](const Address& address) -> Result<std::vector<Address>> {
      std::unique_lock lock(state->mutex);
      ++state->asked;
      state->changed.notify_all();
      state->changed.wait(lock, [&] { return state->answers; });
      if (address.host.starts_with("unknown")) return Error(Code::kInvalidArgument, "unknown");
      return std::vector<Address>{{"192.0.2.1", address.port}};
    };
  }
  void Answer() {
    const std::lock_guard lock(state_->mutex);
    state_->answers = true;
    state_->changed.notify_all();
  }
  int asked() const {
    const std::lock_guard lock(state_->mutex);
    return state_->asked;
  }
  bool AwaitAsked(int times) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, kResolveWait, [&] { return state_->asked >= times; });
  }
  ~SlowServers() { Answer(); }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int asked = 0;
    bool answers = false;
  };
  // Shared with threads that may outlive a test.
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(NameResolverTest, WaitsNoLongerThanItsDeadlineAndNamesHostAndTime) {
  SlowServers servers;
  NameResolver names(servers.ask());
  const auto begin = Clock::now();
  const auto found = names.Resolve({"slow.example", 80}, Deadline::After(milliseconds(100)));
  EXPECT_GE(Clock::now() - begin, milliseconds(100));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), Code::kTimedOut);
  EXPECT_THAT(found.error().message(), AllOf(HasSubstr("\"slow.example\""), HasSubstr("100 ms")));
}

TEST(NameResolverTest, NumericAddressesAskNobody) {
  SlowServers servers;
  NameResolver names(servers.ask());
  const auto found = names.Resolve({"192.0.2.7", 80}, InTime());
  ASSERT_TRUE(found);
  EXPECT_THAT(*found, ElementsAre(Address{"192.0.2.7", 80}));
  EXPECT_EQ(servers.asked(), 0);
}

TEST(NameResolverTest, AsksOnceForAHostThatManyWaitForAndGivesEachItsPort) {
  SlowServers servers;
  NameResolver names(servers.ask());
  std::deque<std::jthread> callers;
  std::atomic<int> right{0};
  for (std::uint16_t port = 1; port <= 5; ++port) {
    callers.emplace_back([&, port] {
      const auto found = names.Resolve({"shared.example", port}, InTime());
      if (found && *found == std::vector<Address>{{"192.0.2.1", port}}) ++right;
    });
  }
  ASSERT_TRUE(servers.AwaitAsked(1));
  EXPECT_FALSE(names.Resolve({"shared.example", 9}, Deadline::After(milliseconds(1))));
  EXPECT_EQ(servers.asked(), 1);
  servers.Answer();
  callers.clear();
  EXPECT_EQ(right.load(), 5);
}

TEST(NameResolverTest, StartsNoMoreThreadsThanItMay) {
  SlowServers servers;
  NameResolver names(servers.ask());
  constexpr int kMax = static_cast<int>(NameResolver::kMaxLookups);
  for (int i = 0; i < kMax; ++i) {
    const Address one{"one" + std::to_string(i) + ".example", 80};
    EXPECT_FALSE(names.Resolve(one, Deadline::After(milliseconds(1))));
  }
  ASSERT_TRUE(servers.AwaitAsked(kMax));
  const auto crowded = names.Resolve({"late.example", 80}, Deadline::After(milliseconds(1)));
  ASSERT_FALSE(crowded);
  EXPECT_EQ(crowded.error().code(), Code::kTimedOut);
  EXPECT_THAT(crowded.error().message(), AllOf(HasSubstr("\"late.example\""), HasSubstr("16")));
  EXPECT_EQ(servers.asked(), kMax);
  servers.Answer();
  EXPECT_TRUE(names.Resolve({"late.example", 80}, InTime()));  // there is room again
}

TEST(NameResolverTest, ReturnsTheErrorOfTheSystem) {
  SlowServers servers;
  servers.Answer();
  NameResolver names(servers.ask());
  const auto found = names.Resolve({"unknown.example", 80}, Deadline::Never());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), Code::kInvalidArgument);
}

TEST(NameResolverTest, CancelEndsTheWaitsThatAreThereAndThoseToCome) {
  SlowServers servers;
  NameResolver names(servers.ask());
  std::jthread other([&] {
    if (servers.AwaitAsked(1)) names.Cancel();
  });
  for (int i = 0; i < 2; ++i) {
    const auto found = names.Resolve({"closed.example", 80}, InTime());
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code(), Code::kCancelled);
  }
}

}  // namespace
}  // namespace ferry::net
