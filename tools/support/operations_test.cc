// Tests of waits, operations in flight and control messages between two endpoints.

#include "tools/support/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "ferry/net/address.h"
#include "tools/support/acceptor.h"
#include "tools/support/json.h"
#include "tools/testing/peer_pair.h"

namespace ferry::tools {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kTag = 77;

std::vector<std::byte> Letters(const char* text) {
  const auto bytes = std::as_bytes(std::span(text, std::char_traits<char>::length(text)));
  return {bytes.begin(), bytes.end()};
}

// A receive for which nothing is ever sent.
transfer::Operation PostReceiveOfNothing(transfer::Connection* connection,
                                         std::span<std::byte> into) {
  auto receive = connection->Recv(kTag, kWholeTag, into);
  EXPECT_TRUE(receive) << receive.error().ToString();
  return *std::move(receive);
}

// ---- connecting ---------------------------------------------------------------------------------

TEST(ConnectTo, EveryReasonWhyAPeerCannotBeReachedIsALostPeer) {
  PeerPair pair;
  struct {
    std::string address;
    Deadline deadline;
  } const kCases[] = {
      {"no such host:1", PeerDeadline()},
      {"127.0.0.1:1", PeerDeadline()},
      // No endpoint answers there: this one's own port takes connections, and says nothing in time.
      {"127.0.0.1:" + std::to_string(pair.near_endpoint().port()),
       Deadline::After(milliseconds(0))},
  };
  for (const auto& [address, deadline] : kCases) {
    const auto connection = ConnectTo(&pair.near_endpoint(), address, deadline);
    ASSERT_FALSE(connection) << address;
    EXPECT_EQ(connection.error().code(), Code::kPeerLost) << connection.error().ToString();
  }
}

TEST(ConnectTo, APeerThatAnswersIsConnected) {
  PeerPair pair;
  const auto again =
      ConnectTo(&pair.near_endpoint(),
                net::Address{"127.0.0.1", pair.far_endpoint().port()}.ToString(), PeerDeadline());
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_TRUE(Acceptor(&pair.far_endpoint()).Next());
}

TEST(Acceptor, EndsWithItsEndpoint) {
  PeerPair pair;
  auto accepted =
      std::async(std::launch::async, [&] { return Acceptor(&pair.far_endpoint()).Next(); });
  pair.far_endpoint().Close();
  EXPECT_EQ(accepted.get().error().code(), Code::kCancelled);
}

// ---- waiting ------------------------------------------------------------------------------------

TEST(WaitFor, AtTheDeadlineTheOperationHasEnded) {
  PeerPair pair;
  std::array<std::byte, 8> into{};
  transfer::Operation receive = PostReceiveOfNothing(&pair.near(), into);
  const Status status = WaitFor(receive, Deadline::After(milliseconds(20)));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kTimedOut);
  EXPECT_THAT(status.error().message(), HasSubstr("did not end before its deadline"));
  EXPECT_TRUE(receive.Done());
}

TEST(WaitFor, LooksUpWhileNothingEnds) {
  PeerPair pair;
  std::array<std::byte, 8> into{};
  transfer::Operation receive = PostReceiveOfNothing(&pair.near(), into);
  const auto message = Letters("12345678");
  int glances = 0;
  std::optional<transfer::Operation> send;
  const Status status = WaitFor(receive, PeerDeadline(), [&] {
    if (++glances != 1) return;
    auto sent = pair.far().Send(kTag, message);
    ASSERT_TRUE(sent);
    send.emplace(*std::move(sent));
  });
  EXPECT_TRUE(status);
  EXPECT_GE(glances, 1);
  EXPECT_TRUE(std::equal(into.begin(), into.end(), message.begin()));
  EXPECT_TRUE(send->Wait(PeerDeadline()));
}

TEST(WaitFor, AnOperationThatFailsIsItsError) {
  PeerPair pair;
  std::array<std::byte, 8> into{};
  transfer::Operation receive = PostReceiveOfNothing(&pair.near(), into);
  pair.far().Close();
  EXPECT_EQ(WaitFor(receive, PeerDeadline()).error().code(), Code::kPeerLost);
}

TEST(InFlightOperations, AreFinishedOldestFirst) {
  PeerPair pair;
  std::array<std::array<std::byte, 1>, 3> into{};
  InFlight receives;
  EXPECT_EQ(receives.size(), 0U);
  for (auto& one : into) receives.Add(PostReceiveOfNothing(&pair.near(), one));
  EXPECT_EQ(receives.size(), 3U);
  for (std::size_t i = 0; i < into.size(); ++i) {
    const std::byte sent{static_cast<unsigned char>(i + 1)};
    InFlight sends;
    auto send = pair.far().Send(kTag, {&sent, 1});
    ASSERT_TRUE(send);
    sends.Add(*std::move(send));
    ASSERT_TRUE(receives.FinishOldest(PeerDeadline()));
    EXPECT_EQ(into.at(i)[0], sent);
    EXPECT_EQ(receives.size(), into.size() - i - 1);
    EXPECT_TRUE(sends.FinishOldest(PeerDeadline()));
  }
}

TEST(InFlightOperations, ThatAreLeftAreCancelledBeforeTheirMemoryGoes) {
  PeerPair pair;
  std::array<std::byte, 8> into{};
  transfer::Operation receive = PostReceiveOfNothing(&pair.near(), into);
  {
    InFlight operations;
    operations.Add(receive);
  }
  EXPECT_TRUE(receive.Done());
  EXPECT_EQ(receive.Wait().error().code(), Code::kCancelled);
}

// Regression: any byte began a new timeout, and so did any wait.
TEST(ReceivePace, ATrickleEndsOneOfManyWaits) {
  PeerPair pair;
  ReceivePace pace(pair.near(), milliseconds(300));
  const std::byte byte{1};
  std::array<std::byte, 1> into{};
  const Deadline deadline = PeerDeadline();
  Status waited = Ok();
  while (waited && !deadline.expired()) {
    transfer::Operation receive = PostReceiveOfNothing(&pair.near(), into);
    auto wait = std::async(std::launch::async, [&] { return pace.Wait(receive); });
    (void)wait.wait_for(milliseconds(20));
    auto send = pair.far().Send(kTag, {&byte, 1});
    ASSERT_TRUE(send);
    InFlight sends;
    sends.Add(*std::move(send));
    waited = wait.get();
    if (waited) {
      EXPECT_TRUE(sends.FinishOldest(PeerDeadline()));
    }
  }
  ASSERT_FALSE(waited) << "a byte now and then keeps the place";
  EXPECT_EQ(waited.error().code(), Code::kTimedOut);
}

TEST(ReceivePace, ATrickleEndsOneLongWait) {
  PeerPair pair;
  ReceivePace pace(pair.near(), milliseconds(300));
  std::array<std::byte, 1> last{};
  std::array<std::byte, 1> into{};
  const std::byte byte{1};
  auto receive = pair.near().Recv(kTag + 1, kWholeTag, last);
  ASSERT_TRUE(receive);
  auto wait = std::async(std::launch::async, [&] { return pace.Wait(*receive); });
  const Deadline deadline = PeerDeadline();
  bool ended = false;
  while (!ended && !deadline.expired()) {
    transfer::Operation piece = PostReceiveOfNothing(&pair.near(), into);
    auto send = pair.far().Send(kTag, {&byte, 1});
    ASSERT_TRUE(send);
    EXPECT_TRUE(piece.Wait(PeerDeadline()));
    EXPECT_TRUE(send->Wait(PeerDeadline()));
    ended = wait.wait_for(milliseconds(20)) == std::future_status::ready;
  }
  EXPECT_TRUE(ended) << "a byte now and then keeps the place";
  EXPECT_EQ(wait.get().error().code(), Code::kTimedOut);
}

// ---- control messages ---------------------------------------------------------------------------

TEST(ControlMessages, CrossBothWays) {
  PeerPair pair;
  Control near(pair.near());
  Control far(pair.far());
  ASSERT_TRUE(near.Say(Json{{"do", "set up"}, {"size", 8}}, PeerDeadline()));
  const auto question = far.Hear(PeerDeadline());
  ASSERT_TRUE(question) << question.error().ToString();
  EXPECT_EQ(DumpJson(*question), R"({"do":"set up","size":8})");
  ASSERT_TRUE(far.Say(Json{{"key", "00ff"}}, PeerDeadline()));
  EXPECT_EQ(*TextField(*near.HearAnswer(PeerDeadline()), "key"), "00ff");
}

TEST(ControlMessages, AnAnswerThatReportsAnErrorIsThatError) {
  PeerPair pair;
  Control near(pair.near());
  Control far(pair.far());
  auto asked = std::async(std::launch::async, [&] {
    return near.Ask({{"do", "fly"}}, PeerDeadline());
  });
  ASSERT_TRUE(far.Hear(PeerDeadline()));
  ASSERT_TRUE(far.Say(ErrorToJson(Error(Code::kUnsupported, "no wings")), PeerDeadline()));
  const auto answer = asked.get();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kUnsupported);
  EXPECT_EQ(answer.error().message(), "the server says: no wings");
}

TEST(ControlMessages, OneThatIsNoJsonOrTooLongIsAnError) {
  PeerPair pair;
  Control near(pair.near());
  constexpr std::uint64_t kTagOfControl = 1;
  const auto hear = [&](const std::vector<std::byte>& bytes) {
    InFlight sends;
    auto send = pair.far().Send(kTagOfControl, bytes);
    EXPECT_TRUE(send);
    sends.Add(*std::move(send));
    auto heard = near.Hear(PeerDeadline());
    (void)sends.FinishOldest(PeerDeadline());
    return heard;
  };
  EXPECT_EQ(hear(Letters("hello")).error().code(), Code::kCorrupt);
  EXPECT_EQ(hear({}).error().code(), Code::kCorrupt);
  EXPECT_EQ(hear(std::vector<std::byte>((64 << 10) + 1)).error().code(), Code::kInvalidArgument);
  const auto right = hear(Letters(R"({"ready": true})"));
  EXPECT_TRUE(right) << "the connection goes on";
}

TEST(ControlMessages, SilenceTimesOut) {
  PeerPair pair;
  Control near(pair.near());
  const auto heard = near.Hear(Deadline::After(milliseconds(20)));
  EXPECT_EQ(heard.error().code(), Code::kTimedOut);
  EXPECT_THAT(heard.error().message(), HasSubstr("has not answered for "));
}

TEST(ControlMessages, AWaitGoesOnWhilePayloadArrivesAndEndsInSilence) {
  PeerPair pair;
  Control near(pair.near());
  const auto timeout = milliseconds(700);
  ReceivePace pace(pair.near(), timeout);
  const std::vector<std::byte> letters(ReceivePace::kMinBytesPerSecond);
  std::vector<std::byte> into(letters.size());
  const auto begin = Clock::now();
  auto heard = std::async(std::launch::async, [&] { return near.Hear(&pace); });
  auto last = begin;
  auto longest_gap = Clock::duration::zero();
  while (Clock::now() - begin < 2 * timeout) {
    transfer::Operation receive = PostReceiveOfNothing(&pair.near(), into);
    auto send = pair.far().Send(kTag, letters);
    ASSERT_TRUE(send);
    ASSERT_TRUE(receive.Wait(PeerDeadline()));
    longest_gap = std::max(longest_gap, Clock::now() - std::exchange(last, Clock::now()));
    (void)heard.wait_for(timeout / 7);
  }
  const bool waits = heard.wait_for(milliseconds(0)) == std::future_status::timeout;
  // A busy machine may have kept this thread from sending.
  EXPECT_TRUE(waits || longest_gap >= timeout / 2);
  const auto message = heard.get();
  EXPECT_EQ(message.error().code(), Code::kTimedOut);
  EXPECT_THAT(message.error().message(), HasSubstr("has sent nothing for "));
}

}  // namespace
}  // namespace ferry::tools
