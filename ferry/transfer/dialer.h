#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/net/provider.h"
#include "ferry/transfer/greeting.h"
#include "ferry/transfer/introduction.h"

namespace ferry::transfer {

class EndpointCore;
class ConnectionCore;

// The connecting side of the greeting, for one address. A peer that closes or resets a lane before
// the connection is complete, as one does that has no room, is dialled again after a pause that
// doubles, until the deadline; a refusal and a port where nobody listens are final. Belongs to the
// connection's home loop; shared between that and the thread in Endpoint::Connect, which waits for
// `done`.
class Dialer final : public std::enable_shared_from_this<Dialer> {
 public:
  Dialer(std::shared_ptr<EndpointCore> endpoint, net::Address address, Uuid expected,
         Deadline deadline);
  ~Dialer();

  EventLoop* home() const noexcept { return loops_.front(); }
  void StartOnLoop();
  // After its loop has stopped: lets go of the lanes, whose callbacks keep this object.
  void GiveUp() { greetings_.clear(); }
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Once done.
  Result<std::shared_ptr<ConnectionCore>> result();

 private:
  // A lane of one attempt: what its callbacks say counts as long as the attempt lasts.
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
  // Ends the attempt, and makes the next one where there is time for it.
  void RetryOnLoop(const Error& error);
  void DropLanesOnLoop();
  Status OnWelcome(wire::MetaReader* reader);
  void OnJoined();
  void FinishIfReady();
  void Finish();
  void FailOnLoop(const Error& error);
  void EndCall();

  std::shared_ptr<EndpointCore> endpoint_;  // with the endpoint's handles
  const net::Address address_;
  const Uuid expected_;
  const Deadline deadline_;
  std::vector<EventLoop*> loops_;
  std::vector<std::unique_ptr<Greeting>> greetings_;
  std::vector<Introduction> introductions_;
  std::string call_;  // the local name of the first lane, that this endpoint knows its own call
  wire::WelcomeBody welcome_;
  std::vector<net::Address> others_;  // by which the peer says that it can be reached, too
  std::size_t joined_ = 0;
  std::uint32_t attempt_ = 0;
  std::string last_;  // how the attempt before this one ended
  std::atomic<bool> done_{false};
  std::optional<Error> error_;
  std::shared_ptr<ConnectionCore> connection_;  // handed on by result()
};

}  // namespace ferry::transfer
