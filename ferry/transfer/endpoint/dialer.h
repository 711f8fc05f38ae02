// The dialing side of a connection: finds the peer, connects all lanes and runs the handshakes.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/net/dial.h"
#include "ferry/net/provider.h"
#include "ferry/session/handshake.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/options.h"

namespace ferry::transfer {

class EndpointCore;
class ConnectionCore;

// Dials the first lane at the peer's addresses side by side (net::Dial). The first address that
// sends a welcome, with its proof of the secret, is the peer: the lanes to the others are closed,
// and the further lanes are dialed there. If the peer closes or resets a lane before the connection
// is complete, as a peer without room does, that address is dialed again after a pause, until the
// deadline. A refusal and a port without a listener are final for their address.
//
// At most one address is asked at a time, unless it takes long to answer: a peer with two addresses
// would otherwise assemble two connections, and with one lane each it would accept both.
//
// Lives on the connection's home loop. Shared between that loop and the thread in
// Endpoint::Connect, which waits for done().
class Dialer final : public std::enable_shared_from_this<Dialer>, private session::HandshakeUser {
 public:
  // While an address was asked less than this ago, no other is.
  static constexpr milliseconds kAnswerTime{500};

  // `addresses`: at least one. `secret`: nullopt for the endpoint's own. `identify`: as in
  // Endpoint::Connect().
  Dialer(std::shared_ptr<EndpointCore> endpoint, std::vector<net::Address> addresses, Uuid expected,
         Deadline deadline, const std::optional<Secret>& secret = std::nullopt,
         MakeIdentity identify = nullptr);

  EventLoop* home() const noexcept { return all_loops_.front(); }
  void StartOnLoop();
  // Releases the lanes, whose handshakes keep this object alive. Call after its loop has stopped.
  void GiveUp();
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Valid once done() is true.
  Result<std::shared_ptr<ConnectionCore>> result();

 private:
  using Handshake = session::Handshake;
  // A lane that is up, during its handshake.
  struct HelloLane {
    std::size_t address = 0;  // index of the address that it was dialed at
    std::size_t index = 0;    // of the lane
    std::unique_ptr<Handshake> handshake;
    std::uint16_t asked_lanes = 0;  // by its hello frame
    std::string call = {};  // its local name, once recorded to detect a connection to ourselves
  };

  void OnUp(std::size_t address, std::unique_ptr<net::Lane> lane, Deadline deadline);
  void OnJoinConnected(std::size_t index, std::uint32_t round,
                       Result<std::unique_ptr<net::Lane>> lane);
  // Adds the lane and starts its handshake. Returns null where the settings do not allow its use,
  // which ends the attempt.
  HelloLane* Adopt(std::size_t address, std::size_t index, std::unique_ptr<net::Lane> lane,
                   Deadline deadline);
  void SayHello(HelloLane* lane);
  // Null where the attempt, or the dial, has ended: the lane is about to be closed.
  HelloLane* Find(const Handshake* handshake);
  void OnChallenged(Handshake* handshake, const session::Demand& demand) override;
  Status OnReceived(Handshake* handshake, session::wire::Type type,
                    wire::MetaReader* body) override;
  void OnComplete(Handshake* handshake) override;
  void OnGone(Handshake* handshake, const Error& error) override;
  Status OnWelcome(HelloLane* lane, wire::MetaReader* reader);
  void JoinLanes(const HelloLane* first);
  void OnJoined();
  void FinishIfReady();
  void Finish();
  // Ends the attempt at this address and closes its lanes; the dial goes on.
  void EndAttempt(std::size_t address, const Error& error, bool may_retry);
  // Closes the lanes for which this is true.
  template <class Predicate>
  void Drop(Predicate which);
  void FailOnLoop(const Error& error);

  std::shared_ptr<EndpointCore> endpoint_;  // shared with the endpoint's handles
  const std::vector<net::Address> addresses_;
  const Uuid expected_;
  const Deadline deadline_;
  const std::optional<Secret> secret_;       // that both sides prove on every lane
  const MakeIdentity identify_;              // on first lanes
  const std::vector<int> lanes_to_;          // by address
  const std::vector<EventLoop*> all_loops_;  // for the most of these
  std::shared_ptr<net::Dial> dial_;          // with its own callbacks
  std::vector<std::unique_ptr<HelloLane>> lanes_;
  // From the welcome on.
  std::vector<EventLoop*> loops_;  // of the lanes that the peer has agreed on
  wire::WelcomeBody welcome_;
  std::vector<net::Address> others_;  // further addresses that the peer announces
  std::size_t joined_ = 0;
  std::uint32_t round_ = 0;  // attempts that have ended
  std::atomic<bool> done_{false};
  std::optional<Error> error_;
  std::shared_ptr<ConnectionCore> connection_;  // handed on by result()
};

}  // namespace ferry::transfer
