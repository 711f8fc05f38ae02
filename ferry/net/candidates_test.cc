// Tests when which address of a peer is dialed, without sockets and with a clock of the test's own.
#include "ferry/net/candidates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ferry::net {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Act = Candidates::Act;
using Retry = Candidates::Retry;

constexpr milliseconds kWhole{10'000};
constexpr milliseconds kAnswer{500};

class CandidatesTest : public ::testing::Test {
 protected:
  // Addresses 10.0.0.1:7, 10.0.0.2:7, ...
  Candidates Make(std::size_t count, milliseconds answer_time = milliseconds(0)) {
    std::vector<Address> addresses;
    for (std::size_t i = 1; i <= count; ++i)
      addresses.push_back({"10.0.0." + std::to_string(i), 7});
    return {std::move(addresses), Deadline::At(begun_ + kWhole), begun_, answer_time};
  }
  Clock::time_point At(milliseconds since) const { return begun_ + since; }
  // The addresses, by number from 0, that are dialed, or asked, `since` the beginning.
  std::vector<std::size_t> Begun(Candidates& candidates, milliseconds since, Act act = Act::kDial) {
    std::vector<std::size_t> begun;
    while (const auto step = candidates.Next(At(since))) {
      EXPECT_EQ(step->act, act);
      begun.push_back(step->index);
    }
    return begun;
  }
  static Error Refused() { return Error(Code::kPeerLost, "connection refused"); }
  static Error Closed() { return Error(Code::kPeerLost, "closed before it answered"); }

  const Clock::time_point begun_ = Clock::now();
};

TEST_F(CandidatesTest, BeginOneAfterAnotherWhileNoneAnswers) {
  Candidates candidates = Make(8);
  std::vector<std::size_t> begun = Begun(candidates, milliseconds(0));
  EXPECT_THAT(begun, ElementsAre(0));
  for (std::size_t i = 1; i < 8; ++i) {
    const milliseconds since = Candidates::kStagger * static_cast<int>(i);
    EXPECT_EQ(candidates.when(), At(since));
    EXPECT_THAT(Begun(candidates, since - milliseconds(1)), IsEmpty());
    EXPECT_THAT(Begun(candidates, since), ElementsAre(i));
  }
  // The eighth has begun after 1050 ms, and nothing is left to do.
  EXPECT_EQ(candidates.when(), Clock::time_point::max());
  EXPECT_FALSE(candidates.IsOver(At(kWhole - milliseconds(1))));
}

TEST_F(CandidatesTest, BeginAtOnceWhenAnotherHasFailed) {
  Candidates candidates = Make(3);
  EXPECT_THAT(Begun(candidates, milliseconds(0)), ElementsAre(0));
  candidates.OnFailed(0, Refused(), Retry::kNever, At(milliseconds(1)));
  EXPECT_THAT(Begun(candidates, milliseconds(1)), ElementsAre(1));
  EXPECT_THAT(Begun(candidates, milliseconds(150)), IsEmpty());
  EXPECT_THAT(Begun(candidates, milliseconds(151)), ElementsAre(2));
}

TEST_F(CandidatesTest, EachHasTheWholeTimeUnlessThereAreMoreThanMayBeOpen) {
  Candidates few = Make(Candidates::kMaxOpen);
  EXPECT_EQ(few.Next(begun_)->deadline.when(), At(kWhole));
  Candidates many = Make(2 * Candidates::kMaxOpen);
  EXPECT_EQ(many.Next(begun_)->deadline.when(), At(kWhole / 2));
}

TEST_F(CandidatesTest, NoMoreAreOpenThanMayBe) {
  Candidates candidates = Make(Candidates::kMaxOpen + 1);
  std::size_t open = 0;
  for (milliseconds since{0}; since < milliseconds(2000); since += Candidates::kStagger) {
    open += Begun(candidates, since).size();
  }
  EXPECT_EQ(open, Candidates::kMaxOpen);
  EXPECT_EQ(candidates.when(), Clock::time_point::max());
  candidates.OnFailed(3, Refused(), Retry::kNever, At(milliseconds(2000)));
  EXPECT_THAT(Begun(candidates, milliseconds(2000)), ElementsAre(Candidates::kMaxOpen));
}

TEST_F(CandidatesTest, OneThatFailedForTheTimeBeingIsDialedAgainAfterALongerPauseEachTime) {
  Candidates candidates = Make(1);
  Clock::time_point now = begun_;
  for (const int longest : {10, 20, 40, 80, 160, 320, 640, 640}) {
    ASSERT_TRUE(candidates.Next(now));
    candidates.OnFailed(0, Closed(), Retry::kLater, now);
    EXPECT_FALSE(candidates.Next(now));
    EXPECT_FALSE(candidates.IsOver(now));
    EXPECT_GE(candidates.when(), now + milliseconds(longest) / 2);
    EXPECT_LT(candidates.when(), now + milliseconds(longest));
    now = candidates.when();
  }
  EXPECT_TRUE(candidates.Next(now));
}

TEST_F(CandidatesTest, RetriesDoNotMakeOthersBeginEarlier) {
  Candidates candidates = Make(3);
  EXPECT_THAT(Begun(candidates, milliseconds(0)), ElementsAre(0));
  candidates.OnFailed(0, Closed(), Retry::kLater, At(milliseconds(0)));
  EXPECT_THAT(Begun(candidates, milliseconds(0)), ElementsAre(1));
  EXPECT_THAT(Begun(candidates, milliseconds(10)), ElementsAre(0));
  candidates.OnFailed(0, Closed(), Retry::kLater, At(milliseconds(11)));
  EXPECT_THAT(Begun(candidates, milliseconds(11)), IsEmpty());
}

TEST_F(CandidatesTest, NoRetryWouldBeginAfterTheDeadline) {
  Candidates candidates = Make(1);
  ASSERT_TRUE(candidates.Next(begun_));
  candidates.OnFailed(0, Closed(), Retry::kLater, At(kWhole - milliseconds(1)));
  EXPECT_TRUE(candidates.IsOver(At(kWhole - milliseconds(1))));
}

TEST_F(CandidatesTest, AreAskedAsTheyComeUpWithoutAnAnswerTime) {
  Candidates candidates = Make(2);
  EXPECT_THAT(Begun(candidates, milliseconds(0)), ElementsAre(0));
  candidates.OnUp(0);
  EXPECT_THAT(Begun(candidates, milliseconds(1), Act::kAsk), ElementsAre(0));
  EXPECT_THAT(Begun(candidates, milliseconds(150)), ElementsAre(1));
  candidates.OnUp(1);
  EXPECT_THAT(Begun(candidates, milliseconds(150), Act::kAsk), ElementsAre(1));
}

// 0 is asked at 1 ms.
class AnswerTimeTest : public CandidatesTest {
 protected:
  AnswerTimeTest() {
    EXPECT_THAT(Begun(candidates_, milliseconds(0)), ElementsAre(0));
    candidates_.OnUp(0);
    EXPECT_THAT(Begun(candidates_, milliseconds(1), Act::kAsk), ElementsAre(0));
    EXPECT_THAT(Begun(candidates_, milliseconds(150)), ElementsAre(1));
    candidates_.OnUp(1);
  }
  Candidates candidates_ = Make(2, kAnswer);
};

TEST_F(AnswerTimeTest, OneIsAskedAtATimeUntilItIsLate) {
  EXPECT_EQ(candidates_.when(), At(milliseconds(1) + kAnswer));
  EXPECT_THAT(Begun(candidates_, kAnswer), IsEmpty());
  EXPECT_THAT(Begun(candidates_, milliseconds(1) + kAnswer, Act::kAsk), ElementsAre(1));
}

TEST_F(AnswerTimeTest, AnAnswerThatProvesNothingYetRenewsItsTime) {
  candidates_.OnAnswer(0, At(milliseconds(400)));
  EXPECT_EQ(candidates_.when(), At(milliseconds(400) + kAnswer));
}

TEST_F(AnswerTimeTest, TheNextIsAskedAtOnceWhenOneHasFailed) {
  candidates_.OnFailed(0, Refused(), Retry::kNever, At(milliseconds(200)));
  EXPECT_THAT(Begun(candidates_, milliseconds(200), Act::kAsk), ElementsAre(1));
}

TEST_F(AnswerTimeTest, WhoeverWasNotAskedByTheDeadlineIsNotWaitedFor) {
  candidates_.OnAnswer(0, At(kWhole - milliseconds(1)));
  EXPECT_EQ(candidates_.when(), At(kWhole));
  EXPECT_FALSE(candidates_.IsOver(At(kWhole)));
  candidates_.OnFailed(0, Error(Code::kTimedOut, "late"), Retry::kNever, At(kWhole));
  EXPECT_TRUE(candidates_.IsOver(At(kWhole)));
}

TEST_F(CandidatesTest, OthersBeginAnewWhenThePeerIsLostAfterItsProof) {
  Candidates candidates = Make(3);
  EXPECT_THAT(Begun(candidates, milliseconds(0)), ElementsAre(0));
  EXPECT_THAT(Begun(candidates, milliseconds(150)), ElementsAre(1));
  candidates.OnUp(1);
  EXPECT_THAT(Begun(candidates, milliseconds(151), Act::kAsk), ElementsAre(1));
  candidates.OnProven(1);
  candidates.OnFailed(1, Refused(), Retry::kNever, At(milliseconds(160)));
  EXPECT_THAT(Begun(candidates, milliseconds(160)), ElementsAre(0));
  EXPECT_THAT(Begun(candidates, milliseconds(310)), ElementsAre(2));
}

TEST_F(CandidatesTest, TheErrorOfOneIsItsOwnWithItsAttempts) {
  Candidates candidates = Make(1);
  ASSERT_TRUE(candidates.Next(begun_));
  candidates.OnFailed(0, Closed(), Retry::kLater, begun_);
  ASSERT_TRUE(candidates.Next(candidates.when()));
  candidates.OnFailed(0, Error(Code::kUnavailable, "10.0.0.1:7 is full"), Retry::kNever, begun_);
  const Error error = candidates.Failure();
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_EQ(error.message(),
            "10.0.0.1:7 is full (attempt 2; the previous one: closed before it answered)");
}

TEST_F(CandidatesTest, TheErrorNamesEachAddressAndHasTheCodeOfTheClosest) {
  Candidates candidates = Make(4);
  for (const int since : {0, 150, 300}) {
    EXPECT_EQ(Begun(candidates, milliseconds(since)).size(), 1U);
  }
  candidates.OnFailed(2, Refused(), Retry::kNever, At(milliseconds(301)));
  candidates.OnFailed(0, Error(Code::kRefused, "10.0.0.1:7 has another secret"), Retry::kNever,
                      At(milliseconds(302)));
  candidates.OnFailed(1, Error(Code::kTimedOut, "no answer"), Retry::kNever, At(kWhole));
  EXPECT_TRUE(candidates.IsOver(At(kWhole)));
  const Error error = candidates.Failure();
  EXPECT_EQ(error.code(), Code::kRefused);
  EXPECT_THAT(
      error.message(),
      AllOf(HasSubstr("none of the peer's 4 addresses led to it: (1) 10.0.0.1:7 has another "
                      "secret; (2) 10.0.0.2:7: no answer; (3) 10.0.0.3:7: connection "
                      "refused; (4) 10.0.0.4:7 was not reached before the deadline"),
            Not(HasSubstr("10.0.0.1:7: "))));
}

}  // namespace
}  // namespace ferry::net
