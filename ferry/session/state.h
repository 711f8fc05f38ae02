// The states of a session's lane, and what leads from each to the next.
#pragma once
#include <cstdint>
#include <span>

namespace ferry::session {

// A lane of a session, as one side sees it.
enum class State : std::uint8_t {
  kDialed,      // dialing side: the lane is up
  kAsking,      // dialing side: has sent its first frame
  kProving,     // dialing side: has sent its proof; the peer owes its own
  kAgreed,      // dialing side: the peer has proved itself and has accepted
  kSilent,      // accepting side: no complete frame has arrived
  kChallenged,  // accepting side: the first frame is valid; the peer owes its proof
  kProved,      // accepting side: the peer is authenticated and not accepted yet
  kAdmitted,    // accepting side: accepted; may owe one more frame
  kSettling,    // this side prepares what it owes: it stops the lane that this one replaces
  kResuming,    // dialing side: has sent what it owed; the peer owes the same
  kMoving,      // both sides know all: the lane moves when all frames have left
  kRefused,     // accepting side: closes when the refusal has left
  kOpen,        // in use
  kSuspect,     // in use, and silent for longer than a lane should be
  kLost,        // silent for longer than a peer may be
  kEnded,       // closed, by whichever side
};

// What a side learns or decides.
enum class Event : std::uint8_t {
  kOpen,           // this side, which dials, sends its first frame
  kTrustedHello,   // a well-formed first frame, of a peer that owes no proof
  kUnprovedHello,  // the same, of one that does
  kChallenge,      // the peer asks for a proof
  kProof,          // the peer's proof is right
  kAnswer,         // the peer accepts, and its proof is right where it owes one
  kRefusal,        // the peer refuses
  kAccept,         // this side accepts
  kDecline,        // this side refuses
  kSettle,         // this side, which dials, begins to replace a lane, or has more to tell
  kMore,           // the peer's frame after the answer
  kOwed,           // this side's frame after the answer is sent; the peer's is due
  kSettled,        // the same; the peer owes none
  kHandOver,       // all frames have left: the lane goes to its user
  kSilence,        // nothing was heard for longer than a lane may be silent
  kHeard,          // bytes have arrived
  kTimeout,        // nothing was heard for longer than a peer may be silent
  kEnd,            // the deadline, the peer or the network has ended the lane, or this side has
};

// What a side does when it takes an edge. Handshake carries out kTrust; the others document what
// its callers do.
enum class Action : std::uint8_t {
  kNothing,
  kSend,         // sends what is due and waits for the answer
  kTrust,        // admits frames of full size, and asks its user what becomes of the peer
  kUse,          // tells its user
  kWaitForSent,  // waits until all frames have left
  kClose,        // closes and tells its user why
};

struct Edge {
  State from{};
  Event event{};
  State to{};
  Action action{};
  const char* reason = "";
};

// Every edge but those to kEnded, which every state has.
std::span<const Edge> Edges() noexcept;
// The edge that the event takes from this state; null: the event must not occur in it.
const Edge* Advance(State state, Event event) noexcept;

const char* StateName(State state) noexcept;
const char* EventName(Event event) noexcept;

}  // namespace ferry::session
