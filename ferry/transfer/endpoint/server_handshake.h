// The server handshake: turns lanes of pending peers into connections.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ferry/core/event_loop.h"
#include "ferry/core/random.h"
#include "ferry/net/accept_gate.h"
#include "ferry/net/admission.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/handshake/hello_exchange.h"
#include "ferry/transfer/handshake/lane_progress.h"
#include "ferry/transfer/handshake/secret.h"

namespace ferry::transfer {

class EndpointCore;
class ConnectionCore;

// The server handshake: accepts lanes of pending peers and assembles them into connections. Lives
// on the listener's loop.
class ServerHandshake {
 public:
  explicit ServerHandshake(EndpointCore* endpoint);
  ~ServerHandshake();

  void OnAccepted(std::unique_ptr<net::Lane> lane);
  // Closes all pending lanes.
  void ClearOnLoop();

 private:
  enum class State : std::uint8_t {
    kSilent,      // has said nothing, or nothing whole
    kChallenged,  // has begun well, and owes the proof that it knows the secret
    kAdmitted,    // its peer is known: waits for the connection's other lanes
    kRejoining,   // its peer is known; may take a lane's place: owes its progress on that one
    kFreezing,    // this side is stopping the old lane
    kMoving,      // was sent this side's progress: moves when that has left
    kRefused,     // closes when the refusal has left
  };
  struct PendingPeer {
    std::unique_ptr<HelloExchange> hello_exchange;
    State state = State::kSilent;
    Exchange exchange;         // from kChallenged on
    std::uint64_t number = 0;  // of its own
    bool proved = false;       // to be a process of this machine, where that was asked
    // For a lane that takes the place of another.
    std::shared_ptr<ConnectionCore> rejoins;  // with the endpoint's table, while the lane moves
    wire::RejoinBody rejoin;
    LaneProgress progress;  // progress of the peer
  };
  // A connection of which some lanes are still missing.
  struct PendingConnection {
    wire::WelcomeBody welcome;
    Uuid peer;
    net::ProcessHint process;
    std::uint64_t window_bytes = 0;
    std::vector<HelloExchange*> lanes;
    std::size_t joined = 0;
    EventLoop::TimerId timer = 0;  // limit for the next lane to join
    int extensions = 0;            // times that the limit was extended
  };
  using PendingConnections = std::unordered_map<std::uint32_t, PendingConnection>;

  void MoveTo(PendingPeer* pending_peer, State to);
  Status OnHeard(HelloExchange* hello_exchange, const wire::MessageHeader& header,
                 wire::MetaReader* reader);
  Status Answer(HelloExchange* hello_exchange, wire::Type type, wire::MetaReader* reader);
  Status Challenge(PendingPeer* pending_peer, wire::Type type, wire::MetaReader* reader);
  Status CheckProof(PendingPeer* pending_peer, wire::MetaReader* reader);
  Status Admit(HelloExchange* hello_exchange, wire::Type type, wire::MetaReader* reader);
  // Sends the frame, with a proof that we know the secret if the endpoint has one.
  void SayProven(HelloExchange* hello_exchange, wire::Type type, std::span<const std::byte> body);
  // Errors: kRefused or kUnavailable for a peer that is not authenticated, or exceeds a limit.
  Status MayConnect(const HelloExchange& hello_exchange, const Uuid& peer);
  Status OnHello(HelloExchange* hello_exchange, wire::MetaReader* reader);
  Status OnJoin(HelloExchange* hello_exchange, wire::MetaReader* reader);
  Status OnRejoin(HelloExchange* hello_exchange, wire::MetaReader* reader);
  Status OnResume(HelloExchange* hello_exchange, wire::MetaReader* reader);
  void OnFrozen(HelloExchange* hello_exchange, std::uint64_t number,
                std::optional<LaneProgress> progress);
  void FinishRejoin(HelloExchange* hello_exchange, std::uint64_t number);
  // Closes a pending lane that was to replace the same lane.
  void TurnAwayRival(const ConnectionCore* connection, std::uint32_t lane);
  // Null if that handshake has ended.
  PendingPeer* Find(HelloExchange* hello_exchange, std::uint64_t number);
  void TurnAway(std::uint64_t number);
  void Refuse(HelloExchange* hello_exchange, const Error& error);
  void OnGone(HelloExchange* hello_exchange, const Error& error);
  // The peer is authenticated: restarts the handshake timeout for its remaining lanes.
  void RenewOnLoop(std::uint32_t id);
  void OnPendingConnectionLate(std::uint32_t id);
  PendingConnection TakePendingConnection(PendingConnections::iterator it);
  void CompleteIfReady(std::uint32_t id);
  void Complete(std::uint32_t id);
  void Drop(HelloExchange* hello_exchange);

  EndpointCore* const endpoint_;
  EventLoop* const loop_;
  std::unordered_map<HelloExchange*, PendingPeer> hello_exchanges_;
  std::unordered_map<std::uint64_t, HelloExchange*> by_number_;
  net::Admission admission_;  // those of them that are not authenticated yet
  net::AcceptGate gate_;
  PendingConnections pending_connections_;
  Clock::time_point last_admitted_;  // when a lane was last authenticated
  std::uint32_t next_id_ = 1;
  std::uint64_t next_number_ = 1;
};

}  // namespace ferry::transfer
