// The acceptor: the listening port of the process, and pending comms.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"
#include "ferry/session/pending_peers.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {

class Engine;
class RecvComm;

// The pending comms of one listen comm: senders whose lanes are coming in. Any thread.
class PendingComms {
 public:
  PendingComms(Engine* engine, EventLoop* swift, std::uint64_t id);

  std::uint64_t id() const noexcept { return id_; }
  // The loop for small messages of these comms.
  EventLoop* swift() const noexcept { return swift_; }
  const Key& key() const noexcept { return key_; }
  // Called by the acceptor: adds a lane of the comm that `hello` names. Errors: kCorrupt for an
  // impossible lane number.
  Status Enter(const HelloWire& hello, std::unique_ptr<net::Lane> lane);
  // A rank with incompatible settings has connected: from now on Take() fails with `reason`.
  void Refuse(const Error& reason);
  // The next comm whose lanes are all up, or null; never blocks. Errors: that of Refuse();
  // kPeerLost where a sender has closed its lanes, and has not returned for as long as it may
  // retry.
  Result<std::shared_ptr<RecvComm>> Take();
  // Refuses further lanes and closes the pending comms.
  void Close();

 private:
  Engine* const engine_;
  EventLoop* const swift_;
  const std::uint64_t id_;
  const Key key_;
  std::mutex mutex_;
  bool closed_ = false;  // under mutex_, as the rest
  std::optional<Error> refused_;
  std::optional<Error> gone_;  // error of a sender that closed before all its lanes were up
  Clock::time_point gone_for_good_;
  std::unordered_map<Uuid, std::shared_ptr<RecvComm>>
      here_;  // shared with the tasks that move its lanes
};

// The acceptor of the process: one listening port. The hello frame of a lane names its listen comm,
// whose key both sides prove, and the lane moves to that listen comm's PendingComms; a lane that
// sends anything else, or is not done within FERRY_HANDSHAKE_TIMEOUT, is closed.
class Acceptor final : private session::PendingPeerUser {
 public:
  // Call before the loop runs. Errors: those of Provider::Listen().
  static Result<std::unique_ptr<Acceptor>> Open(Engine* engine, EventLoop* loop);
  // Destroy after the loop has stopped.
  ~Acceptor() override;

  // The addresses that peers are told; at least one. All have the listening port.
  const std::vector<net::Address>& told() const noexcept { return told_; }
  // Creates a listen comm; shared with the lanes that are on their way to it.
  std::shared_ptr<PendingComms> Listen(EventLoop* swift);
  void Unlisten(std::uint64_t id);

 private:
  using Handshake = session::Handshake;

  Acceptor(Engine* engine, EventLoop* loop);
  Result<session::Demand> OnOpening(Handshake* handshake, session::wire::Type type,
                                    session::wire::MetaReader body) override;
  Status OnReceived(Handshake* handshake, session::wire::Type type,
                    session::wire::MetaReader* body) override;
  void OnComplete(Handshake* handshake) override;
  void OnGone(Handshake* /*handshake*/, const Error& /*error*/) override {}
  void OnTurnedAway(const Handshake& handshake, const std::string& sentence) override;
  // Null where there is none.
  std::shared_ptr<PendingComms> Find(std::uint64_t listen);
  void AdmitOnLoop(std::uint64_t number);

  Engine* const engine_;
  EventLoop* const loop_;
  std::vector<net::Address> told_;
  session::PendingPeers pending_peers_;  // loop
  const Secret nobodys_;                 // the key of listen comms that do not exist
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<PendingComms>> listens_;  // under mutex_
  std::uint64_t next_listen_ = 1;                                             // under mutex_
  std::unique_ptr<net::Listener> listener_;
};

}  // namespace ferry::nccl_net
