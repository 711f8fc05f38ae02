// The dialing side of a connection: connects all lanes and runs the client handshake.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/handshake/client_handshake.h"
#include "ferry/transfer/handshake/hello_exchange.h"

namespace ferry::transfer {

class EndpointCore;
class ConnectionCore;

// Runs the client handshake for one address. If the peer closes or resets a lane before the
// connection is complete, as a peer without room does, the attempt is repeated after a pause that
// doubles each time, until the deadline. A refusal and a port without a listener are final.
//
// Lives on the connection's home loop. Shared between that loop and the thread in
// Endpoint::Connect, which waits for done().
class Dialer final : public std::enable_shared_from_this<Dialer> {
 public:
  Dialer(std::shared_ptr<EndpointCore> endpoint, net::Address address, Uuid expected,
         Deadline deadline);
  ~Dialer();

  EventLoop* home() const noexcept { return loops_.front(); }
  void StartOnLoop();
  // Releases the lanes, whose callbacks keep this object alive. Call after its loop has stopped.
  void GiveUp() { hello_exchanges_.clear(); }
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Valid once done() is true.
  Result<std::shared_ptr<ConnectionCore>> result();

 private:
  // Identifies a lane of one attempt; callbacks of earlier attempts are ignored.
  struct LaneId {
    std::size_t index = 0;
    std::uint32_t attempt = 0;
  };

  bool IsOver(LaneId lane) const noexcept { return done() || lane.attempt != attempt_; }
  void ConnectLaneOnLoop(std::size_t index);
  void SayHello();
  void OnConnected(LaneId id, Result<std::unique_ptr<net::Lane>> lane);
  void OnGone(LaneId id, const Error& error);
  Status OnHeard(LaneId id, const wire::MessageHeader& header, wire::MetaReader* reader);
  // Ends the attempt, and schedules the next one if the deadline allows.
  void RetryOnLoop(const Error& error);
  void DropLanesOnLoop();
  Status OnWelcome(wire::MetaReader* reader);
  void OnJoined();
  void FinishIfReady();
  void Finish();
  void FailOnLoop(const Error& error);
  void EndCall();

  std::shared_ptr<EndpointCore> endpoint_;  // shared with the endpoint's handles
  const net::Address address_;
  const Uuid expected_;
  const Deadline deadline_;
  std::vector<EventLoop*> loops_;
  std::vector<std::unique_ptr<HelloExchange>> hello_exchanges_;
  std::vector<ClientHandshake> client_handshakes_;
  std::string call_;  // local name of the first lane, to detect a connection to ourselves
  wire::WelcomeBody welcome_;
  std::vector<net::Address> others_;  // further addresses that the peer announces
  std::size_t joined_ = 0;
  std::uint32_t attempt_ = 0;
  std::string last_;  // how the previous attempt ended
  std::atomic<bool> done_{false};
  std::optional<Error> error_;
  std::shared_ptr<ConnectionCore> connection_;  // handed on by result()
};

}  // namespace ferry::transfer
