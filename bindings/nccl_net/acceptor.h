// The acceptor: the listening port of the process, and pending comms.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bindings/nccl_net/wire.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/net/accept_gate.h"
#include "ferry/net/admission.h"
#include "ferry/net/provider.h"

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
  Key key_;
  std::mutex mutex_;
  bool closed_ = false;  // under mutex_, as the rest
  std::optional<Error> refused_;
  std::optional<Error> gone_;  // error of a sender that closed before all its lanes were up
  Clock::time_point gone_for_good_;
  std::unordered_map<Uuid, std::shared_ptr<RecvComm>>
      here_;  // shared with the tasks that move its lanes
};

// The acceptor of the process: one listening port. The hello frame of a lane names its listen comm
// and carries its key, and the lane moves to that listen comm's PendingComms; a lane that sends
// anything else, or no hello frame within FERRY_HANDSHAKE_TIMEOUT, is closed. net::Admission
// decides which pending lane is closed when there are too many.
class Acceptor {
 public:
  // Call before the loop runs. Errors: those of Provider::Listen().
  static Result<std::unique_ptr<Acceptor>> Open(Engine* engine, EventLoop* loop);
  // Destroy after the loop has stopped.
  ~Acceptor();

  // The addresses that peers are told; at least one. All have the listening port.
  const std::vector<net::Address>& told() const noexcept { return told_; }
  // Creates a listen comm; shared with the lanes that are on their way to it.
  std::shared_ptr<PendingComms> Listen(EventLoop* swift);
  void Unlisten(std::uint64_t id);

 private:
  class PendingPeer;

  Acceptor(Engine* engine, EventLoop* loop);
  void EnterOnLoop(std::unique_ptr<net::Lane> lane);
  void OnHello(std::uint64_t number);
  Result<std::shared_ptr<PendingComms>> Find(const HelloWire& hello,
                                             const std::optional<ProbeWire>& probe);
  // Returns an error for a hello frame or a probe that must not be accepted. If its sender has the
  // key, the listen comm's Take() reports the error too.
  Result<std::shared_ptr<PendingComms>> Check(std::span<const std::byte> meta,
                                              const std::string& remote);
  void AdmitOnLoop(std::uint64_t number);
  void RefuseOnLoop(std::uint64_t number);
  void DropOnLoop(std::uint64_t number);

  Engine* const engine_;
  EventLoop* const loop_;
  std::vector<net::Address> told_;
  net::Admission admission_;  // loop
  net::AcceptGate gate_;      // loop
  std::unordered_map<std::uint64_t, std::unique_ptr<PendingPeer>>
      pending_peers_;                    // loop; by number
  std::uint64_t next_pending_peer_ = 1;  // loop
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<PendingComms>> listens_;  // under mutex_
  std::uint64_t next_listen_ = 1;                                             // under mutex_
  std::unique_ptr<net::Listener> listener_;
};

}  // namespace ferry::nccl_net
