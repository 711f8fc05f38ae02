// Tests an endpoint on a system that has no more threads for it, or whose name servers do not
// answer.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <sstream>
#include <string>

#include "tests/support/engine_peer.h"
#include "tests/support/peer_process.h"

namespace ferry::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SlackOfTests, FollowsTheMachineUpToALimit) {
  if (RatesAreJudged()) GTEST_SKIP() << "FERRY_TEST_RATES=1 asks for a fixed slack";
  const milliseconds least = SlackFor(milliseconds(0));
  EXPECT_EQ(SlackFor(milliseconds(10)), least + milliseconds(100));
  EXPECT_EQ(SlackFor(milliseconds(1'000'000)), least + kSlack);
}

class LimitedProcess {
 public:
  std::string Ask(const std::string& command) {
    process_->Command(command);
    return process_->Answer();
  }

 private:
  std::unique_ptr<PeerProcess> process_ = Must(PeerProcess::Start("limited"));
};

// Each endpoint of 3 workers gets one thread more than the one before, until it has all.
TEST(FewThreads, AreAnErrorOfCreateThatSaysSoAndLeavesNothing) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become a user with a limit of its own";
  int refused = 0;
  for (int most = 1; most < 20; ++most) {
    SCOPED_TRACE(fmt::format("{} threads", most));
    LimitedProcess process;
    process.Ask(fmt::format("few_threads {}", most));
    const std::string threads = process.Ask("threads");
    const std::string descriptors = process.Ask("descriptors");
    const std::string created = process.Ask("create workers=3 lanes=3");
    EXPECT_EQ(process.Ask("threads"), threads);
    EXPECT_EQ(process.Ask("descriptors"), descriptors);
    if (created == "made") break;
    ++refused;
    EXPECT_THAT(created, AllOf(StartsWith("Unavailable cannot start a thread for the worker"),
                               HasSubstr(fmt::format("{} allowed for its user (ulimit -u)", most)),
                               HasSubstr("threads in this process")));
  }
  EXPECT_GE(refused, 3);
  EXPECT_LT(refused, 19);
}

class HangingNames : public testing::Test {
 protected:
  void SetUp() override {
    if (::getuid() != 0) GTEST_SKIP() << "only root can have name servers of its own";
    process_.Ask("hanging_names");
  }
  // How long it took; the rest is the error.
  static milliseconds Took(const std::string& answer) {
    std::int64_t ms = 0;
    std::istringstream(answer) >> ms;
    return milliseconds(ms);
  }

  LimitedProcess process_;
};

TEST_F(HangingNames, DoNotOutlastTheDeadlineOfConnect) {
  const std::string answer = process_.Ask("connect slow.example:7471 100");
  ExpectWithin(Took(answer), milliseconds(100), "connecting to a name that nobody knows yet");
  EXPECT_THAT(answer,
              AllOf(HasSubstr("TimedOut"), HasSubstr("\"slow.example\""), HasSubstr("100 ms")));
}

TEST_F(HangingNames, AreNotAskedForNumericAddresses) {
  const std::string answer = process_.Ask("connect 127.0.0.1:1 60000");
  ExpectWithin(Took(answer), milliseconds(0), "connecting to a closed port");
  EXPECT_THAT(answer, HasSubstr("PeerLost"));
}

TEST_F(HangingNames, DoNotHoldUpAnEndpointThatIsClosed) {
  const std::string answer = process_.Ask("close_while_connecting slow.example:7471 60000");
  ExpectWithin(Took(answer), milliseconds(0), "closing an endpoint that looks a name up");
  EXPECT_THAT(answer, AllOf(HasSubstr("Cancelled"), HasSubstr("\"slow.example\"")));
}

}  // namespace
}  // namespace ferry::tests
