// Tests the states of a session's lane, without one.
#include "ferry/session/state.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ferry::session {
namespace {

using ::testing::HasSubstr;

State Walk(State state, const std::vector<Event>& events) {
  for (const Event event : events) {
    const Edge* const edge = Advance(state, event);
    if (edge == nullptr) {
      ADD_FAILURE() << EventName(event) << " in " << StateName(state);
      break;
    }
    state = edge->to;
  }
  return state;
}

bool IsFinal(State state) { return state == State::kLost || state == State::kEnded; }

TEST(SessionState, EachEventLeadsFromAStateToOneOther) {
  std::set<std::pair<State, Event>> seen;
  for (const Edge& edge : Edges()) {
    EXPECT_TRUE(seen.emplace(edge.from, edge.event).second)
        << EventName(edge.event) << " in " << StateName(edge.from);
    EXPECT_EQ(Advance(edge.from, edge.event)->to, edge.to);
    EXPECT_STRNE(edge.reason, "");
  }
}

TEST(SessionState, EveryStateIsReachedFromAFirstOneAndMayEnd) {
  std::set<State> reached{State::kDialed, State::kSilent};
  for (std::size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const Edge& edge : Edges()) {
      if (reached.contains(edge.from)) reached.insert(edge.to);
    }
  }
  for (int i = 0; i <= static_cast<int>(State::kEnded); ++i) {
    const auto state = static_cast<State>(i);
    EXPECT_TRUE(reached.contains(state)) << StateName(state);
    EXPECT_EQ(Advance(state, Event::kEnd) == nullptr, state == State::kEnded);
  }
}

TEST(SessionState, NothingFollowsALossOrAnEnd) {
  for (const Edge& edge : Edges()) EXPECT_FALSE(IsFinal(edge.from)) << StateName(edge.from);
}

TEST(SessionState, ALaneOpensWithAndWithoutASecret) {
  using E = Event;
  EXPECT_EQ(Walk(State::kDialed, {E::kOpen, E::kAnswer, E::kHandOver}), State::kOpen);
  EXPECT_EQ(Walk(State::kDialed, {E::kOpen, E::kChallenge, E::kAnswer, E::kHandOver}),
            State::kOpen);
  EXPECT_EQ(Walk(State::kSilent, {E::kTrustedHello, E::kAccept, E::kHandOver}), State::kOpen);
  EXPECT_EQ(Walk(State::kSilent, {E::kUnprovedHello, E::kProof, E::kAccept, E::kHandOver}),
            State::kOpen);
}

TEST(SessionState, ALaneReplacesAnotherOnceBothSidesHaveStoppedThat) {
  using E = Event;
  EXPECT_EQ(
      Walk(State::kDialed, {E::kOpen, E::kChallenge, E::kAnswer, E::kSettle, E::kOwed, E::kMore}),
      State::kMoving);
  EXPECT_EQ(Walk(State::kSilent, {E::kUnprovedHello, E::kProof, E::kAccept, E::kMore, E::kSettled}),
            State::kMoving);
  EXPECT_EQ(Advance(State::kProving, E::kSettle), nullptr) << "the peer has not agreed";
  EXPECT_EQ(Advance(State::kSettling, E::kMore), nullptr) << "this side has not stopped";
}

TEST(SessionState, NobodyIsAcceptedBeforeTheProofThatHeOwes) {
  for (const State state : {State::kSilent, State::kChallenged}) {
    EXPECT_EQ(Advance(state, Event::kAccept), nullptr);
    EXPECT_EQ(Advance(state, Event::kMore), nullptr);
  }
  EXPECT_EQ(Advance(State::kSilent, Event::kProof), nullptr);
  EXPECT_EQ(Advance(State::kChallenged, Event::kTrustedHello), nullptr);
  EXPECT_EQ(Advance(State::kProving, Event::kChallenge), nullptr) << "one challenge is enough";
}

// The picture in the documents has the edges of the code, and no other.
TEST(SessionState, TheDiagramInTheDocumentsIsThatOfTheCode) {
  std::ifstream file(FERRY_DOCS "/wire.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  ASSERT_FALSE(text.empty());
  std::string diagram = "```mermaid\nstateDiagram-v2\n  [*] --> dialed\n  [*] --> silent\n";
  for (const Edge& edge : Edges()) {
    diagram += fmt::format("  {} --> {}: {}\n", StateName(edge.from), StateName(edge.to),
                           EventName(edge.event));
  }
  diagram += "```\n";
  EXPECT_THAT(text, HasSubstr(diagram));
}

}  // namespace
}  // namespace ferry::session
