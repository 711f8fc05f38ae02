// Tests that a dial connects to its addresses side by side and cancels the rest, with a provider
// that the test answers for.
#include "ferry/net/dial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/net/testing/fake_provider.h"

namespace ferry::net {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Retry = Candidates::Retry;

// Connects that end when the test says so. `host` is the address's.
class AnsweredProvider final : public Provider {
 public:
  const char* name() const override { return "answered"; }
  Capabilities capabilities() const override { return {}; }
  Result<std::unique_ptr<Listener>> Listen(const Address& /*address*/, const Config& /*config*/,
                                           EventLoop* /*loop*/, Accepted /*accepted*/) override {
    return Error(Code::kUnavailable, "nobody listens");
  }
  EventLoop::TimerId Connect(const Address& address, const Config& /*config*/, EventLoop* loop,
                             Deadline /*deadline*/, Connected connected) override {
    dialed.push_back(address.host);
    if (address.host == "refuses") {
      connected(Error(Code::kPeerLost, "refused"));
      return 0;
    }
    auto waiting = std::make_shared<Connected>(std::move(connected));  // with its timer
    waiting_[address.host] = waiting;
    return loop->AddTimerOnLoop(Clock::time_point::max(), [waiting] {});
  }
  bool Waits(const std::string& host) const { return !waiting_.at(host).expired(); }
  void Answer(const std::string& host, Result<std::unique_ptr<Lane>> lane) {
    const auto connected = waiting_.at(host).lock();
    ASSERT_NE(connected, nullptr);
    (*connected)(std::move(lane));
  }

  std::vector<std::string> dialed;

 private:
  std::map<std::string, std::weak_ptr<Connected>> waiting_;
};

class DialTest : public ::testing::Test {
 protected:
  ~DialTest() override {
    OnLoop([&] { dial_.reset(); });
  }
  void OnLoop(FunctionRef<void()> task) {
    bool ran = false;
    loop_->PostOrRun([&] {
      task();
      ran = true;
    });
    while (!ran) loop_->DriveOnce();
  }
  void Start(const std::vector<std::string>& hosts, Deadline deadline = Deadline::Never()) {
    std::vector<Address> addresses;
    for (const std::string& host : hosts) addresses.push_back({host, 7});
    dial_ = std::make_shared<Dial>(
        &provider_, &config_, loop_.get(),
        Candidates(addresses, deadline, Clock::now(), milliseconds(0)),
        [this](std::size_t index, std::unique_ptr<Lane> /*lane*/, Deadline /*deadline*/) {
          asked_.push_back(index);
        },
        [this](const Error& error) { over_.push_back(error.message()); });
    OnLoop([&] { dial_->Start(); });
  }
  // A lane that nobody uses.
  std::unique_ptr<Lane> MakeLane() {
    std::unique_ptr<Lane> made;
    listener_ = *far_->Listen({FakeNetwork::kHost, 0}, config_, loop_.get(), [](auto /*lane*/) {});
    OnLoop([&] {
      far_->Connect(listener_->address(), config_, loop_.get(), Deadline::Never(),
                    [&](auto lane) { made = *std::move(lane); });
    });
    while (made == nullptr) loop_->DriveOnce();
    return made;
  }

  const Config config_{};
  const std::unique_ptr<EventLoop> loop_ = *EventLoop::Create();
  FakeNetwork network_;
  const std::unique_ptr<Provider> far_ = network_.CreateProvider();
  std::unique_ptr<Listener> listener_;
  AnsweredProvider provider_;
  std::shared_ptr<Dial> dial_;  // with its own callbacks
  std::vector<std::size_t> asked_;
  std::vector<std::string> over_;
};

TEST_F(DialTest, TheNextAddressIsDialedWhenNobodyHasAnsweredForAWhile) {
  Start({"a", "b"});
  EXPECT_THAT(provider_.dialed, ElementsAre("a"));
  const Deadline limit = Deadline::After(std::chrono::seconds(30));
  while (provider_.dialed.size() < 2 && !limit.expired()) loop_->DriveOnce();
  EXPECT_THAT(provider_.dialed, ElementsAre("a", "b"));
  EXPECT_TRUE(provider_.Waits("a"));
}

TEST_F(DialTest, OneThatFailsInsideTheCallIsFollowedByTheNextAtOnce) {
  Start({"refuses", "refuses", "b"});
  EXPECT_THAT(provider_.dialed, ElementsAre("refuses", "refuses", "b"));
}

TEST_F(DialTest, TheFirstThatIsChosenCancelsTheOthers) {
  Start({"refuses", "a", "b"});
  const Deadline limit = Deadline::After(std::chrono::seconds(30));
  while (provider_.dialed.size() < 3 && !limit.expired()) loop_->DriveOnce();
  auto lane = MakeLane();
  OnLoop([&] { provider_.Answer("b", std::move(lane)); });
  EXPECT_THAT(asked_, ElementsAre(2));
  EXPECT_TRUE(provider_.Waits("a"));
  OnLoop([&] { dial_->Choose(2); });
  EXPECT_FALSE(provider_.Waits("a"));
  // The peer turns this side away after all.
  OnLoop([&] { dial_->Fail(2, Error(Code::kPeerLost, "turned away"), Retry::kLater); });
  EXPECT_TRUE(provider_.Waits("a"));
  EXPECT_THAT(over_, IsEmpty());
}

TEST_F(DialTest, ItEndsWithItsConnects) {
  Start({"a"});
  EXPECT_TRUE(provider_.Waits("a"));
  OnLoop([&] { dial_.reset(); });
  EXPECT_FALSE(provider_.Waits("a"));
}

TEST_F(DialTest, AllThatFailEndItOnce) {
  Start({"refuses", "a"});
  OnLoop([&] { provider_.Answer("a", Error(Code::kCorrupt, "no TLS")); });
  ASSERT_EQ(over_.size(), 1U);
  EXPECT_THAT(over_[0], HasSubstr("(1) refuses:7: refused; (2) a:7: no TLS"));
}

TEST_F(DialTest, ALateDeadlineEndsItWithoutAConnect) {
  Start({"a"}, Deadline::At(Clock::now()));
  EXPECT_THAT(provider_.dialed, IsEmpty());
  EXPECT_EQ(over_.size(), 1U);
}

}  // namespace
}  // namespace ferry::net
