// Tests the states of a connection.
#include "ferry/transfer/connection/connection_state.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace ferry::transfer {
namespace {

const Error kFirstError(Code::kPeerLost, "first");
const Error kSecondError(Code::kCancelled, "second");

TEST(ConnectionState, RunsFromStartToClosed) {
  ConnectionState state;
  EXPECT_TRUE(state.starting());
  EXPECT_FALSE(state.lost());
  state.Start();
  EXPECT_EQ(state.state(), ConnectionState::State::kUp);
  EXPECT_FALSE(state.starting() || state.lost());
  EXPECT_TRUE(state.Lose(kFirstError));
  EXPECT_TRUE(state.lost());
  EXPECT_FALSE(state.ending());
  state.End();
  EXPECT_TRUE(state.lost() && state.ending());
  EXPECT_FALSE(state.closed());
  state.Close();
  EXPECT_TRUE(state.lost() && state.ending() && state.closed());
}

TEST(ConnectionState, OnlyTheFirstLossCounts) {
  ConnectionState state;
  state.Start();
  EXPECT_TRUE(state.Lose(kFirstError, "events"));
  EXPECT_FALSE(state.Lose(kSecondError));
  EXPECT_EQ(state.error().message(), "first");
  EXPECT_EQ(state.error().code(), Code::kPeerLost);
  EXPECT_EQ(state.unlogged(), "events");
  state.End();
  EXPECT_FALSE(state.Lose(kSecondError));
  EXPECT_EQ(state.error().message(), "first");
}

TEST(ConnectionState, ALossBeforeTheStartOutlastsIt) {
  ConnectionState state;
  EXPECT_TRUE(state.Lose(kFirstError));
  EXPECT_EQ(state.state(), ConnectionState::State::kLostEarly);
  EXPECT_TRUE(state.starting() && state.lost());
  state.Start();
  EXPECT_EQ(state.state(), ConnectionState::State::kLost);
  EXPECT_FALSE(state.starting());
}

TEST(ConnectionState, AFailureBeforeTheStartWaitsForIt) {
  ConnectionState state;
  EXPECT_FALSE(state.failed_at_start());
  state.FailAtStart(kFirstError);
  state.FailAtStart(kSecondError);
  EXPECT_FALSE(state.lost());
  EXPECT_EQ(state.failed_at_start()->message(), "first");
}

TEST(ConnectionState, OneOfManyThreadsLosesIt) {
  for (int round = 0; round < 50; ++round) {
    ConnectionState state;
    std::atomic<int> first{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        if (i == 0) return state.Start();
        if (state.Lose(Error(Code::kPeerLost, std::to_string(i)))) ++first;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(first, 1);
    EXPECT_EQ(state.state(), ConnectionState::State::kLost);
  }
}

TEST(ConnectionStateDeathTest, AnEndWithoutALossIsCaught) {
  ConnectionState state;
  state.Start();
  EXPECT_DEATH(state.End(), "");
  EXPECT_DEATH(state.Close(), "");
}

}  // namespace
}  // namespace ferry::transfer
