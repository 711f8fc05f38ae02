// Lists every edge between the states of a session's lane.
#include "ferry/session/state.h"

#include <algorithm>
#include <iterator>

namespace ferry::session {
namespace {

// In the order of their enums.
constexpr const char* kStateNames[] = {
    "dialed",   "asking",   "proving", "agreed",  "silent", "challenged", "proved", "admitted",
    "settling", "resuming", "moving",  "refused", "open",   "suspect",    "lost",   "ended"};
constexpr const char* kEventNames[] = {
    "open",    "trusted hello", "unproved hello", "challenge", "proof",   "answer",
    "refusal", "accept",        "decline",        "settle",    "more",    "owed",
    "settled", "hand over",     "silence",        "heard",     "timeout", "end"};
static_assert(std::size(kStateNames) == static_cast<std::size_t>(State::kEnded) + 1 &&
              std::size(kEventNames) == static_cast<std::size_t>(Event::kEnd) + 1);

using A = Action;
using E = Event;
using S = State;

// docs/wire.md draws it.
constexpr Edge kEdges[] = {
    // The dialing side.
    {S::kDialed, E::kOpen, S::kAsking, A::kSend, "the dialing side speaks first"},
    {S::kAsking, E::kChallenge, S::kProving, A::kSend, "this side proves itself first"},
    {S::kAsking, E::kAnswer, S::kAgreed, A::kUse, "neither side owes a proof"},
    {S::kProving, E::kAnswer, S::kAgreed, A::kUse, "both sides have proved themselves"},
    {S::kAsking, E::kRefusal, S::kEnded, A::kClose, "a refusal is final for this lane"},
    {S::kProving, E::kRefusal, S::kEnded, A::kClose, "a refusal is final for this lane"},
    {S::kResuming, E::kRefusal, S::kEnded, A::kClose, "a later lane has taken the place"},
    {S::kAgreed, E::kSettle, S::kSettling, A::kNothing, "only an accepted lane may replace one"},
    {S::kSettling, E::kOwed, S::kResuming, A::kSend, "only a stopped lane's progress is final"},
    {S::kSettling, E::kSettled, S::kMoving, A::kWaitForSent, "the peer has told all already"},
    {S::kResuming, E::kMore, S::kMoving, A::kUse, "both sides have stopped the old lane"},
    {S::kAgreed, E::kHandOver, S::kOpen, A::kNothing, "all frames have left"},
    // The accepting side.
    {S::kSilent, E::kTrustedHello, S::kProved, A::kTrust, "no secret, or the lane has proved it"},
    {S::kSilent, E::kUnprovedHello, S::kChallenged, A::kSend, "an unproved peer gets only a nonce"},
    {S::kChallenged, E::kProof, S::kProved, A::kTrust, "the peer knows the secret"},
    {S::kProved, E::kAccept, S::kAdmitted, A::kSend, "the user has a place for the lane"},
    {S::kAdmitted, E::kMore, S::kSettling, A::kUse, "the peer has stopped its side"},
    {S::kAdmitted, E::kHandOver, S::kOpen, A::kNothing, "all frames have left"},
    {S::kSilent, E::kDecline, S::kRefused, A::kWaitForSent, "another version, role or secret"},
    {S::kChallenged, E::kDecline, S::kRefused, A::kWaitForSent, "a wrong proof"},
    {S::kProved, E::kDecline, S::kRefused, A::kWaitForSent, "a wrong identity, or no place"},
    {S::kAdmitted, E::kDecline, S::kRefused, A::kWaitForSent, "what the peer adds does not fit"},
    {S::kSettling, E::kDecline, S::kRefused, A::kWaitForSent, "a later lane has taken the place"},
    // Both sides.
    {S::kMoving, E::kHandOver, S::kOpen, A::kNothing, "all frames have left"},
    {S::kOpen, E::kSilence, S::kSuspect, A::kUse, "another path may work"},
    {S::kSuspect, E::kHeard, S::kOpen, A::kNothing, "it was only slow"},
    {S::kOpen, E::kTimeout, S::kLost, A::kClose, "the peer is frozen, cut off or gone"},
    {S::kSuspect, E::kTimeout, S::kLost, A::kClose, "the peer is frozen, cut off or gone"},
};

}  // namespace

std::span<const Edge> Edges() noexcept { return kEdges; }

const Edge* Advance(State state, Event event) noexcept {
  static constexpr Edge kEnd{{}, E::kEnd, S::kEnded, A::kClose, "any lane may end at any time"};
  if (event == E::kEnd) return state == S::kEnded ? nullptr : &kEnd;
  const auto* const edge =
      std::find_if(std::begin(kEdges), std::end(kEdges),
                   [&](const Edge& each) { return each.from == state && each.event == event; });
  return edge == std::end(kEdges) ? nullptr : edge;
}

const char* StateName(State state) noexcept { return kStateNames[static_cast<int>(state)]; }
const char* EventName(Event event) noexcept { return kEventNames[static_cast<int>(event)]; }

}  // namespace ferry::session
