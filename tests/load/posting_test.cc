// Tests a thread that posts and cancels without ever waiting, so that it never drives its
// connection's loop.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

using transfer::Operation;

class Posting : public testing::TestWithParam<int> {};  // microseconds between two posts

TEST_P(Posting, AndCancellingDelaysNoDeadlineAndNoHeartbeat) {
  constexpr milliseconds kPostingDeadline{200};
  constexpr std::size_t kMaxFillers = 1000;
  constexpr std::string_view kMessage = "still here";
  std::vector<std::byte> room(64);
  LinkedPeer link(FastSettings({"lanes=1"}));
  const auto post = [&] {
    // A wait first, which sends the engine's thread away for a moment.
    (void)link.connection.TakeNotification(Deadline::After(milliseconds(5)));
    return Must(
        link.connection.Recv(8, ~0ull, room, {.deadline = Deadline::After(kPostingDeadline)}));
  };
  Operation timed = post();
  std::deque<Operation> fillers;
  Stopwatch since;
  milliseconds longest{0};
  for (const auto over = Deadline::After(2 * kPeerTimeout); !over.expired();) {
    // No further one where the loop's thread gets so little of the machine that they pile up.
    if (fillers.size() < kMaxFillers || fillers.front().Done()) {
      if (fillers.size() == kMaxFillers) fillers.pop_front();
      fillers.push_back(Must(link.connection.Recv(7, ~0ull, room)));
      fillers.back().Cancel();
    }
    longest = std::max(longest, since.elapsed());
    if (timed.Done()) {
      EXPECT_EQ(timed.Wait(TestDeadline()).error().code(), Code::kTimedOut);
      timed = post();
      since = Stopwatch();
    }
    if (GetParam() > 0) std::this_thread::sleep_for(microseconds(GetParam()));
  }
  ExpectWithin(longest, kPostingDeadline, "the end of a receive by its deadline");
  EXPECT_FALSE(link.connection.lost());
  const Status told =
      Must(link.connection.Notify(std::as_bytes(std::span(kMessage)))).Wait(TestDeadline());
  EXPECT_TRUE(told) << told.error().ToString();
  EXPECT_EQ(link.peer.TakeNotification(kTimeout), kMessage);
  EXPECT_EQ(link.peer.Quit(), 0);
}

INSTANTIATE_TEST_SUITE_P(Pauses, Posting, testing::Values(0, 50, 400),
                         [](const auto& one) { return std::to_string(one.param) + "us"; });

}  // namespace
}  // namespace ferry::tests
