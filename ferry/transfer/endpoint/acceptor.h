// The accepting side of connections: makes them of lanes whose peers are known.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ferry/core/loop/event_loop.h"
#include "ferry/core/random.h"
#include "ferry/net/provider.h"
#include "ferry/session/pending_peers.h"
#include "ferry/transfer/handshake/lane_progress.h"
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {

class EndpointCore;
class ConnectionCore;

// Takes accepted lanes through their handshakes, and makes connections of them: each of a first
// lane and of those that join it. Also lets a lane take the place of a lost one of a connection.
// Lives on the listener's loop.
class Acceptor final : private session::PendingPeerUser {
 public:
  explicit Acceptor(EndpointCore* endpoint);
  ~Acceptor() override;

  void OnAccepted(std::unique_ptr<net::Lane> lane);
  // Closes all pending lanes.
  void ClearOnLoop();

 private:
  using Handshake = session::Handshake;

  // A lane that takes the place of another.
  struct Rejoining {
    std::shared_ptr<ConnectionCore> connection;  // with the endpoint's table, while the lane moves
    wire::RejoinBody body;
    LaneProgress progress;  // the peer's
  };
  // A connection of which some lanes are still missing.
  struct PendingConnection {
    wire::WelcomeBody welcome;
    Uuid peer;
    net::ProcessHint process;
    std::vector<Handshake*> lanes;
    std::size_t joined = 0;
    EventLoop::TimerId timer = 0;  // limit for the next lane to join
    int extensions = 0;            // times that the limit was extended
  };
  using PendingConnections = std::unordered_map<std::uint32_t, PendingConnection>;

  Result<session::Demand> OnOpening(Handshake* handshake, session::wire::Type type,
                                    wire::MetaReader body) override;
  Status OnReceived(Handshake* handshake, session::wire::Type type,
                    wire::MetaReader* body) override;
  void OnComplete(Handshake* handshake) override;
  void OnGone(Handshake* handshake, const Error& error) override;
  void OnTurnedAway(const Handshake& handshake, const std::string& sentence) override;

  // Errors: kRefused or kUnavailable for a peer that exceeds a limit.
  Status MayConnect(const Handshake& handshake, const Uuid& peer);
  Status OnHello(Handshake* handshake, wire::MetaReader* reader);
  Status OnJoin(Handshake* handshake, wire::MetaReader* reader);
  Status OnRejoin(Handshake* handshake, wire::MetaReader* reader);
  Status OnResume(Handshake* handshake, wire::MetaReader* reader);
  void OnFrozen(std::uint64_t number, std::optional<LaneProgress> progress);
  void FinishRejoin(std::uint64_t number);
  // Closes a pending lane that was to replace the same lane.
  void TurnAwayRival(const ConnectionCore* connection, std::uint32_t lane);
  PendingConnections::iterator FindConnection(const Handshake* handshake);
  // The peer is authenticated: restarts the handshake timeout for its remaining lanes.
  void RenewOnLoop(std::uint32_t id);
  void OnConnectionLate(std::uint32_t id);
  PendingConnection TakeConnection(PendingConnections::iterator it);
  // Closes the lanes of a connection that will not be complete.
  void DropConnection(PendingConnections::iterator it);
  void Complete(std::uint32_t id);

  EndpointCore* const endpoint_;
  EventLoop* const loop_;
  session::PendingPeers pending_peers_;
  std::unordered_map<std::uint64_t, Rejoining> rejoining_;  // by number of the handshake
  PendingConnections pending_connections_;
  Clock::time_point last_admitted_;  // when a lane was last authenticated
  std::uint32_t next_id_ = 1;
};

}  // namespace ferry::transfer
